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
import io
import os
import re
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_fl_dispatch import DispatchError, Verdict, get_default_manager, get_logger
from vllm_fl_dispatch.platforms import devices
from vllm_fl_flaggems.probe import library_installed, node_vendor, triton_version

logger = get_logger(__name__)

#: The vendors that flag-gems knows; it ignores any other value of GEMS_VENDOR in silence.
VENDORS = ("nvidia", "cambricon", "metax", "iluvatar", "mthreads", "kunlunxin", "hygon", "amd",
           "aipu", "ascend", "tsingmicro", "sunrise", "enflame")  # fmt: skip
PATCHES = "flag_gems.patches"


class FlagGemsUnavailable(DispatchError, ImportError):
    """FlagGems, or one of its functions, cannot be used in this process."""


@dataclass(frozen=True)
class _Outcome:
    module: Any
    verdict: Verdict


_lock = threading.Lock()
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
        stub = types.ModuleType(PATCHES)
        stub.__all__ = []  # type: ignore[attr-defined]  # what `import *` takes from it
        sys.modules[PATCHES] = stub
    with _contained(_settings(vendor)):
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


def _settings(vendor: str) -> dict[str, str | None]:
    """Environment variables during the import; None: unset."""
    folder = os.environ.get("FLAGGEMS_CACHE_DIR") or str(Path.home() / ".flaggems")
    try:
        Path(folder, "config_cache").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        # Private, because code is read back from it.
        folder = tempfile.mkdtemp(prefix="vllm-fl-flaggems-")
        Path(folder, "config_cache").mkdir()
        logger.warning("%s: flag-gems keeps its files in %s, set FLAGGEMS_CACHE_DIR", error, folder)
    database = Path(folder, "config_cache", f"tuned_{_device_name()}_rank{_rank()}.db")
    return {
        "GEMS_VENDOR": vendor,
        "FLAGGEMS_CACHE_DIR": folder,
        "FLAGGEMS_DB_URL": os.environ.get("FLAGGEMS_DB_URL") or f"sqlite:///{database}",
        # Set by flag-gems for its C++ extension.
        "FLAGGEMS_SOURCE_DIR": os.environ.get("FLAGGEMS_SOURCE_DIR"),
        # Its tables are not in the wheel: the import would fail.
        "USE_FLAGTUNE": None,
    }


def _rank() -> int:
    import torch

    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


def _device_name() -> str:
    """The chip and the Triton that tuning results hold for."""
    import torch

    present = torch.accelerator.is_available()
    accelerator = torch.accelerator.current_accelerator() if present else None
    module = getattr(torch, accelerator.type, None) if accelerator else None
    name = getattr(module, "get_device_name", lambda: "unknown")()
    return re.sub(r"\W+", "_", f"{name} triton {triton_version()}")


@contextlib.contextmanager
def _contained(settings: Mapping[str, str | None]) -> Iterator[None]:
    """Environment, search path and stdout are afterwards what they were before."""
    saved = {name: os.environ.get(name) for name in settings}
    path = list(sys.path)
    said = io.StringIO()
    try:
        _set_environment(settings)
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            # Of Triton's autotuner, about arguments that flag-gems passes.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        _set_environment(saved)
        sys.path[:] = path
        for line in said.getvalue().splitlines():
            logger.debug("flag-gems: %s", line)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
