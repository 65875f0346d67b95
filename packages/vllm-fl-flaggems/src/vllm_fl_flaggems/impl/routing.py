"""Which experts serve which token, and in which order their rows are computed."""

from __future__ import annotations

import torch

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.ops.alignment import aligned_sizes
from vllm_fl_flaggems import library
from vllm_fl_flaggems.impl.limits import on_known_ground
from vllm_fl_flaggems.probe import on_accelerator

#: `topk_softmax` looks at the first 1024 experts, without a word about the others.
MAX_EXPERTS = 1024
MAX_TOPK = 32
MAX_GROUPS = 32


def supports(query: Query) -> Verdict:
    """Sizes that the kernels handle, as far as they are known."""
    experts, topk = query.get("num_experts"), query.get("topk")
    for what, size, limit in (("experts", experts, MAX_EXPERTS), ("topk", topk, MAX_TOPK)):
        if size is not None and size > limit:
            return Verdict.no(f"{what} {size}, at most {limit}")
    # The dtype of `moe_align_block_size` is that of ids.
    by_dtype = query.op_name != "moe_align_block_size"
    return on_known_ground(query) if by_dtype else on_accelerator(query)


def make_topk_softmax() -> Call:
    """`topk_softmax`; without a bias for the choice."""
    kernel = library.function("topk_softmax")

    def topk_softmax(
        gating_output: torch.Tensor, topk: int, renormalize: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, experts = gating_output.shape
        if experts > MAX_EXPERTS or topk > MAX_TOPK:
            raise OpNotSupported(f"{experts} experts, topk {topk}")
        weights = gating_output.new_empty(rows, topk, dtype=torch.float32)
        ids = gating_output.new_empty(rows, topk, dtype=torch.int32)
        if rows:
            # It writes row numbers as well.
            kernel(weights, ids, torch.empty_like(ids), gating_output.contiguous(), renormalize)
        return weights, ids

    return topk_softmax


def make_grouped_topk() -> Call:
    """`grouped_topk` with a bias; without one it is the best expert that ranks a group, and the
    kernel takes the best two."""
    kernel = library.function("grouped_topk")

    def grouped_topk(
        gating_output: torch.Tensor,
        topk: int,
        renormalize: bool,
        num_expert_group: int,
        topk_group: int,
        scoring_func: str = "softmax",
        *,
        routed_scaling_factor: float = 1.0,
        e_score_correction_bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if scoring_func not in ("softmax", "sigmoid"):
            raise ValueError(
                f"scoring_func={scoring_func!r} is not accepted; accepted: softmax, sigmoid"
            )
        if e_score_correction_bias is None:
            raise OpNotSupported("it needs e_score_correction_bias")
        # It chooses a power of two; the best of them come first.
        chosen = power_of_two(topk)
        left = topk_group * gating_output.shape[-1] // num_expert_group
        if chosen > min(MAX_TOPK, left) or num_expert_group > MAX_GROUPS:
            raise OpNotSupported(f"topk {topk} of {left}, {num_expert_group} groups")
        if not gating_output.numel():
            empty = gating_output.new_empty((0, topk), dtype=torch.float32)
            return empty, empty.to(torch.int32)
        # Its own sigmoid computes in the input's dtype.
        wide = gating_output.float()
        scores = wide.softmax(-1) if scoring_func == "softmax" else wide.sigmoid()
        weights, ids = kernel(
            scores,
            num_expert_group,
            topk_group,
            chosen,
            renormalize and chosen == topk,
            routed_scaling_factor if chosen == topk else 1.0,
            e_score_correction_bias.float().contiguous(),
        )
        if chosen == topk:
            return weights, ids
        weights, ids = weights[:, :topk], ids[:, :topk].contiguous()
        scale = weights.sum(-1, keepdim=True) if renormalize else 1.0
        return weights / scale * routed_scaling_factor, ids

    return grouped_topk


def make_moe_align_block_size() -> Call:
    """`moe_align_block_size`; rows of other ranks' experts are counted, never left out."""
    kernel = library.function("moe_align_block_size_triton")

    def moe_align_block_size(
        topk_ids: torch.Tensor,
        block_size: int,
        num_experts: int,
        *,
        expert_map: torch.Tensor | None = None,
        pad_sorted_ids: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        rows = topk_ids.numel()
        size, blocks = aligned_sizes(rows, block_size, num_experts, pad_sorted_ids)
        # The kernel is compiled for the sizes of what it fills: powers of two are few.
        sorted_ids = topk_ids.new_empty(power_of_two(size), dtype=torch.int32)
        # Blocks that are not meant are read through the map below: they must be indices.
        expert_ids = topk_ids.new_zeros(power_of_two(blocks), dtype=torch.int32)
        count = topk_ids.new_empty(1, dtype=torch.int32)
        if not rows:
            return sorted_ids[:0], expert_ids[:0], count.zero_()
        kernel(topk_ids.contiguous(), num_experts, block_size, sorted_ids, expert_ids, count)
        experts = expert_ids[:blocks]
        return sorted_ids[:size], experts if expert_map is None else expert_map[experts], count

    return moe_align_block_size


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
