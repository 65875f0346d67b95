"""Rotary position embedding as vLLM's native layers compute it: in the query's dtype."""

from __future__ import annotations

import torch


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
    """See the contract of `rotary_embedding`; overwrites nothing."""
    rows = cos_sin_cache.index_select(0, positions.flatten()).to(query.dtype)
    cos, sin = rows.unsqueeze(-2).chunk(2, dim=-1)
    if inverse:
        sin = -sin
    end = rope_dim_offset + rows.shape[-1]

    def rotated(x: torch.Tensor) -> torch.Tensor:
        # The head count is stated, not -1: with zero tokens it could not be inferred.
        heads = x.reshape(rows.shape[0], x.shape[1:].numel() // head_size, head_size)
        middle = _rotate(heads[..., rope_dim_offset:end], cos, sin, is_neox_style)
        parts = (heads[..., :rope_dim_offset], middle, heads[..., end:])
        return torch.cat(parts, dim=-1).reshape(x.shape)

    return rotated(query), None if key is None else rotated(key)


def _rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, is_neox_style: bool
) -> torch.Tensor:
    """Rotate all channels of x [tokens, heads, n] by cos and sin, both [tokens, 1, n / 2]."""
    if is_neox_style:
        first, second = x.chunk(2, dim=-1)
    else:
        first, second = x[..., ::2], x[..., 1::2]
    turned = (first * cos - second * sin, second * cos + first * sin)
    if is_neox_style:
        return torch.cat(turned, dim=-1)
    return torch.stack(turned, dim=-1).flatten(-2)
