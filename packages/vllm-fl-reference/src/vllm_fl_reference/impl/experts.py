"""Mixture-of-experts layers in plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch.nn import functional

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_dispatch.ops.alignment import aligned_sizes
from vllm_fl_reference.impl.activation import gelu_and_mul, silu_and_mul

#: `activation` of `fused_experts` -> the gated activation
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu_and_mul,
    "gelu": gelu_and_mul,
    "gelu_tanh": lambda x: gelu_and_mul(x, "tanh"),
}


def moe_align_block_size(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    *,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the contract of `moe_align_block_size`; without a host synchronization."""
    ids, rows = topk_ids.flatten().long(), topk_ids.numel()
    length, blocks = aligned_sizes(rows, block_size, num_experts, pad_sorted_ids)
    # One more bucket, for rows that are left out.
    if expert_map is not None and ignore_invalid_experts:
        ids = expert_map.long()[ids]
        ids = torch.where(ids < 0, num_experts, ids)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, ids, torch.ones_like(ids))
    kept = counts[:num_experts]
    ends = (-(-kept // block_size) * block_size).cumsum(0)
    starts = functional.pad(ends, (1, 0))
    order = ids.argsort(stable=True)
    expert_of_row = ids[order]
    first = functional.pad(counts.cumsum(0), (1, 0))[expert_of_row]
    slot = starts[expert_of_row] + torch.arange(rows, device=ids.device) - first
    # Left-out rows go behind everything that is meant; the last entry is cut off again.
    slot = torch.where(expert_of_row == num_experts, length, slot)
    sorted_ids = torch.full((length + 1,), rows, dtype=torch.int32, device=ids.device)
    sorted_ids[slot] = order.to(torch.int32)
    begins = torch.arange(blocks, device=ids.device) * block_size
    expert_ids = torch.searchsorted(ends, begins, right=True).clamp(max=num_experts - 1)
    if expert_map is not None and not ignore_invalid_experts:
        expert_ids = expert_map[expert_ids]
    return sorted_ids[:length].contiguous(), expert_ids.to(torch.int32), ends[-1:].to(torch.int32)


def moe_sum(x: torch.Tensor) -> torch.Tensor:
    """See the contract of `moe_sum`."""
    return x.sum(dim=1, dtype=torch.float32).to(x.dtype)


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
    """See the contract of `fused_experts`.

    One pass per expert that has tokens; the host learns which these are, so a stream that is
    being captured cannot run it.
    """
    if activation not in ACTIVATIONS:
        accepted = ", ".join(ACTIVATIONS)
        raise OpNotSupported(f"activation={activation!r}; accepted: {accepted}")
    act, topk = ACTIVATIONS[activation], topk_ids.shape[-1]
    ids = topk_ids.flatten().long()
    if expert_map is not None:
        ids = expert_map.long()[ids]
    order = ids.argsort(stable=True)
    # The bucket in front is that of experts of other ranks, marked -1.
    counts = torch.bincount(ids + 1, minlength=w1.shape[0] + 1).tolist()
    total = torch.zeros(hidden_states.shape, dtype=torch.float32, device=hidden_states.device)
    weights = topk_weights.flatten().float().unsqueeze(-1)
    starts = [0, *itertools.accumulate(counts)]
    for expert in range(w1.shape[0]):
        rows = order[starts[expert + 1] : starts[expert + 2]]
        if not rows.numel():
            continue
        tokens = rows // topk
        x = hidden_states[tokens]
        if apply_router_weight_on_input:
            x = (x * weights[rows]).to(x.dtype)
        out = functional.linear(act(functional.linear(x, w1[expert])), w2[expert])
        if not apply_router_weight_on_input:
            out = out * weights[rows]
        total.index_add_(0, tokens, out.float())
    return total.to(hidden_states.dtype)
