"""What vLLM calls: the general plugin ``fl``, and the platform plugin of the same name."""

from __future__ import annotations


def register() -> None:
    """Entry point of group ``vllm.general_plugins``; runs once in each process of vLLM.

    vLLM does not protect itself from an exception in here, so nothing leaves this function: a
    fault is logged, with its traceback unless it is an error of ours, and vLLM goes on as if we
    were not installed. Who sets `VLLM_FL_STRICT` asked for the opposite and gets the exception.
    """
    try:
        from vllm_fl_dispatch.vllm.plugin import activate

        activate()
    except Exception as error:  # noqa: BLE001  # see above
        _say_or_raise(error, "vllm-fl is inactive in this process: vLLM runs as without it")


def find_platform() -> str | None:
    """Entry point of group ``vllm.platform_plugins``: the path of `PlatformFL`, or None.

    vLLM calls it twice, when something first asks for the platform. It would drop an exception
    without a word and serve on another device; so a fault is logged here.
    """
    try:
        from vllm_fl_dispatch.vllm.detection import device

        if device() is None:
            return None
        # What cannot be imported must show now, not when vLLM has chosen us.
        import vllm_fl_dispatch.vllm.platform
    except Exception as error:  # noqa: BLE001  # see above
        _say_or_raise(error, "vllm-fl offers no platform in this process")
        return None
    return f"{vllm_fl_dispatch.vllm.platform.__name__}.PlatformFL"


def _say_or_raise(error: Exception, message: str) -> None:
    import os

    from vllm_fl_dispatch.errors import DispatchError
    from vllm_fl_dispatch.logger_manager import get_logger

    if os.environ.get("VLLM_FL_STRICT", "").strip().lower() in ("1", "true", "yes", "on"):
        raise error
    # An error of ours says what to change; where it was raised helps nobody.
    trace = None if isinstance(error, DispatchError) else error
    get_logger(__name__).error("%s: %s", message, error, exc_info=trace)
