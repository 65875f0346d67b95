"""Which platform this is, and the policy defaults that a backend ships for it."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.config.effective import PlatformDefaults
from vllm_fl_dispatch.errors import in_brief
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.plugins import PluginRecord
from vllm_fl_dispatch.types import DeviceSpec

logger = get_logger(__name__)


def devices(records: Iterable[PluginRecord]) -> list[tuple[PluginRecord, DeviceSpec]]:
    """The devices that loaded plugins describe, in the order of the plugins."""
    found = []
    for record in records:
        spec = ask(record, "vllm_fl_device")
        if isinstance(spec, DeviceSpec):
            found.append((record, spec))
        elif spec is not None:
            _misfit(record, "vllm_fl_device", spec, "a DeviceSpec")
    return found


def platform_defaults(records: Iterable[PluginRecord]) -> PlatformDefaults | None:
    """The defaults for `VLLM_FL_PLATFORM`, or for the first device that a plugin finds."""
    records = tuple(records)
    wanted = environment.read("VLLM_FL_PLATFORM")
    if wanted is not None:
        wanted = wanted.strip().lower()
        found = _ask_all(records, wanted)
        described = [spec.platform for _, spec in devices(records)]
        if found is None and wanted not in described:
            known = [record.name for record in records if "vllm_fl_platform_config" in record.hooks]
            warning_once(
                logger,
                f"VLLM_FL_PLATFORM={wanted}: no backend has defaults for this platform, none "
                f"apply; backends with defaults: {', '.join(known) or '(none)'}. No backend "
                f"describes such a device here either; devices: {', '.join(described) or '(none)'}",
            )
        return found
    for _, spec in devices(records):
        found = _ask_all(records, spec.platform)
        if found is not None:
            return found
    return None


def ask(record: PluginRecord, hook: str, **arguments: Any) -> Any:
    """Call one hook of one plugin; what it raises is a warning, and None comes back."""
    if hook not in record.hooks:
        return None
    function = getattr(record.plugin, hook)
    try:
        # As pluggy calls it: a hook takes those of the arguments that it names.
        taken = inspect.signature(function).parameters
        return function(**{name: value for name, value in arguments.items() if name in taken})
    # A plugin may raise anything; the others must still be asked.
    except Exception as error:  # noqa: BLE001
        warning_once(logger, f"{hook} of {record.source.origin} raised {in_brief(error)}")
        return None


def _misfit(record: PluginRecord, hook: str, found: Any, accepted: str) -> None:
    warning_once(
        logger,
        f"{hook} of {record.source.origin} returned {found!r}, which is ignored; accepted: "
        f"{accepted} or None",
    )


def _ask_all(records: tuple[PluginRecord, ...], platform: str) -> PlatformDefaults | None:
    for record in records:
        settings = ask(record, "vllm_fl_platform_config", platform=platform)
        if settings is not None and not isinstance(settings, str | Path | Mapping):
            _misfit(record, "vllm_fl_platform_config", settings, "a path, a mapping")
        elif settings is not None:
            settings = Path(settings) if isinstance(settings, str) else settings
            return PlatformDefaults(platform, settings, str(record.source.origin))
    return None
