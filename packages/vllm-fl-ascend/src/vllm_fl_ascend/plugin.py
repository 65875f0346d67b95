"""What this backend registers: a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vllm_fl_ascend.probe import device_present, library_installed
from vllm_fl_dispatch import (
    BackendImplKind,
    DeviceSpec,
    OpImpl,
    OpNotSupported,
    Registrar,
    hookimpl,
)

vllm_fl_api = 1
CONFIG = Path(__file__).parent / "config"

#: operator -> module of `impl/` with its `make_<operator>` and `supports_<operator>`
OPERATORS = {
    "silu_and_mul": "activation",
    "gelu_and_mul": "activation",
    "silu_and_mul_with_clamp": "activation",
    "rms_norm": "normalization",
    "fused_add_rms_norm": "normalization",
    "rotary_embedding": "rotary",
    "topk_softmax": "routing",
    "grouped_topk": "routing",
    "moe_sum": "experts",
    "fused_experts": "experts",
    "dynamic_per_token_quant_int8": "quantization",
}

DEVICE = DeviceSpec(
    platform="ascend",
    device_type="npu",
    vendor="ascend",
    dispatch_key="PrivateUse1",
    torch_module="torch_npu.npu",
    communication_backend="hccl",
    visible_devices_variable="ASCEND_RT_VISIBLE_DEVICES",
)


def attention_backend(
    use_mla: bool = False, use_sparse: bool = False, *, has_sink: bool = False
) -> str:
    """The class of vLLM's attention backends; see the selector of this name.

    Raises:
        OpNotSupported: the kernels do not have what is asked for.
    """
    wanted = {"MLA": use_mla, "sparse attention": use_sparse, "sinks": has_sink}
    missing = [what for what, asked in wanted.items() if asked]
    if missing:
        raise OpNotSupported(f"the attention of vllm-fl-ascend has no {', '.join(missing)}")
    return "vllm_fl_ascend.vllm.attention.AscendAttentionBackend"


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """torch_npu's operators, and the attention of vLLM's layers."""
    registrar.add(
        OpImpl(
            "attention_backend",
            "vendor.ascend",
            BackendImplKind.VENDOR,
            attention_backend,
            "ascend",
            installed=library_installed,
            available=device_present,
            device_types=(DEVICE.device_type,),
        )
    )
    registrar.add_many(
        OpImpl(
            op_name,
            "vendor.ascend",
            BackendImplKind.VENDOR,
            vendor="ascend",
            load=f"vllm_fl_ascend.impl.{module}:make_{op_name}",
            installed=library_installed,
            available=device_present,
            device_types=(DEVICE.device_type,),
            supports=f"vllm_fl_ascend.impl.{module}:supports_{op_name}",
            empty_ok=True,
        )
        for op_name, module in OPERATORS.items()
    )


@hookimpl
def vllm_fl_device() -> DeviceSpec | None:
    """The Ascend NPU, where there is one."""
    return DEVICE if device_present() else None


@hookimpl
def vllm_fl_platform_config(platform: str) -> Path | None:
    """The defaults for this platform."""
    return CONFIG / f"{platform}.yaml" if platform == DEVICE.platform else None


@hookimpl
def vllm_fl_diagnose() -> Iterable[str]:
    """Library and device, each with its reason."""
    for what, verdict in (("torch_npu", library_installed()), ("Ascend NPU", device_present())):
        yield f"{what}: {'found' if verdict else verdict.reason}"
