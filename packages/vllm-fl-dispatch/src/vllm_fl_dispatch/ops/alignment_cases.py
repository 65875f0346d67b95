"""Oracle and conformance cases of the sorting of tokens by expert."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import MANY_ROWS, Case, Maker

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


def choices(m: Maker, tokens: int, experts: int, topk: int, dtype: str = "int32") -> torch.Tensor:
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
    yield Case("int32-ignored", make, lambda m: {"ignore_invalid_experts": True})
    yield Case(
        "int32-padded-map",
        make,
        lambda m: {"expert_map": half_map(m, 16), "pad_sorted_ids": True},
    )
    yield Case(f"int32-{MANY_ROWS}-rows", _many_rows, rows=MANY_ROWS)


def _many_rows(m: Maker) -> tuple[Any, ...]:
    some = choices(m, 257, 8, 2)
    return (some.repeat(MANY_ROWS // len(some) + 1, 1)[:MANY_ROWS], 64, 8)


def half_map(m: Maker, experts: int) -> torch.Tensor:
    """The map of a rank that has the second half of the experts."""
    half = experts // 2
    return m.integers(*[-1] * half, *range(experts - half), dtype="int32")


def _align(tokens: int, topk: int, experts: int, block: int, dtype: str = "int32") -> Any:
    return lambda m: (choices(m, tokens, experts, topk, dtype), block, experts)
