"""The worker of `PlatformFL`: vLLM's own for the device, without its compiled operators."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from vllm_fl_dispatch.vllm import compat, compat_platform, detection

_device = detection.device()
if _device is None:
    raise ImportError(f"{__name__} was imported where PlatformFL stands aside")
_Base: Any = compat.import_path(_device.worker_class.replace(":", "."))


class WorkerFL(_Base):  # type: ignore[misc]  # a class of vLLM
    """One rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        compat_platform.replace_slot_mapping()
        compat_platform.replace_weak_references()
        with compat_platform.without_memory_binding():
            super().__init__(*args, **kwargs)

    def compile_or_warm_up_model(self) -> Any:
        """Compile, run and capture the model; kernels of vLLM's own there are none to warm up."""
        with compat_platform.without_kernel_warmup():
            return super().compile_or_warm_up_model()

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        """Sleep mode needs an allocator that is compiled into vLLM."""
        return nullcontext()
