"""What vLLM calls: the general plugin ``fl_flaggems``, for ATen operators only."""

from __future__ import annotations

import functools
import os
from typing import Any


def register() -> None:
    """Entry point of group ``vllm.general_plugins``; runs once in each process of vLLM.

    vLLM does not protect itself from an exception in here, so nothing leaves this function, unless
    `VLLM_FL_STRICT` asks for it.
    """
    from vllm_fl_dispatch import get_default_manager, get_logger
    from vllm_fl_dispatch.config import environment

    try:
        manager = get_default_manager()
        if environment.enabled():
            manager.ensure_built()
            if manager.policy.flagos_aten:
                install()
    except Exception:  # see above
        if os.environ.get("VLLM_FL_STRICT", "").strip().lower() in ("1", "true", "yes", "on"):
            raise
        get_logger(__name__).exception("flagos_aten is not in force in this process")


def install() -> None:
    """Let vLLM's workers replace ATen operators when their device is set. Idempotent."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    own = WorkerWrapperBase.init_device
    if getattr(own, "fl_aten", False):
        return

    @functools.wraps(own)
    def init_device(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        replace()
        return result

    init_device.fl_aten = True  # type: ignore[attr-defined]  # the mark
    WorkerWrapperBase.init_device = init_device


def replace() -> None:
    """Replace what the policy names; what fails is said, and raised where it is strict."""
    from vllm_fl_dispatch import get_default_manager, get_logger
    from vllm_fl_flaggems import aten, library

    policy = get_default_manager().policy
    try:
        aten.apply(policy)
    except library.FlagGemsUnavailable as error:
        if policy.strict:
            raise
        get_logger(__name__).error("flagos_aten is not in force: %s", error)
