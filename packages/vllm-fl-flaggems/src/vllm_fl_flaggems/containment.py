"""What the import of flag_gems would do to the process, kept inside it."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

from vllm_fl_dispatch import get_logger
from vllm_fl_flaggems.probe import triton_version

logger = get_logger(__name__)
PATCHES = "flag_gems.patches"


def keep_patches_out() -> None:
    """Put an empty module in the place of flag-gems' patches of vLLM.

    They run at import, and end the process where they and vLLM load the same extension. The module
    stays: a later import of them would do the same.
    """
    stub = types.ModuleType(PATCHES)
    stub.__all__ = []  # type: ignore[attr-defined]  # what `import *` takes from it
    sys.modules[PATCHES] = stub


def settings(vendor: str) -> dict[str, str | None]:
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
def contained(settings: Mapping[str, str | None]) -> Iterator[None]:
    """Environment, search path and stdout are afterwards what they were before."""
    saved = {name: os.environ.get(name) for name in settings}
    path = list(sys.path)
    said = io.StringIO()
    warned: list[warnings.WarningMessage] = []
    try:
        _set_environment(settings)
        with contextlib.redirect_stdout(said), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield
    finally:
        _set_environment(saved)
        sys.path[:] = path
        for line in [*said.getvalue().splitlines(), *(str(each.message) for each in warned)]:
            logger.debug("flag-gems: %s", line)


def _set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
