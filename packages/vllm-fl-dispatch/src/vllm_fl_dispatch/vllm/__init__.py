"""What vLLM calls: the general plugin ``fl``."""

from __future__ import annotations


def register() -> None:
    """Entry point of group ``vllm.general_plugins``; runs once in each process of vLLM.

    vLLM does not protect itself from an exception in here, so nothing leaves this function: a
    fault is logged with its traceback and vLLM goes on as if we were not installed. Who sets
    `VLLM_FL_STRICT` asked for the opposite and gets the exception.
    """
    import os

    from vllm_fl_dispatch.logger_manager import get_logger

    try:
        from vllm_fl_dispatch.vllm.plugin import activate

        activate()
    except Exception:  # see above
        if os.environ.get("VLLM_FL_STRICT", "").strip().lower() in ("1", "true", "yes", "on"):
            raise
        get_logger(__name__).exception(
            "vllm-fl is inactive in this process: vLLM runs as without it"
        )
