"""Choosing experts. The kernels return weights in the dtype of their input, so they are given
float32."""

from __future__ import annotations

import torch

from vllm_fl_ascend.library import operator
from vllm_fl_ascend.limits import FLOAT, at_most, dtype_in, within
from vllm_fl_dispatch import Query, Verdict
from vllm_fl_dispatch.handles import Call

MAX_TOPK = 1024
#: Of npu_moe_gating_top_k. Each group is padded to a multiple of 32 experts.
MAX_EXPERTS = 2048
GROUP_ALIGNMENT = 32
NORM_TYPE = {"softmax": 0, "sigmoid": 1}


def supports_topk_softmax(query: Query) -> Verdict:
    """With a correction bias as for one group of `grouped_topk`."""
    grouping = _group_objection(query, 1) if query.get("bias_dtype") else None
    return within(dtype_in(query, FLOAT), at_most(query, "topk", MAX_TOPK), grouping)


def make_topk_softmax() -> Call:
    """`topk_softmax` through npu_moe_gating_top_k_softmax; with a bias, npu_moe_gating_top_k."""
    softmax = operator("npu::npu_moe_gating_top_k_softmax")
    grouped = operator("npu::npu_moe_gating_top_k")

    def topk_softmax(
        gating_output: torch.Tensor,
        topk: int,
        renormalize: bool = False,
        *,
        e_score_correction_bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not gating_output.numel():
            return _empty(gating_output, topk)
        logits = gating_output.float().contiguous()
        if e_score_correction_bias is None:
            weights, ids, _ = softmax(x=logits, k=topk)
        else:
            # The bias decides who is chosen; the weights are those of the scores without it.
            weights, ids, _ = grouped(
                x=logits,
                k=topk,
                bias=e_score_correction_bias.float(),
                k_group=1,
                group_count=1,
                group_select_mode=0,
                renorm=0,
                norm_type=NORM_TYPE["softmax"],
                out_flag=False,
            )
        return (_shares(weights) if renormalize else weights), ids

    return topk_softmax


def supports_grouped_topk(query: Query) -> Verdict:
    """Groups of more than two experts, 2048 experts in all after padding."""
    return within(dtype_in(query, FLOAT), _group_objection(query, query.get("num_expert_group")))


def make_grouped_topk() -> Call:
    """`grouped_topk` through npu_moe_gating_top_k."""
    grouped = operator("npu::npu_moe_gating_top_k")

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
        if scoring_func not in NORM_TYPE:
            raise ValueError(
                f"scoring_func={scoring_func!r} is not accepted; accepted: softmax, sigmoid"
            )
        if not gating_output.numel():
            return _empty(gating_output, topk)
        bias = e_score_correction_bias
        _, ids, scores = grouped(
            x=gating_output.float().contiguous(),
            k=topk,
            bias=None if bias is None else bias.float(),
            k_group=topk_group,
            group_count=num_expert_group,
            # A group counts as its best expert; with a bias, as the sum of its best two.
            group_select_mode=0 if bias is None else 1,
            renorm=0,
            norm_type=NORM_TYPE[scoring_func],
            out_flag=True,
        )
        # Of sigmoid scores the kernel always returns shares of their sum, so the weights are
        # taken from the scores.
        weights = scores.gather(1, ids.long())
        if renormalize:
            weights = _shares(weights)
        return weights * routed_scaling_factor, ids

    return grouped_topk


def _shares(weights: torch.Tensor) -> torch.Tensor:
    return weights / weights.sum(-1, keepdim=True)


def _empty(gating_output: torch.Tensor, topk: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (gating_output.shape[0], topk)
    return (
        gating_output.new_empty(shape, dtype=torch.float32),
        gating_output.new_empty(shape, dtype=torch.int32),
    )


def _group_objection(query: Query, groups: int | None) -> str | None:
    """Why npu_moe_gating_top_k cannot divide the experts so; None: it can, or not known yet."""
    experts = query.get("num_experts")
    if experts is None or groups is None:
        return None
    if experts % groups or experts // groups <= 2:
        return f"{experts} experts in {groups} groups are not equal groups of more than two"
    padded = -(-experts // groups // GROUP_ALIGNMENT) * GROUP_ALIGNMENT * groups
    if padded > MAX_EXPERTS:
        return f"{experts} experts in {groups} groups are more than {MAX_EXPERTS} when padded"
    return None
