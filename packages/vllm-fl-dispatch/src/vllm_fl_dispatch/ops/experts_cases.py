"""Oracles and conformance cases of the operators of mixture-of-experts layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.alignment_cases import choices, half_map
from vllm_fl_dispatch.ops.cases import DTYPES, MANY_ROWS, Case, Maker

if TYPE_CHECKING:
    import torch


def sum_oracle(x: torch.Tensor) -> torch.Tensor:
    """`moe_sum` in float64."""
    return x.double().sum(1)


def experts_oracle(
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
    """`fused_experts` in float64, choice by choice."""
    from torch.nn.functional import gelu, silu

    act: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "silu": silu,
        "gelu": gelu,
        "gelu_tanh": lambda gate: gelu(gate, approximate="tanh"),
    }
    x, weights = hidden_states.double(), topk_weights.double()
    ids = topk_ids.long() if expert_map is None else expert_map.long()[topk_ids.long()]
    total = x.new_zeros(x.shape)
    for token, choice in (ids >= 0).nonzero().tolist():
        expert, weight = ids[token, choice], weights[token, choice]
        row = x[token] * weight if apply_router_weight_on_input else x[token]
        gate, up = (w1[expert].double() @ row).chunk(2)
        out = w2[expert].double() @ (act[activation](gate) * up)
        total[token] += out if apply_router_weight_on_input else out * weight
    return total


def sum_cases() -> Iterable[Case]:
    """The cases of `moe_sum`."""
    for dtype in DTYPES:
        for topk in (1, 2, 4, 6, 8):
            yield Case(f"{dtype}-top{topk}", _sum(dtype, 7, topk, 128), dtype=dtype)
        yield Case(f"{dtype}-one-row", _sum(dtype, 1, 2, 512), dtype=dtype)
        yield Case(f"{dtype}-odd-width", _sum(dtype, 5, 2, 515), dtype=dtype)
        yield Case(f"{dtype}-zero-rows", _sum(dtype, 0, 2, 64), dtype=dtype)
        yield Case(f"{dtype}-row-stride", _wide_sum(dtype), dtype=dtype)
        yield Case(f"{dtype}-odd-wide", _sum(dtype, 3, 2, 8200), dtype=dtype)
    many = _sum("bfloat16", MANY_ROWS, 2, 16)
    yield Case(f"bfloat16-{MANY_ROWS}-rows", many, dtype="bfloat16", rows=MANY_ROWS)


def _sum(dtype: str, *shape: int) -> Any:
    return lambda m: (m.normal(*shape, dtype=dtype),)


def _wide_sum(dtype: str) -> Any:
    return lambda m: (m.normal(5, 2, 128, dtype=dtype)[..., :96],)


#: name -> (tokens, h, i, experts, topk)
_EXPERTS = {
    "one-row": (1, 64, 32, 8, 2),
    "rows": (33, 128, 64, 8, 2),
    "unused-experts": (3, 64, 32, 16, 2),
    "top1": (17, 64, 96, 4, 1),
    "all-experts": (5, 64, 32, 4, 4),
    "zero-rows": (0, 64, 32, 8, 2),
}


def experts_cases() -> Iterable[Case]:
    """The cases of `fused_experts`."""
    for dtype in DTYPES:
        for name, shape in _EXPERTS.items():
            yield Case(f"{dtype}-{name}", _experts(dtype, *shape), dtype=dtype)
        rows = _EXPERTS["rows"]
        for activation in ("gelu", "gelu_tanh"):
            yield Case(f"{dtype}-{activation}", _experts(dtype, *rows, activation), dtype=dtype)
        yield Case(f"{dtype}-int64-ids", _experts(dtype, *rows, ids="int64"), dtype=dtype)
        yield Case(
            f"{dtype}-weight-on-input",
            _experts(dtype, *_EXPERTS["top1"]),
            lambda m: {"apply_router_weight_on_input": True},
            dtype,
        )
        yield Case(
            f"{dtype}-weight-on-input-gelu",
            _experts(dtype, *_EXPERTS["top1"], "gelu"),
            lambda m: {"apply_router_weight_on_input": True},
            dtype,
        )
        yield Case(
            f"{dtype}-weight-on-input-map",
            _experts(dtype, *_EXPERTS["top1"], held=2),
            lambda m: {
                "apply_router_weight_on_input": True,
                "expert_map": half_map(m, 4),
                "global_num_experts": 4,
            },
            dtype,
        )
        yield Case(
            f"{dtype}-map",
            _experts(dtype, *rows, held=4),
            lambda m: {"expert_map": half_map(m, 8), "global_num_experts": 8},
            dtype,
        )
    # The oracle goes through them one by one.
    yield Case("float32-1030-rows", _experts("float32", 1030, 64, 32, 4, 1), rows=1030)


def _experts(
    dtype: str,
    tokens: int,
    hidden: int,
    inner: int,
    experts: int,
    topk: int,
    activation: str = "silu",
    *,
    ids: str = "int32",
    held: int | None = None,
) -> Any:
    """`held`: how many of the experts this rank has."""

    def make(m: Maker) -> tuple[Any, ...]:
        rows = experts if held is None else held
        # Weights of a size that keeps the rows of every stage near 1.
        w1 = m.normal(rows, 2 * inner, hidden, dtype=dtype, scale=hidden**-0.5)
        w2 = m.normal(rows, hidden, inner, dtype=dtype, scale=inner**-0.5)
        # The share of one choice among one would be 1, and show nothing.
        scores = m.normal(tokens, topk)
        weights = scores.softmax(-1) if topk > 1 else scores.sigmoid()
        chosen = choices(m, tokens, experts, topk, ids)
        return (m.normal(tokens, hidden, dtype=dtype), w1, w2, weights, chosen, activation)

    return make
