"""Batches over a paged cache, and a plain computation of what attention over them gives."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from vllm_fl_flaggems.impl.attention import Attention, Step, views
from vllm_fl_flaggems.kernels import kv_cache


@dataclass
class Batch:
    """Requests over a cache whose unused entries are NaN."""

    step: Step
    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    cache: torch.Tensor

    def attend(self, layer: Attention) -> torch.Tensor:
        """What our adapter gives."""
        output = torch.full_like(self.query, float("nan"))
        return layer(self.query, *views(self.cache, self.query.shape[-1]), self.step, output)


def batch(
    new: list[int],
    lengths: list[int],
    *,
    heads: tuple[int, int] = (4, 2),
    size: int = 64,
    block: int = 16,
    dtype: torch.dtype = torch.float16,
    device: str = "cpu",
) -> Batch:
    """Requests with `new` tokens of `lengths` in all; their blocks lie in the cache in no order."""
    draw = torch.Generator().manual_seed(sum(lengths) + size)
    blocks_of = [-(-length // block) for length in lengths]
    order = torch.randperm(sum(blocks_of) + 1, generator=draw)
    # As vLLM has it: [blocks, heads, block size, 2 d], in memory with the heads behind the tokens.
    cache = torch.full((len(order), block, heads[1], 2 * size), float("nan"), dtype=dtype)
    cache = cache.to(device).transpose(1, 2)
    table = torch.zeros(len(lengths), max(blocks_of) + 2, dtype=torch.int32)
    keys, values, used = [], [], 0
    for request, length in enumerate(lengths):
        mine = order[used : used + blocks_of[request]]
        used += blocks_of[request]
        table[request, : len(mine)] = mine.int()
        pair = torch.randn(2, length, heads[1], size, generator=draw).to(dtype).to(device)
        position = torch.arange(length)
        slots = (mine[position // block] * block + position % block).to(device)
        kv_cache.write(*views(cache, size), pair[0], pair[1], slots)
        keys.append(pair[0])
        values.append(pair[1])
    query = torch.randn(sum(new), heads[0], size, generator=draw).to(dtype).to(device)
    starts = torch.tensor([0, *itertools.accumulate(new)], dtype=torch.int32, device=device)
    used_lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
    step = Step(starts, used_lengths, table.to(device), max(new), max(lengths))
    return Batch(step, query, keys, values, cache)


def expected(given: Batch, layer: Attention, wide: torch.dtype = torch.float64) -> torch.Tensor:
    """Request by request, in a wide dtype, from the definition."""
    rows = []
    starts = given.step.starts.tolist()
    for request, (key, value) in enumerate(zip(given.keys, given.values, strict=True)):
        query = given.query[starts[request] : starts[request + 1]].to(wide)
        groups = query.shape[1] // key.shape[1]
        key, value = (each.to(wide).repeat_interleave(groups, dim=1) for each in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * layer.scale
        if layer.softcap:
            scores = layer.softcap * torch.tanh(scores / layer.softcap)
        length = key.shape[0]
        at = torch.arange(length - query.shape[0], length, device=key.device)[:, None]
        distance = at - torch.arange(length, device=key.device)[None, :]
        if layer.alibi_slopes is not None:
            slopes = layer.alibi_slopes.to(scores.device, wide)
            scores = scores - slopes[:, None, None] * distance
        hidden = distance < 0
        if layer.window is not None:
            hidden = hidden | (distance >= layer.window)
        scores = scores.masked_fill(hidden, float("-inf"))
        rows.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
    return torch.cat(rows)
