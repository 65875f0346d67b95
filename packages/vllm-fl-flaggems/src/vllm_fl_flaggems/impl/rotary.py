"""Rotary position embedding, out of place: in place, threads of one warp read channels that those
of another overwrite, for 64 to 192 rotated channels in the NeoX pairing."""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call
from vllm_fl_flaggems import library
from vllm_fl_flaggems.impl.limits import check_extent, on_known_ground


def supports(query: Query) -> Verdict:
    """The table must have the query's dtype: the kernel would compute with the unrounded one."""
    cache = query.get("cache_dtype")
    if cache is not None and query.dtype is not None and cache != query.dtype:
        return Verdict.no(f"cos_sin_cache is {cache}, query is {query.dtype}")
    return on_known_ground(query)


def make_rotary_embedding() -> Call:
    """`rotary_embedding` through ``apply_rotary_pos_emb``."""
    kernel = library.function("apply_rotary_pos_emb")
    # (table, cosines, sines, rotated channels) of the last call: a model has few tables, and
    # views cost time.
    last: tuple[Any, Any, Any, int] = (None, None, None, 0)

    def rotary_embedding(
        positions: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor | None,
        head_size: int,
        cos_sin_cache: torch.Tensor,
        is_neox_style: bool,
        *,
        rope_dim_offset: int = 0,
        inverse: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        nonlocal last
        if not query.numel():
            return query.contiguous(), None if key is None else key.contiguous()
        check_extent(query)
        table, cos, sin, rotary_dim = last
        if table is not cos_sin_cache:
            if cos_sin_cache.stride(-1) != 1:
                raise OpNotSupported("the table has gaps between its columns")
            cos, sin = cos_sin_cache.chunk(2, dim=-1)
            rotary_dim = cos_sin_cache.shape[-1]
            last = (cos_sin_cache, cos, sin, rotary_dim)
        if inverse:
            sin = -sin
        heads = query if query.dim() == 3 else query.view(query.shape[0], -1, head_size)
        # It needs a key; one head of the query stands in for one without elements.
        keyless = key is None or not key.numel()
        if key is None or keyless:
            key_heads = heads[:, :1]
        else:
            key_heads = key if key.dim() == 3 else key.view(key.shape[0], -1, head_size)
        if positions.dim() != 1:
            positions = positions.flatten()
        if rotary_dim == head_size:
            rotated, rotated_key = kernel(heads, key_heads, cos, sin, positions, not is_neox_style)
        else:
            part = slice(rope_dim_offset, rope_dim_offset + rotary_dim)
            found = kernel(
                heads[..., part], key_heads[..., part], cos, sin, positions, not is_neox_style
            )
            rotated, rotated_key = _with(heads, part, found[0]), _with(key_heads, part, found[1])
        if key is None or keyless:
            return _like(rotated, query), None if key is None else torch.empty_like(key)
        return _like(rotated, query), _like(rotated_key, key)

    return rotary_embedding


def _like(rotated: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, head_size] in the shape in which it was given."""
    return rotated if given.dim() == 3 else rotated.view(given.shape[0], -1)


def _with(heads: torch.Tensor, channels: slice, values: torch.Tensor) -> torch.Tensor:
    """A contiguous copy of `heads` with some channels replaced."""
    whole = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device).copy_(heads)
    whole[..., channels] = values
    return whole
