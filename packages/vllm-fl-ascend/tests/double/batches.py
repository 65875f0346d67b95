"""Requests that are served step by step, and what attention over them must give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch

from vllm_fl_ascend.impl import attention, attention_plan, kv_cache
from vllm_fl_ascend.impl.attention import Shape
from vllm_fl_ascend.impl.attention_plan import AttentionState

#: How vLLM before and since 0.29 lays out a cache.
CONTRACTS = ("five dimensions", "two planes")
#: What stands in a block table behind the blocks of a request.
GARBAGE = 2**30


def empty_cache(
    contract: str, blocks: int, size: int, kv_heads: int, head_size: int, dtype: torch.dtype
) -> torch.Tensor:
    """A cache as vLLM allocates it, full of NaN: nobody may look at what was never written."""
    if contract == "five dimensions":
        shape = (2, blocks, size, kv_heads, head_size)
        return torch.full(shape, float("nan"), dtype=dtype)
    # The layout LHBNC: the planes are outermost in memory.
    planes = torch.full((2, blocks, size, kv_heads * head_size), float("nan"), dtype=dtype)
    return planes.transpose(0, 1)


@dataclass
class Batch:
    """What a scheduler hands over for one step."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    starts: list[int]
    kv_lens: list[int]
    block_table: torch.Tensor
    slots: torch.Tensor


class Served:
    """Requests with random queries, keys and values, and a cache that fills step by step."""

    def __init__(
        self,
        lengths: Sequence[int],
        shape: Shape,
        dtype: torch.dtype,
        *,
        contract: str = "two planes",
        block_size: int | None = None,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.shape, self.dtype = shape, dtype
        self.block_size = block_size or attention.block_sizes(dtype, shape.head_size)[0]
        fused = attention.is_fused(dtype, shape.head_size, shape.kv_heads, self.block_size)
        self.kernels = (attention.Fused if fused else attention.Separate)(shape)
        self.computed = [0] * len(lengths)

        def rows(heads: int) -> list[torch.Tensor]:
            return [
                torch.randn(n, heads, shape.head_size, generator=generator).to(dtype)
                for n in lengths
            ]

        self.queries, self.keys, self.values = (
            rows(shape.heads), rows(shape.kv_heads), rows(shape.kv_heads),
        )  # fmt: skip
        needed = [-(-n // self.block_size) for n in lengths]
        order = torch.randperm(sum(needed) + 2, generator=generator).tolist()
        self.block_table = torch.full((len(lengths), max(needed) + 1), GARBAGE)
        for row, count in enumerate(needed):
            self.block_table[row, :count] = torch.tensor([order.pop() for _ in range(count)])
        self.cache = empty_cache(
            contract, sum(needed) + 2, self.block_size, shape.kv_heads, shape.head_size, dtype
        )

    def batch(self, new: Sequence[int], padding: int = 0) -> Batch:
        """The next `new` tokens of each request.

        Args:
            padding: rows and requests added behind the real ones, as for a graph.
        """
        ends = [done + more for done, more in zip(self.computed, new, strict=True)]
        starts = [0, *accumulate(new)]

        def fresh(rows: list[torch.Tensor]) -> torch.Tensor:
            parts = [r[done:end] for r, done, end in zip(rows, self.computed, ends, strict=True)]
            rubbish = torch.full_like(rows[0][:1], float("nan")).expand(padding, -1, -1)
            return torch.cat([*parts, rubbish])

        size = self.block_size
        slots = [
            int(self.block_table[row, at // size]) * size + at % size
            for row, (done, end) in enumerate(zip(self.computed, ends, strict=True))
            for at in range(done, end)
        ]
        return Batch(
            *map(fresh, (self.queries, self.keys, self.values)),
            starts=starts + [starts[-1]] * padding,
            kv_lens=ends + [0] * padding,
            block_table=torch.cat(
                [self.block_table, torch.full_like(self.block_table, -1)[:1].expand(padding, -1)]
            ),
            slots=torch.tensor(slots + [-1] * padding),
        )

    def attend(self, batch: Batch, drafts: int) -> torch.Tensor:
        """Store the keys and values of a batch, and attend; [tokens, heads, head size]."""
        plan = attention_plan.make_plan(batch.starts, batch.kv_lens, drafts)
        pages = kv_cache.Pages(plan, batch.block_table, batch.slots)
        caches = kv_cache.split_cache(self.cache, self.shape.kv_heads, self.shape.head_size)
        attention.write_cache(batch.key, batch.value, *caches, pages)
        self.state = plan.state
        rows = [tensor[: plan.tokens] for tensor in (batch.query, batch.key, batch.value)]
        if plan.state is AttentionState.PREFILL_NO_CACHE:
            return self.kernels.over_batch(*rows, plan)
        return self.kernels.over_cache(rows[0], *caches, pages)

    def check(self, new: Sequence[int], *, drafts: int = 0, padding: int = 0) -> None:
        """Compute the next `new` tokens of each request, and compare."""
        batch = self.batch(new, padding)
        outputs = self.attend(batch, drafts).split(list(new))
        before, self.computed = self.computed, batch.kv_lens[: len(new)]
        # One rounding.
        unit = torch.finfo(self.dtype).eps
        for row, (out, first) in enumerate(zip(outputs, before, strict=True)):
            expected = self.expected(row, first, self.computed[row])
            torch.testing.assert_close(out.double(), expected, rtol=unit, atol=unit / 64)

    def expected(self, row: int, first: int, end: int) -> torch.Tensor:
        """The outputs of tokens `first` to `end` of a request, in float64, from whole rows."""
        group = self.shape.heads // self.shape.kv_heads
        query = self.queries[row][first:end].double()
        keys, values = (
            rows[row][:end].double().repeat_interleave(group, 1)
            for rows in (self.keys, self.values)
        )
        at, other = torch.arange(first, end)[:, None], torch.arange(end)
        hidden = other > at
        if self.shape.window is not None:
            hidden |= other <= at - self.shape.window
        scores = torch.einsum("qhd,khd->hqk", query, keys) * self.shape.scale
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        return torch.einsum("hqk,khd->qhd", weights, values)
