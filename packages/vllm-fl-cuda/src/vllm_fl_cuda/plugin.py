"""What this backend registers: a table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vllm_fl_cuda.probe import device_present, operators_installed
from vllm_fl_dispatch import (
    BackendImplKind,
    DeviceSpec,
    OpImpl,
    Registrar,
    hookimpl,
    probing,
)
from vllm_fl_dispatch.errors import OpNotSupported

vllm_fl_api = 1
CONFIG = Path(__file__).parent / "config"

#: operator -> (module of `impl/`, what else is known about the implementation)
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "silu_and_mul": ("activation", {}),
    "gelu_and_mul": ("activation", {}),
    "silu_and_mul_with_clamp": ("activation", {}),
    "rms_norm": ("normalization", {}),
    "fused_add_rms_norm": (
        "normalization",
        {
            "mutates": ("x", "residual"),
            "load_functional": (
                "vllm_fl_cuda.impl.normalization:make_functional_fused_add_rms_norm"
            ),
        },
    ),
    "rotary_embedding": ("rotary", {"mutates": ("query", "key")}),
    "topk_softmax": ("routing", {}),
    "grouped_topk": ("routing", {}),
    "moe_align_block_size": ("experts", {}),
    "moe_sum": ("experts", {}),
    "fused_experts": ("experts", {}),
    "dynamic_per_token_quant_int8": ("quantization", {}),
}
#: Modules of `impl/` with a `supports` of their own.
PARTIAL = ("experts", "normalization", "rotary", "routing")

DEVICE = DeviceSpec(
    platform="cuda",
    device_type="cuda",
    vendor="nvidia",
    dispatch_key="CUDA",
    torch_module="torch.cuda",
    communication_backend="nccl",
    visible_devices_variable="CUDA_VISIBLE_DEVICES",
    platform_class="vllm.platforms.cuda:CudaPlatform",
)


def attention_backend(use_mla: bool = False, use_sparse: bool = False) -> str:
    """vLLM's attention in Triton, which needs none of its compiled operators.

    Its latent attention does: the cache is written by one.
    """
    if use_mla or use_sparse:
        raise OpNotSupported("Triton serves neither MLA nor sparse attention here")
    return "vllm.v1.attention.backends.triton_attn.TritonAttentionBackend"


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """vLLM's compiled operators, and its attention in Triton."""
    registrar.add(
        OpImpl(
            "attention_backend",
            "vendor.cuda",
            BackendImplKind.VENDOR,
            attention_backend,
            "cuda",
            installed=lambda: probing.module_installed("triton"),
            available=device_present,
            device_types=(DEVICE.device_type,),
        )
    )
    registrar.add_many(
        OpImpl(
            op_name,
            "vendor.cuda",
            BackendImplKind.VENDOR,
            vendor="cuda",
            load=f"vllm_fl_cuda.impl.{module}:make_{op_name}",
            installed=operators_installed,
            available=device_present,
            device_types=(DEVICE.device_type,),
            supports=f"vllm_fl_cuda.impl.{module}:supports" if module in PARTIAL else None,
            empty_ok=True,
            **more,
        )
        for op_name, (module, more) in OPERATORS.items()
    )


@hookimpl
def vllm_fl_device() -> DeviceSpec | None:
    """The NVIDIA device, where there is one."""
    return DEVICE if device_present() else None


@hookimpl
def vllm_fl_platform_config(platform: str) -> Path | None:
    """The defaults for this platform."""
    return CONFIG / f"{platform}.yaml" if platform == DEVICE.platform else None


@hookimpl
def vllm_fl_diagnose() -> Iterable[str]:
    """Compiled operators and device, each with its reason."""
    for what, verdict in (
        ("vLLM's compiled operators", operators_installed()),
        ("NVIDIA device", device_present()),
    ):
        yield f"{what}: {'found' if verdict else verdict.reason}"
