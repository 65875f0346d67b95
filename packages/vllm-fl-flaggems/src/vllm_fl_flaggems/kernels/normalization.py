"""Root-mean-square normalization, a program for a row: what FlagGems' does not serve, and where it
is not installed or refuses the installed Triton."""

# Triton looks up the names in annotations of a kernel and knows none of Python's types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from vllm_fl_dispatch import Query, Verdict
from vllm_fl_dispatch.handles import Call
from vllm_fl_flaggems.impl.limits import on_known_ground

#: A row stands in the registers of one program.
MAX_ROW = 32768


def supports(query: Query) -> Verdict:
    """Rows that fit the registers of a program."""
    width = query.last_dim
    if width is not None and width > MAX_ROW:
        return Verdict.no(f"rows of {width} elements, at most {MAX_ROW} fit its registers")
    return on_known_ground(query)


@triton.jit  # type: ignore[untyped-decorator]  # Triton is untyped
def _norm(
    x,
    residual,
    weight,
    out,
    total,
    heads,
    x_token,
    x_head,
    width,
    variance_size,
    epsilon,
    offset,
    HAS_RESIDUAL: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    # A token has several rows where they are heads that lie between others, as in a product qkv.
    x += row // heads * x_token + row % heads * x_head
    column = tl.arange(0, BLOCK)
    mask = column < width
    wide = tl.load(x + column, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        wide += tl.load(residual + row * width + column, mask=mask, other=0.0).to(tl.float32)
        tl.store(total + row * width + column, wide.to(total.dtype.element_ty), mask=mask)
    part = tl.where(column < variance_size, wide, 0.0)
    normed = wide / tl.sqrt(tl.sum(part * part, axis=0) / variance_size + epsilon)
    if HAS_WEIGHT:
        normed *= tl.load(weight + column, mask=mask, other=0.0).to(tl.float32) + offset
    tl.store(out + row * width + column, normed.to(out.dtype.element_ty), mask=mask)


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    out: torch.Tensor,
    total: torch.Tensor,
    epsilon: float,
    variance_size: int | None,
    offset: float,
) -> None:
    width = x.shape[-1]
    block = triton.next_power_of_2(width)
    kernel: Any = _norm
    kernel[(out.numel() // width,)](
        x,
        x if residual is None else residual,
        x if weight is None else weight.contiguous(),
        out,
        total,
        *_places(x),
        width,
        width if variance_size is None else variance_size,
        epsilon,
        float(offset),
        HAS_RESIDUAL=residual is not None,
        HAS_WEIGHT=weight is not None,
        BLOCK=block,
        num_warps=min(max(block // 512, 4), 16),
    )


def _places(x: torch.Tensor) -> tuple[int, int, int]:
    """Rows of a token, and the strides of tokens and of rows."""
    if x.dim() == 3:
        return x.shape[1], x.stride(0), x.stride(1)
    return 1, x.stride(0) if x.dim() == 2 else x.shape[-1], 0


def make_rms_norm() -> Call:
    """`rms_norm`."""

    def rms_norm(
        x: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        *,
        variance_size: int | None = None,
        weight_offset: float = 0.0,
    ) -> torch.Tensor:
        if x.dim() not in (2, 3) or x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        if out.numel():
            _launch(x, None, weight, out, out, epsilon, variance_size, weight_offset)
        return out

    return rms_norm


def make_fused_add_rms_norm() -> Call:
    """`fused_add_rms_norm`, to new tensors."""

    def fused_add_rms_norm(
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor | None,
        epsilon: float,
        *,
        variance_size: int | None = None,
        weight_offset: float = 0.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = x.contiguous(), residual.contiguous()
        out, total = torch.empty_like(x), torch.empty_like(x)
        if x.numel():
            _launch(x, residual, weight, out, total, epsilon, variance_size, weight_offset)
        return out, total

    return fused_add_rms_norm
