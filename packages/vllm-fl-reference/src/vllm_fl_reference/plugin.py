"""What this backend registers: a table."""

from __future__ import annotations

from vllm_fl_dispatch import (
    BackendImplKind,
    DeviceSpec,
    OpImpl,
    Registrar,
    Verdict,
    hookimpl,
    probing,
)
from vllm_fl_dispatch.errors import OpNotSupported

vllm_fl_api = 1

#: operator -> module of `impl/` that has a function of that name
OPERATORS = {
    "silu_and_mul": "activation",
    "gelu_and_mul": "activation",
    "silu_and_mul_with_clamp": "activation",
    "rms_norm": "normalization",
    "fused_add_rms_norm": "normalization",
    "rotary_embedding": "rotary",
    "topk_softmax": "routing",
    "grouped_topk": "routing",
    "moe_align_block_size": "experts",
    "moe_sum": "experts",
    "fused_experts": "experts",
    "dynamic_per_token_quant_int8": "quantization",
}
#: Which experts have tokens decides what runs: nothing that a compiler could trace.
UNTRACEABLE = {"fused_experts"}
#: How a product of matrices is summed depends on the number of rows; and one row of a gate has its
#: gelu computed by other code of torch than the rows of a slice, on the CPU.
NOT_BATCH_INVARIANT = {"fused_experts", "gelu_and_mul"}

#: What every machine has.
DEVICE = DeviceSpec(
    platform="cpu",
    device_type="cpu",
    vendor="cpu",
    dispatch_key="CPU",
    torch_module="torch.cpu",
    communication_backend="gloo",
    visible_devices_variable="CPU_VISIBLE_MEMORY_NODES",
    platform_class="vllm.platforms.cpu:CpuPlatform",
    worker_class="vllm.v1.worker.cpu_worker:CPUWorker",
)


def torch_installed() -> Verdict:
    """Is torch there? Looked up, not imported."""
    return probing.module_installed("torch", "pip install torch")


def attention_backend(use_mla: bool = False, use_sparse: bool = False) -> str:
    """The class of vLLM's attention backends; see the selector of this name."""
    if use_sparse:
        raise OpNotSupported("the reference has no sparse attention")
    if use_mla:
        return "vllm_fl_reference.vllm.mla.ReferenceMLABackend"
    return "vllm_fl_reference.vllm.attention.ReferenceAttentionBackend"


@hookimpl
def vllm_fl_device() -> DeviceSpec:
    """The processor of the host: what is left where no backend finds a device."""
    return DEVICE


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """One implementation of each operator, through torch, and the attention of vLLM's layers."""
    registrar.add(
        OpImpl(
            "attention_backend",
            "reference.torch",
            BackendImplKind.REFERENCE,
            attention_backend,
            installed=torch_installed,
        )
    )
    registrar.add_many(
        OpImpl(
            op_name,
            "reference.torch",
            BackendImplKind.REFERENCE,
            f"vllm_fl_reference.impl.{module}:{op_name}",
            installed=torch_installed,
            empty_ok=True,
            traceable=op_name not in UNTRACEABLE,
            batch_invariant=op_name not in NOT_BATCH_INVARIANT,
        )
        for op_name, module in OPERATORS.items()
    )
