"""What vLLM asks of a device, answered by its torch module (`torch.cuda`, `torch_npu.npu` ...)."""

from __future__ import annotations

import importlib
from typing import Any

from vllm_fl_dispatch.types import DeviceSpec


class GenericDevice:
    """Mixed into `PlatformFL` for devices of which vLLM has no class of its own."""

    fl_device: DeviceSpec

    @classmethod
    def fl_module(cls) -> Any:
        """The torch module of the device; imported when first needed."""
        return importlib.import_module(cls.fl_device.torch_module)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return str(cls.fl_module().get_device_name(device_id))

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """In bytes."""
        return int(cls.fl_module().get_device_properties(device_id).total_memory)

    @classmethod
    def get_current_memory_usage(cls, device: Any = None) -> float:
        """In bytes, the most since the last question."""
        module = cls.fl_module()
        module.reset_peak_memory_stats(device)
        return float(module.max_memory_allocated(device))

    @classmethod
    def set_device(cls, device: Any) -> None:
        cls.fl_module().set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        cls.fl_module().manual_seed_all(seed)

    @classmethod
    def check_if_supports_dtype(cls, dtype: Any) -> None:
        """What an implementation cannot do it says itself."""

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """The reference keeps no cache of its own per layer."""
