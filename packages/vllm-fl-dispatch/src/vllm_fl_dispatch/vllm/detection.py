"""Whether vLLM runs on `PlatformFL` in this process, and for which device."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.config import environment
from vllm_fl_dispatch.logger_manager import get_logger
from vllm_fl_dispatch.platforms import devices
from vllm_fl_dispatch.types import DeviceSpec
from vllm_fl_dispatch.vllm import compat_platform

logger = get_logger(__name__)

#: Platforms of vLLM that are nothing without vLLM's own compiled extension modules.
NEED_KERNELS = frozenset({"cuda", "rocm", "cpu"})
KERNEL_FILES = ("_C*.so", "_rocm_C*.so", "_C*.pyd")


@cache
def device() -> DeviceSpec | None:
    """The device that `PlatformFL` is made for; None where vLLM has a better platform.

    In this order: another out-of-tree platform that claims the machine stays alone; a device that
    `VLLM_FL_PLATFORM` names is taken; a platform of vLLM's own that can run here stays; the first
    device that a backend describes is taken, the host's processor last.
    """
    if not environment.enabled():
        return None
    rival = compat_platform.rival_platform()
    if rival is not None:
        logger.info("the platform plugin %s claims this machine: PlatformFL stands aside", rival)
        return None
    manager = get_default_manager()
    manager.ensure_built()
    known = sorted(
        (spec for _, spec in devices(manager.records)), key=lambda spec: spec.platform == "cpu"
    )
    wanted = (environment.read("VLLM_FL_PLATFORM") or "").strip().lower()
    asked = next((spec for spec in known if spec.platform == wanted), None)
    if asked is None and own_platform() is not None:
        return None
    return asked or next(iter(known), None)


def own_platform() -> str | None:
    """The platform of vLLM's own that can run here, by its name in vLLM."""
    compiled = has_kernels()
    for name in compat_platform.own_platforms():
        if compiled or name not in NEED_KERNELS:
            return name
    return None


def has_kernels() -> bool:
    """Does the installed vLLM carry compiled kernels? Looked up, not imported."""
    spec = importlib.util.find_spec("vllm")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return any(next(Path(f).glob(pattern), None) for f in folders for pattern in KERNEL_FILES)
