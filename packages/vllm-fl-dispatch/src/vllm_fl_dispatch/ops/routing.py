"""Which experts serve a token, and with which weights.

Source of the semantics: vllm/model_executor/layers/fused_moe/router/fused_topk_router.py,
fused_topk_bias_router.py and grouped_topk_router.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops import routing_cases as cases
from vllm_fl_dispatch.types import Query

if TYPE_CHECKING:
    import torch


def topk_softmax(  # type: ignore[empty-body]  # a contract
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool = False,
    *,
    e_score_correction_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The `topk` experts with the largest softmax probability.

    Args:
        gating_output: [tokens, experts], float32, float16 or bfloat16; not changed.
        topk: experts per token, at most `experts`.
        renormalize: divide the weights of a token by their sum.
        e_score_correction_bias: [experts], float32; added to the probabilities to choose the
            experts; the weights are those without it.

    Returns:
        (weights [tokens, topk] float32, ids [tokens, topk] int32), both contiguous, by falling
        score. The softmax is computed in float32. Which of equal scores comes first is not
        specified.
    """


def grouped_topk(  # type: ignore[empty-body]  # a contract
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
    """The `topk` best experts within the `topk_group` best groups (DeepSeek).

    A group's score is that of its best expert, or the sum of its two best where a bias is given.

    Args:
        gating_output: [tokens, experts], float32, float16 or bfloat16; not changed.
        topk: experts per token.
        renormalize: divide the weights of a token by their sum, before scaling.
        num_expert_group: groups of equal size; divides `experts`.
        topk_group: groups that stay.
        scoring_func: ``softmax`` or ``sigmoid``; anything else is a ValueError.
        routed_scaling_factor: multiplies the weights.
        e_score_correction_bias: [experts], float32 or gating's dtype; added to the scores to
            choose groups and experts; the weights are those without it.

    Returns:
        (weights [tokens, topk] float32, ids [tokens, topk] int32), both contiguous; the order
        within a row is not specified. Scores are computed in gating's dtype, as vLLM does, or
        in float32.
    """


def _fake(
    gating_output: torch.Tensor, topk: int, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    shape = (gating_output.shape[0], topk)
    return (
        gating_output.new_empty(shape, dtype=torch.float32),
        gating_output.new_empty(shape, dtype=torch.int32),
    )


def _facts(
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool = False,
    *,
    e_score_correction_bias: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    return (
        gating_output.dtype,
        gating_output.device,
        gating_output.shape[-1],
        topk,
        renormalize,
        None if e_score_correction_bias is None else e_score_correction_bias.dtype,
    )


def _grouped_facts(
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool,
    num_expert_group: int,
    topk_group: int,
    scoring_func: str = "softmax",
    *,
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: torch.Tensor | None = None,
) -> tuple[Any, ...]:
    return (
        *_facts(gating_output, topk, renormalize, e_score_correction_bias=e_score_correction_bias),
        num_expert_group,
        topk_group,
        scoring_func,
        routed_scaling_factor,
    )


SHAPES = {"gating_output": "tokens experts", "e_score_correction_bias": "experts"}
FACT_NAMES = ("dtype", "device", "num_experts", "topk", "renormalize", "bias_dtype")


def _gating(query: Query) -> tuple[torch.Tensor, dict[str, Any]]:
    """Distinct scores for two tokens, and the bias where there is one."""
    import torch

    experts = query.get("num_experts") or 8
    device = query.device_type or "cpu"
    scores = torch.linspace(-1, 1, experts, dtype=torch.float32, device=device)
    gating = scores.to(query.dtype or torch.get_default_dtype()).repeat(2, 1)
    bias_dtype = query.get("bias_dtype")
    options = {} if bias_dtype is None else {"e_score_correction_bias": scores.to(bias_dtype)}
    return gating, options


def _example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    gating, options = _gating(query)
    return (gating, query.get("topk") or 2, query.get("renormalize") or False), options


def _grouped_example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (gating, topk, renormalize), options = _example(query)
    groups, best = query.get("num_expert_group") or 2, query.get("topk_group") or 1
    scale = query.get("routed_scaling_factor")
    if scale not in (None, 1.0):
        options["routed_scaling_factor"] = scale
    scoring = query.get("scoring_func") or "softmax"
    return (gating, topk, renormalize, groups, best, scoring), options


SPECS = (
    OpSpec(
        "topk_softmax",
        topk_softmax,
        schema=(
            "(Tensor gating_output, int topk, bool renormalize=False, *, "
            "Tensor? e_score_correction_bias=None) -> (Tensor, Tensor)"
        ),
        fake=_fake,
        facts=_facts,
        fact_names=FACT_NAMES,
        example=_example,
        shapes=SHAPES,
        data=("gating_output",),
        oracle=cases.topk_oracle,
        cases=cases.topk_cases,
        # Exponential, sum and two divisions, in float32 whatever the input.
        max_ulp={"float32": 16.0, "float16": 16.0, "bfloat16": 16.0},
    ),
    OpSpec(
        "grouped_topk",
        grouped_topk,
        schema=(
            "(Tensor gating_output, int topk, bool renormalize, int num_expert_group, "
            'int topk_group, str scoring_func="softmax", *, float routed_scaling_factor=1.0, '
            "Tensor? e_score_correction_bias=None) -> (Tensor, Tensor)"
        ),
        fake=_fake,
        facts=_grouped_facts,
        fact_names=(
            *FACT_NAMES,
            "num_expert_group",
            "topk_group",
            "scoring_func",
            "routed_scaling_factor",
        ),
        example=_grouped_example,
        shapes=SHAPES,
        data=("gating_output",),
        oracle=cases.grouped_oracle,
        cases=cases.grouped_cases,
        canonical=cases.by_id,
        ulp_of="gating_output",
        max_ulp={"float32": 16.0, "float16": 4.0, "bfloat16": 4.0},
        # A sigmoid through tanh, as in vLLM's kernel, is exact next to 1, not next to 0.
        ulp_floor=1.0,
    ),
)
