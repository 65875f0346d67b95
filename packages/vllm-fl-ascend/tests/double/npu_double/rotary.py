"""Rotary position embedding."""

# ruff: noqa: A002  # arguments have the names of the schemas
from __future__ import annotations

import torch

from .rules import FLOAT, HALF, require, require_dtype

#: What the first call of `_npu_rotary_embedding` in a process left behind, for all later ones.
_first_cache: list[torch.Tensor] = []


def npu_rotary_mul(
    input: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    require(rotate is None, "the model knows no matrix of rotation")
    require(rotary_mode in ("half", "interleave"), f"rotary_mode {rotary_mode!r} is known")
    require_dtype("input", input, FLOAT)
    require(input.dtype == r1.dtype == r2.dtype, "input, r1 and r2 have one dtype")
    require(r1.shape == r2.shape, "r1 and r2 have one shape")
    require(input.dim() in (3, 4) and r1.dim() == input.dim(), "3 or 4 dimensions, r1 as many")
    require(input.numel(), "input must not be empty")
    size = input.shape[-1]
    require(size % 2 == 0 and size < 896, f"the last dimension {size} is even and below 896")
    require(r1.shape[-1] == size, "r1 and r2 cover all channels")
    if input.dim() == 4:
        batch, _, heads, _ = input.shape
        require(r1.shape[:3] == (1, input.shape[1], 1), "the model takes BSND with r1 1S1D")
        require(batch < 1000 and heads < 1000, "batch and heads are below 1000")
        require(rotary_mode == "half" or batch * heads < 1000, "batch * heads is below 1000")
    else:
        require(r1.shape[:2] == (input.shape[0], 1), "r1 of TND is T1D")
    wide, cos, sin = input.double(), r1.double(), r2.double()
    if rotary_mode == "half":
        first, second = wide.chunk(2, -1)
        turned = torch.cat((-second, first), -1)
    else:
        turned = torch.stack((-wide[..., 1::2], wide[..., ::2]), -1).flatten(-2)
    return (wide * cos + turned * sin).to(input.dtype)


def npu_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> None:
    """Uses the cache of the first call in the process, whatever this call is given."""
    for name, tensor in (("query", query), ("key", key)):
        require_dtype(name, tensor, HALF)
        require(tensor.is_contiguous(), f"{name} must be contiguous")
    require(cos_sin_cache.shape[-1] == head_size, "the cache covers the whole head")
    if not _first_cache:
        _first_cache.append(cos_sin_cache.clone())
    cos, sin = _first_cache[0].to(query.dtype)[positions.flatten()].chunk(2, -1)
    for tensor in (query, key):
        heads = tensor.view(positions.numel(), -1, head_size)
        mode = "half" if is_neox_style else "interleave"
        r1, r2 = (
            (torch.cat((row, row), -1) if is_neox_style else row.repeat_interleave(2, -1))
            for row in (cos, sin)
        )
        heads.copy_(npu_rotary_mul(heads, r1.unsqueeze(1), r2.unsqueeze(1), mode))


def forget_first_cache() -> None:
    """As after a restart of the process."""
    _first_cache.clear()
