"""`PlatformFL`: vLLM on a device for which it has no compiled kernels.

A refinement of the class that vLLM has for this type of device, or of its general one; what the
device needs is data of the backend that describes it (`DeviceSpec`). vLLM's enumeration has one
word for platforms of others, ``OOT``, and with it vLLM leaves out its own compiled operators.

Importing this module makes the class for the device of this process.
"""

from __future__ import annotations

from typing import Any

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.types import DeviceSpec
from vllm_fl_dispatch.vllm import attention, compat, compat_platform, detection, device_check
from vllm_fl_dispatch.vllm.generic_device import GenericDevice

WORKER = "vllm_fl_dispatch.vllm.worker.WorkerFL"


class Refined:
    """What `PlatformFL` does differently from the class of vLLM that it refines."""

    fl_device: DeviceSpec

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, *_: Any, **__: Any
    ) -> str:
        """The selector decides; there is no attention of the platform's own."""
        return attention.choose(get_default_manager(), selected_backend, attn_selector_config)

    @classmethod
    def get_mla_prefill_backend_cls(cls, *_: Any, **__: Any) -> Any:
        """Every MLA layer has one, used or not; vLLM's in torch needs no kernels."""
        return compat_platform.mla_prefill_in_torch()

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        if vllm_config.parallel_config.worker_cls == "auto":
            vllm_config.parallel_config.worker_cls = WORKER
        with compat_platform.mla_without_limits(vllm_config):
            super().check_and_update_config(vllm_config)  # type: ignore[misc]  # of vLLM's class
        compat_platform.switch_off_fusions(vllm_config)

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        return "vllm_fl_dispatch.vllm.passes.PassManagerFL"

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Attention depends on lengths, so no compiler looks into it."""
        return True

    @classmethod
    def import_kernels(cls) -> None:
        """There are none."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Same; vLLM's own torch code serves its intermediate operators."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Same; the worker replaces the one kernel that every model needs."""


def platform_for(spec: DeviceSpec) -> type:
    """The class of vLLM's platform for a device."""
    from vllm.platforms.interface import Platform, PlatformEnum

    device_check.check(spec)
    with compat_platform.stand_ins_for_kernels():
        base = compat.import_path(spec.platform_class.replace(":", "."))
    compat_platform.prepare(spec)
    generic = (GenericDevice,) if base is Platform else ()
    return type(
        "PlatformFL",
        (Refined, *generic, base),
        {
            "__module__": __name__,
            "_enum": PlatformEnum.OOT,
            "fl_device": spec,
            # torch.device is made from the name.
            "device_name": spec.device_type,
            "device_type": spec.device_type,
            "dispatch_key": spec.dispatch_key,
            "dist_backend": spec.communication_backend,
            "device_control_env_var": spec.visible_devices_variable,
        },
    )


_device = detection.device()
if _device is None:
    raise ImportError(f"{__name__} was imported where PlatformFL stands aside")
PlatformFL = platform_for(_device)
