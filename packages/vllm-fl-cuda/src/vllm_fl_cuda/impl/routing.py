"""Which experts serve a token. The kernels write given outputs, and rank in float32."""

from __future__ import annotations

import torch

from vllm_fl_cuda.impl.gaps import without_gaps
from vllm_fl_cuda.schema import EXPECTED, caller, compiled_operator, takes_none
from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call

#: What vLLM's grouped kernel is compiled for.
MAX_GROUPS = MAX_TOPK = 32
#: `scoring_func` as the grouped kernel numbers it: scores that are given, and the sigmoid.
GIVEN, SIGMOID = 0, 1


def supports(query: Query) -> Verdict:
    """The grouped kernel always adds a bias, and has room for so many groups and experts."""
    if query.op_name != "grouped_topk":
        return Verdict.yes()
    if query.get("bias_dtype") is None:
        return Verdict.no("the compiled operator needs e_score_correction_bias")
    for fact, limit in (("num_expert_group", MAX_GROUPS), ("topk", MAX_TOPK)):
        if (query.get(fact) or 0) > limit:
            return Verdict.no(f"{fact} is {query.get(fact)}, at most {limit} are served")
    return Verdict.yes()


def make_topk_softmax() -> Call:
    """`topk_softmax` through ``_moe_C::topk_softmax``."""
    overload = compiled_operator("_moe_C::topk_softmax")
    passed = len(EXPECTED["_moe_C::topk_softmax"])
    has_bias = takes_none(overload, passed)
    op = caller(overload, passed + has_bias)

    def topk_softmax(
        gating_output: torch.Tensor,
        topk: int,
        renormalize: bool = False,
        *,
        e_score_correction_bias: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if e_score_correction_bias is not None and not has_bias:
            raise OpNotSupported("the compiled operator of this vLLM takes no bias")
        shape = (gating_output.shape[0], topk)
        weights = gating_output.new_empty(shape, dtype=torch.float32)
        ids = gating_output.new_empty(shape, dtype=torch.int32)
        if ids.numel():
            rows = torch.empty_like(ids)
            bias = (without_gaps(e_score_correction_bias),) if has_bias else ()
            op(weights, ids, rows, gating_output.contiguous(), renormalize, *bias)
        return weights, ids

    return topk_softmax


def make_grouped_topk() -> Call:
    """`grouped_topk` through ``_moe_C::grouped_topk``."""
    op = compiled_operator("_moe_C::grouped_topk")

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
        if not gating_output.shape[0]:
            empty = gating_output.new_empty((0, topk), dtype=torch.float32)
            return empty, empty.to(torch.int32)
        scores, kind = gating_output.contiguous(), SIGMOID
        if scoring_func == "softmax":
            scores, kind = torch.softmax(scores, dim=-1), GIVEN
        weights, ids = op(
            scores,
            num_expert_group,
            topk_group,
            topk,
            renormalize,
            routed_scaling_factor,
            without_gaps(e_score_correction_bias),
            kind,
        )
        return weights, ids

    return grouped_topk
