"""FlagGems itself: imported at most once per process, in the process that runs the kernels.

Its import is contained. What it would leave behind (search paths with modules called `ops`,
environment variables, text on stdout) is taken back; its patches of vLLM, which can abort the
process, are kept out; which vendor it serves is told, not left to the vendors' command-line tools;
and each rank has a file of tuning results of its own, because SQLite is locked by one writer.

A second attempt after a failed import raises something else, so the first outcome is final.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch import DispatchError, Verdict, get_default_manager, get_logger
from vllm_fl_dispatch.locks import ForkLock
from vllm_fl_dispatch.platforms import devices
from vllm_fl_flaggems import containment
from vllm_fl_flaggems.probe import library_installed, node_vendor

logger = get_logger(__name__)

#: The vendors that flag-gems knows; it ignores any other value of GEMS_VENDOR in silence.
VENDORS = ("nvidia", "cambricon", "metax", "iluvatar", "mthreads", "kunlunxin", "hygon", "amd",
           "aipu", "ascend", "tsingmicro", "sunrise", "enflame")  # fmt: skip


class FlagGemsUnavailable(DispatchError, ImportError):
    """FlagGems, or one of its functions, cannot be used in this process."""


@dataclass(frozen=True)
class _Outcome:
    module: Any
    verdict: Verdict


_lock = ForkLock()
_outcome: _Outcome | None = None


def load() -> Any:
    """The module `flag_gems`. Call it when the device of this process is set.

    Raises:
        FlagGemsUnavailable: with the reason, the same one at every call.
    """
    global _outcome
    with _lock:
        if _outcome is None:
            _outcome = _attempt()
    if not _outcome.verdict:
        raise FlagGemsUnavailable(_outcome.verdict.reason)
    return _outcome.module


def outcome() -> Verdict | None:
    """What `load` found in this process; None before it was called."""
    return None if _outcome is None else _outcome.verdict


def function(name: str, cheap: str | None = None) -> Any:
    """A function of FlagGems.

    Args:
        name: its public name. Overrides of a vendor replace functions under this name only.
        cheap: ``module:name`` of an entry that does the same with less (no autograd); taken
            where no vendor overrides the public one.

    Raises:
        FlagGemsUnavailable: flag-gems cannot be loaded, or has no such function.
    """
    gems = load()
    public = getattr(gems, name, None)
    if cheap is not None:
        module_name, _, entry = cheap.partition(":")
        overridden = public is not None and getattr(public, "__module__", "") != module_name
        if not overridden:
            # Attributes of a package are shadowed by functions of the same name.
            with contextlib.suppress(ImportError):
                public = getattr(importlib.import_module(module_name), entry, public)
    if public is None:
        raise FlagGemsUnavailable(f"the installed flag-gems {version()} has no function {name}")
    return public


def version() -> str:
    """The version of the loaded library."""
    return str(getattr(load(), "__version__", "unknown"))


def _attempt() -> _Outcome:
    try:
        vendor, said_by = device_vendor()
        return _Outcome(_imported(vendor, said_by), Verdict.yes())
    except FlagGemsUnavailable as error:
        return _Outcome(None, Verdict.no(str(error)))
    # Seen so far: RuntimeError, AssertionError, AttributeError, TypeError, ImportError.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        reason = f"import flag_gems raised {type(error).__name__}: {str(error).strip()}"
        return _Outcome(None, Verdict.no(reason))


def device_vendor() -> tuple[str, str]:
    """(vendor as flag-gems calls it, who says so).

    Raises:
        FlagGemsUnavailable: no device, or one that flag-gems has no backend for, or GEMS_VENDOR
            says something else.
    """
    said = [
        (spec.vendor, f"the device that {record.source.origin} describes")
        for record, spec in devices(get_default_manager().records)
    ]
    node = node_vendor()
    if node is not None:
        said.append((node, "the device nodes"))
    wanted = os.environ.get("GEMS_VENDOR")
    found = next((each for each in said if each[0] in VENDORS), None)
    if found is None and wanted in VENDORS:
        return str(wanted), "GEMS_VENDOR"
    if found is None:
        others = ", ".join(f"{vendor} ({by})" for vendor, by in said) or "none"
        raise FlagGemsUnavailable(
            f"no device that flag-gems has a backend for; found: {others}; "
            f"it has {', '.join(VENDORS)}"
        )
    vendor, said_by = found
    if wanted is not None and wanted != vendor:
        raise FlagGemsUnavailable(
            f"GEMS_VENDOR={wanted!r}, but {said_by} is {vendor!r}: unset it or correct it"
        )
    return vendor, said_by


def _imported(vendor: str, said_by: str) -> Any:
    installed = library_installed()
    if not installed:
        raise FlagGemsUnavailable(installed.reason)
    before = {name for name in sys.modules if name.partition(".")[0] == "flag_gems"}
    if before and "flag_gems" not in before:
        raise FlagGemsUnavailable("an earlier import of flag_gems failed in this process")
    if not before:
        containment.keep_patches_out()
    with containment.contained(containment.settings(vendor)):
        gems = importlib.import_module("flag_gems")
        # Read once by flag-gems and kept: the settings above must still be there.
        importlib.import_module("flag_gems.utils.code_cache").code_cache_dir()
    _complete_launches()
    found = getattr(gems, "vendor_name", None)
    if found != vendor:
        raise FlagGemsUnavailable(
            f"flag_gems was set up for {found!r} before, but {said_by} is {vendor!r}"
        )
    _require_device(gems)
    logger.info("flag-gems %s for %s", getattr(gems, "__version__", "?"), vendor)
    return gems


def _require_device(gems: Any) -> None:
    """It can be imported for a device that torch does not see."""
    device = getattr(getattr(gems, "runtime", None), "device", None)
    if not getattr(device, "device_count", 1):
        raise FlagGemsUnavailable(
            f"torch sees no device: torch.{getattr(device, 'name', '?')}.device_count() is 0"
        )


def _complete_launches() -> None:
    """Let flag-gems' launcher pass all arguments on Triton 3.7 too.

    It passes those that are compile-time constants only to the releases that it knows, up to 3.6;
    3.7 reads them as well, by position and without a check.
    """
    launcher = sys.modules.get("flag_gems.utils.libentry")
    if getattr(launcher, "minor_version", 0) == 7:
        launcher.minor_version = 6  # type: ignore[union-attr]  # a module here
