"""Oracles and conformance cases of the operators of mixture-of-experts layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import DTYPES, Case, Maker

if TYPE_CHECKING:
    import torch


def align_oracle(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    *,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`moe_align_block_size`, row by row; only the meant entries, see `meant_entries`."""
    flat = topk_ids.flatten().tolist()
    mapped = list(range(num_experts)) if expert_map is None else expert_map.tolist()
    skip = expert_map is not None and ignore_invalid_experts
    # With a map and invalid experts left out, blocks are in the order of this rank's experts.
    keys = mapped if skip else list(range(num_experts))
    rows: list[int] = []
    experts: list[int] = []
    for key, expert in sorted(zip(keys, range(num_experts), strict=True)):
        share = [row for row, chosen in enumerate(flat) if chosen == expert]
        if not share or (skip and mapped[expert] < 0):
            continue
        padding = -len(share) % block_size
        rows += share + [len(flat)] * padding
        experts += [key if skip else mapped[expert]] * ((len(share) + padding) // block_size)
    return (
        topk_ids.new_tensor(rows).int(),
        topk_ids.new_tensor(experts).int(),
        topk_ids.new_tensor([len(rows)]).int(),
    )


def meant_entries(
    results: tuple[Any, ...], topk_ids: Any, block_size: int, *_: Any, **__: Any
) -> tuple[Any, ...]:
    """The entries that are specified, the rows of each run of one expert in rising order."""
    rows, experts, count = results
    meant = int(count)
    experts = experts[: meant // block_size]
    # Runs of blocks of one expert: sort by (run, row).
    changes = (experts[1:] != experts[:-1]).long()
    run = experts.new_zeros(experts.shape).long()
    run[1:] = changes.cumsum(0)
    rows = rows[:meant]
    key = run.repeat_interleave(block_size) * (topk_ids.numel() + 1) + rows.long()
    return rows[key.argsort()], experts, count


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


def _choices(m: Maker, tokens: int, experts: int, topk: int, dtype: str = "int32") -> torch.Tensor:
    """Distinct experts for each token."""
    return m.separated(tokens, experts, 0, 1).argsort(-1)[:, :topk].to(getattr(m.torch, dtype))


#: name -> (tokens, topk, experts, block size)
_ALIGN = {
    "one-row": (1, 2, 8, 16),
    "fewer-rows-than-experts": (3, 2, 64, 16),
    "rows": (33, 4, 16, 16),
    "odd-experts": (19, 4, 60, 32),
    "many-rows": (500, 8, 64, 64),
    "many-experts": (40, 8, 256, 16),
    "zero-rows": (0, 2, 8, 16),
}


def align_cases() -> Iterable[Case]:
    """The cases of `moe_align_block_size`."""
    for name, (tokens, topk, experts, block) in _ALIGN.items():
        for dtype in ("int32", "int64"):
            yield Case(f"{dtype}-{name}", _align(tokens, topk, experts, block, dtype))
    make = _align(33, 4, 16, 16)
    yield Case("int32-padded", make, lambda m: {"pad_sorted_ids": True})
    yield Case("int32-one-expert-of-all", lambda m: (m.integers(*[3] * 40).int()[:, None], 16, 8))
    yield Case("int32-map", make, lambda m: {"expert_map": half_map(m, 16)})
    yield Case(
        "int32-map-ignored",
        make,
        lambda m: {"expert_map": half_map(m, 16), "ignore_invalid_experts": True},
    )


def half_map(m: Maker, experts: int) -> torch.Tensor:
    """The map of a rank that has the second half of the experts."""
    half = experts // 2
    return m.integers(*[-1] * half, *range(experts - half), dtype="int32")


def _align(tokens: int, topk: int, experts: int, block: int, dtype: str = "int32") -> Any:
    return lambda m: (_choices(m, tokens, experts, topk, dtype), block, experts)


def sum_cases() -> Iterable[Case]:
    """The cases of `moe_sum`."""
    for dtype in DTYPES:
        for topk in (1, 2, 4, 6, 8):
            yield Case(f"{dtype}-top{topk}", _sum(dtype, 7, topk, 96), dtype=dtype)
        yield Case(f"{dtype}-one-row", _sum(dtype, 1, 2, 512), dtype=dtype)
        yield Case(f"{dtype}-odd-width", _sum(dtype, 5, 2, 515), dtype=dtype)
        yield Case(f"{dtype}-zero-rows", _sum(dtype, 0, 2, 64), dtype=dtype)
        yield Case(f"{dtype}-row-stride", _wide_sum(dtype), dtype=dtype)


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
            f"{dtype}-map",
            _experts(dtype, *rows, held=4),
            lambda m: {"expert_map": half_map(m, 8), "global_num_experts": 8},
            dtype,
        )


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
        weights = m.normal(tokens, topk).softmax(-1)
        chosen = _choices(m, tokens, experts, topk, ids)
        return (m.normal(tokens, hidden, dtype=dtype), w1, w2, weights, chosen, activation)

    return make
