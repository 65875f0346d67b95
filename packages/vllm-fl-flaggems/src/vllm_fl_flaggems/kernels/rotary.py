"""Rotary position embedding, out of place, a program for a few heads of one token.

FlagGems' kernel rotates all heads of a token one after the other in one program: with few tokens
the device waits for memory forty times. docs/speed.md has figures.
"""

# Triton looks up the names in annotations of a kernel and knows none of Python's types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_dispatch.handles import Call
from vllm_fl_flaggems.impl.limits import on_known_ground as supports

__all__ = ["make_rotary_embedding", "supports"]

#: Pairs of channels of one program: four for each of 128 threads.
PAIRS = 512


@triton.jit  # type: ignore[untyped-decorator]  # Triton is untyped
def _rotate_heads(
    x,
    out,
    head_stride,
    head,
    cos,
    sin,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    OFFSET: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    NEOX: tl.constexpr,
):
    pair = tl.arange(0, HALF_PADDED)[None, :]
    mask = (head < HEADS) & (pair < HALF)
    if NEOX:
        first = OFFSET + pair
        second = first + HALF
    else:
        first = OFFSET + 2 * pair
        second = first + 1
    a = tl.load(x + head * head_stride + first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x + head * head_stride + second, mask=mask, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    tl.store(out + head * SIZE + first, (a * cos - b * sin).to(kind), mask=mask)
    tl.store(out + head * SIZE + second, (b * cos + a * sin).to(kind), mask=mask)
    if SIZE > 2 * HALF:
        channel = tl.arange(0, SIZE_PADDED)[None, :]
        outside = (channel < OFFSET) | (channel >= OFFSET + 2 * HALF)
        mask = (head < HEADS) & (channel < SIZE) & outside
        kept = tl.load(x + head * head_stride + channel, mask=mask)
        tl.store(out + head * SIZE + channel, kept, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]  # Triton is untyped
def _rotate(
    query,
    key,
    query_out,
    key_out,
    table,
    positions,
    query_token,
    query_head,
    key_token,
    key_head,
    table_row,
    QUERY_HEADS: tl.constexpr,
    KEY_HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    OFFSET: tl.constexpr,
    HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr,
    NEOX: tl.constexpr,
    INVERSE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    row = table + tl.load(positions + token).to(tl.int64) * table_row
    pair = tl.arange(0, HALF_PADDED)[None, :]
    # The contract rounds the table to the query's dtype.
    kind = query.dtype.element_ty
    cos = tl.load(row + pair, mask=pair < HALF, other=0.0).to(kind).to(tl.float32)
    sin = tl.load(row + HALF + pair, mask=pair < HALF, other=0.0).to(kind).to(tl.float32)
    if INVERSE:
        sin = -sin
    blocks: tl.constexpr = (QUERY_HEADS + BLOCK - 1) // BLOCK
    head = tl.arange(0, BLOCK)[:, None]
    if block < blocks:
        _rotate_heads(
            query + token * query_token, query_out + token * QUERY_HEADS * SIZE, query_head,
            block * BLOCK + head, cos, sin,
            QUERY_HEADS, SIZE, SIZE_PADDED, OFFSET, HALF, HALF_PADDED, NEOX,
        )  # fmt: skip
    else:
        _rotate_heads(
            key + token * key_token, key_out + token * KEY_HEADS * SIZE, key_head,
            (block - blocks) * BLOCK + head, cos, sin,
            KEY_HEADS, SIZE, SIZE_PADDED, OFFSET, HALF, HALF_PADDED, NEOX,
        )  # fmt: skip


def make_rotary_embedding() -> Call:
    """`rotary_embedding`."""
    kernel: Any = _rotate

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
        sizes = _sizes(head_size, cos_sin_cache.shape[1])
        query, query_token, query_head, query_heads, query_out = _operand(query, head_size)
        if key is None:
            key_in, key_token, key_head, key_heads, key_out = query, 0, 0, 0, None
        else:
            key_in, key_token, key_head, key_heads, key_out = _operand(key, head_size)
        if not query.numel():
            return query_out, key_out
        block = sizes["BLOCK"]
        # Their elements are taken for adjacent.
        positions, table = positions.flatten().contiguous(), cos_sin_cache.contiguous()
        kernel[(query.shape[0], -(-query_heads // block) - (-key_heads // block))](
            query,
            key_in,
            query_out,
            query_out if key_out is None else key_out,
            table,
            positions,
            query_token,
            query_head,
            key_token,
            key_head,
            table.stride(0),
            QUERY_HEADS=query_heads,
            KEY_HEADS=key_heads,
            OFFSET=rope_dim_offset,
            NEOX=is_neox_style,
            INVERSE=inverse,
            **sizes,
        )
        return query_out, key_out

    return rotary_embedding


@cache
def _sizes(head_size: int, rotary_dim: int) -> dict[str, int]:
    """Constants of the kernel."""
    half = triton.next_power_of_2(rotary_dim // 2)
    return {
        "SIZE": head_size,
        "SIZE_PADDED": triton.next_power_of_2(head_size),
        "HALF": rotary_dim // 2,
        "HALF_PADDED": half,
        "BLOCK": max(1, PAIRS // half),
    }


def _operand(x: torch.Tensor, head_size: int) -> tuple[torch.Tensor, int, int, int, torch.Tensor]:
    """x with adjacent channels, its strides of tokens and heads, its heads, and a result for it."""
    if x.dim() not in (2, 3) or (x.dim() == 3 and x.shape[2] != head_size):
        raise OpNotSupported(
            f"shape {tuple(x.shape)}; served: [tokens, heads * {head_size}], "
            f"[tokens, heads, {head_size}]"
        )
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.dim() == 3:
        return x, x.stride(0), x.stride(1), x.shape[1], out
    return x, x.stride(0), head_size, x.shape[1] // head_size, out
