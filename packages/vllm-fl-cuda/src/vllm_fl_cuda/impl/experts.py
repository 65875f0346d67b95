"""Mixture-of-experts layers: vLLM's compiled operators, and its Triton experts."""

from __future__ import annotations

import torch

from vllm_fl_cuda.impl.gaps import without_gaps
from vllm_fl_cuda.schema import EXPECTED, caller, compiled_operator, takes_none
from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.ops.alignment import aligned_sizes


def supports(query: Query) -> Verdict:
    """Triton multiplies float32 matrices in tf32, which the contract does not accept."""
    if query.op_name == "fused_experts" and query.dtype == torch.float32:
        return Verdict.no("its matrix products of float32 are of tf32 accuracy")
    return Verdict.yes()


def make_moe_align_block_size() -> Call:
    """`moe_align_block_size` through ``_moe_C::moe_align_block_size``."""
    overload = compiled_operator("_moe_C::moe_align_block_size")
    passed = len(EXPECTED["_moe_C::moe_align_block_size"])
    has_map = takes_none(overload, passed)
    op = caller(overload, passed + has_map)

    def moe_align_block_size(
        topk_ids: torch.Tensor,
        block_size: int,
        num_experts: int,
        *,
        expert_map: torch.Tensor | None = None,
        pad_sorted_ids: bool = False,
        ignore_invalid_experts: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if ignore_invalid_experts and expert_map is not None and not has_map:
            raise OpNotSupported("the compiled operator of this vLLM takes no expert_map")
        rows = topk_ids.numel()
        length, blocks = aligned_sizes(rows, block_size, num_experts, pad_sorted_ids)
        sorted_ids = topk_ids.new_empty((length,), dtype=torch.int32)
        # Blocks that are not meant are read through the map below: their entries must be indices.
        expert_ids = topk_ids.new_zeros((blocks,), dtype=torch.int32)
        count = topk_ids.new_zeros((1,), dtype=torch.int32)
        if rows:
            known = without_gaps(expert_map) if ignore_invalid_experts else None
            kernel_map = (known,) if has_map else ()
            ids = topk_ids.contiguous()
            op(ids, num_experts, block_size, sorted_ids, expert_ids, count, *kernel_map)
        if expert_map is not None and not ignore_invalid_experts:
            expert_ids = expert_map[expert_ids.clamp(0, num_experts - 1)]
        return sorted_ids, expert_ids, count

    return moe_align_block_size


def make_moe_sum() -> Call:
    """`moe_sum` through ``_moe_C::moe_sum``."""
    op = caller(compiled_operator("_moe_C::moe_sum"), len(EXPECTED["_moe_C::moe_sum"]))

    def moe_sum(x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty((x.shape[0], x.shape[-1]))
        if out.numel():
            op(x.contiguous(), out)
        return out

    return moe_sum


def make_fused_experts() -> Call:
    """`fused_experts` through vLLM's function of that name: Triton, tuned for the device."""
    from vllm.model_executor.layers.fused_moe import fused_moe
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation

    kinds = {name: MoEActivation(name) for name in ("silu", "gelu", "gelu_tanh")}

    def fused_experts(
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: str = "silu",
        *,
        apply_router_weight_on_input: bool = False,
        global_num_experts: int = -1,
        expert_map: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if activation not in kinds:
            accepted = ", ".join(kinds)
            raise OpNotSupported(f"activation={activation!r}; accepted: {accepted}")
        if w1.stride(-1) != 1 or w2.stride(-1) != 1:
            raise OpNotSupported("weights whose last dimension is not contiguous")
        if not hidden_states.shape[0]:
            return hidden_states.new_empty(hidden_states.shape)
        result: torch.Tensor = fused_moe.fused_experts(
            hidden_states.contiguous(),
            w1,
            w2,
            topk_weights.contiguous(),
            # Its kernels read 32 bits, whatever the dtype.
            topk_ids.to(torch.int32).contiguous(),
            activation=kinds[activation],
            apply_router_weight_on_input=apply_router_weight_on_input,
            global_num_experts=global_num_experts,
            expert_map=without_gaps(expert_map),
        )
        return result

    return fused_experts
