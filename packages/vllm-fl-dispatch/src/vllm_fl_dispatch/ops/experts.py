"""Mixture-of-experts layers: the experts, and the sum over the experts of a token.

Source of the semantics: vllm/model_executor/layers/fused_moe/fused_moe.py and csrc/moe of vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops import experts_cases as cases
from vllm_fl_dispatch.types import Query

if TYPE_CHECKING:
    import torch


def moe_sum(x: torch.Tensor) -> torch.Tensor:  # type: ignore[empty-body]  # a contract
    """The sum over the experts of each token.

    Args:
        x: [tokens, topk, n], float32, float16 or bfloat16; not changed.

    Returns:
        A new contiguous tensor [tokens, n] of x's dtype. Summed in float32 and rounded once; a
        rounding after each addition is accepted as well.
    """


def fused_experts(  # type: ignore[empty-body]  # a contract
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
    """``sum_k weight_k * (act_and_mul(x @ w1[e_k].T) @ w2[e_k].T)`` for each token.

    Args:
        hidden_states: [tokens, h], float32, float16 or bfloat16; not changed.
        w1: [experts, 2 i, h], gate above up, of the same dtype.
        w2: [experts, h, i], of the same dtype.
        topk_weights: [tokens, topk], float32 or the same dtype.
        topk_ids: [tokens, topk], int32 or int64: experts, over all ranks.
        activation: ``silu``, ``gelu`` or ``gelu_tanh``.
        apply_router_weight_on_input: multiply x, not the result, by the weight; topk is 1.
        global_num_experts: experts over all ranks; -1: as many as w1 has.
        expert_map: [global_num_experts] int32, expert -> row of w1, or -1: not on this rank.

    Returns:
        A new contiguous tensor [tokens, h] of x's dtype; a token without an expert on this rank
        is zero. Products are accumulated in float32 at least; intermediate results may be
        rounded to x's dtype.
    """


def _sum_fake(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((x.shape[0], x.shape[-1]))


def _like(hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return hidden_states.new_empty(hidden_states.shape)


def _sum_facts(x: torch.Tensor) -> tuple[Any, ...]:
    return (x.dtype, x.device, x.shape[-1], x.shape[1])


def _experts_facts(
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
) -> tuple[Any, ...]:
    return (
        hidden_states.dtype,
        hidden_states.device,
        hidden_states.shape[-1],
        w2.shape[-1],
        w1.shape[0],
        topk_ids.shape[-1],
        topk_ids.dtype,
        topk_weights.dtype,
        activation,
        apply_router_weight_on_input,
        expert_map is not None,
    )


def _sum_example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    shape = (2, query.get("topk") or 2, query.last_dim or 64)
    return (torch.ones(shape, dtype=query.dtype, device=query.device_type or "cpu"),), {}


#: An example of a layer with more experts has so many, or as many as a token takes; a whole layer
#: may have 20 GiB.
_FEW = 16
#: The widths of an example, in place of larger ones, up to a multiple of this: what divides the
#: width of the layer goes on to do so.
_NARROW = 256


def _experts_example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    hidden, inner = (
        min(width, _NARROW + width % _NARROW)
        for width in (query.get("hidden_size") or 64, query.get("intermediate_size") or 32)
    )
    topk = query.get("topk") or 2
    experts = min(query.get("num_experts") or 4, max(topk, _FEW))
    dtype, device = query.dtype or torch.get_default_dtype(), query.device_type or "cpu"

    def ones(*shape: int) -> torch.Tensor:
        return torch.ones(shape, dtype=dtype, device=device)

    ids = torch.arange(2 * topk, device=device).reshape(2, topk) % experts
    weights = ones(2, topk).to(query.get("weights_dtype") or torch.float32)
    options: dict[str, Any] = {}
    if query.get("apply_router_weight_on_input"):
        options["apply_router_weight_on_input"] = True
    if query.get("has_expert_map"):
        options["expert_map"] = torch.arange(experts, dtype=torch.int32, device=device)
    return (
        ones(2, hidden),
        ones(experts, 2 * inner, hidden),
        ones(experts, hidden, inner),
        weights,
        ids.to(query.get("ids_dtype") or torch.int32),
        query.get("activation") or "silu",
    ), options


SPECS = (
    OpSpec(
        "moe_sum",
        moe_sum,
        schema="(Tensor x) -> Tensor",
        fake=_sum_fake,
        facts=_sum_facts,
        fact_names=("dtype", "device", "last_dim", "topk"),
        example=_sum_example,
        shapes={"x": "tokens topk n"},
        data=("x",),
        oracle=cases.sum_oracle,
        cases=cases.sum_cases,
        # vLLM's kernel adds in x's dtype.
        max_ulp={"float32": 4.0, "float16": 4.0, "bfloat16": 4.0},
        ulp_floor=1.0,
    ),
    OpSpec(
        "fused_experts",
        fused_experts,
        schema=(
            "(Tensor hidden_states, Tensor w1, Tensor w2, Tensor topk_weights, Tensor topk_ids, "
            'str activation="silu", *, bool apply_router_weight_on_input=False, '
            "int global_num_experts=-1, Tensor? expert_map=None) -> Tensor"
        ),
        fake=_like,
        facts=_experts_facts,
        fact_names=(
            "dtype",
            "device",
            "hidden_size",
            "intermediate_size",
            "num_experts",
            "topk",
            "ids_dtype",
            "weights_dtype",
            "activation",
            "apply_router_weight_on_input",
            "has_expert_map",
        ),
        example=_experts_example,
        shapes={
            "hidden_states": "tokens h",
            "w1": "experts 2*i h",
            "w2": "experts h i",
            "topk_weights": "tokens topk",
            "topk_ids": "tokens topk",
        },
        data=("hidden_states",),
        rows=("hidden_states", "topk_weights", "topk_ids"),
        oracle=cases.experts_oracle,
        cases=cases.experts_cases,
        # Two matrix products in another order of summation, and three roundings between them.
        max_ulp={"float32": 48.0, "float16": 6.0, "bfloat16": 6.0},
        ulp_floor=1.0,
    ),
)
