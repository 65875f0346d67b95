"""Gated activations in one pass over packed rows.

FlagGems' kernels take two strided halves, which its generator cannot read in wide words: for many
tokens they need twice the time. docs/speed.md has figures.
"""

# Triton looks up the names in annotations of a kernel and knows none of Python's types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from vllm_fl_dispatch.handles import Call
from vllm_fl_flaggems.impl.limits import on_known_ground as supports

__all__ = ["make_gelu_and_mul", "make_silu_and_mul", "make_silu_and_mul_with_clamp", "supports"]

#: Most channels of one program: of half precision, 16 bytes for each of 128 threads.
BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]  # Triton is untyped
def _gated(
    x,
    out,
    row_stride,
    width,
    limit,
    alpha,
    beta,
    ACTIVATION: tl.constexpr,
    CHANNELS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    mask = channel < width
    halves = x + row * row_stride + channel
    gate = tl.load(halves, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(halves + width, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        gate = gate / (1.0 + tl.exp(-gate))
    elif ACTIVATION == "clamp":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + beta
        gate = gate / (1.0 + tl.exp(-alpha * gate))
    elif ACTIVATION == "none":
        gate = 0.5 * gate * (1.0 + tl.math.erf(gate * 0.7071067811865476))
    else:
        # 1 + tanh(z) is 2 sigmoid(2 z); twice sqrt(2 / pi) stands before the polynomial.
        doubled = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        gate = gate / (1.0 + tl.exp(-doubled))
    tl.store(out + row * width + channel, (gate * up).to(out.dtype.element_ty), mask=mask)


def _apply(
    x: torch.Tensor,
    activation: str,
    limit: float = 0.0,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> torch.Tensor:
    width = x.shape[-1] // 2
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if rows.stride(1) != 1:
        rows = rows.contiguous()
    out = rows.new_empty(rows.shape[0], width)
    if out.numel():
        channels = min(BLOCK, triton.next_power_of_2(width))
        kernel: Any = _gated
        kernel[(rows.shape[0], triton.cdiv(width, channels))](
            rows,
            out,
            rows.stride(0),
            width,
            limit,
            alpha,
            beta,
            ACTIVATION=activation,
            CHANNELS=channels,
        )
    return out if x.dim() == 2 else out.view(*x.shape[:-1], width)


def make_silu_and_mul() -> Call:
    """`silu_and_mul`."""
    return lambda x: _apply(x, "silu")


def make_gelu_and_mul() -> Call:
    """`gelu_and_mul`."""

    def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate={approximate!r} is not accepted; accepted: none, tanh")
        return _apply(x, approximate)

    return gelu_and_mul


def make_silu_and_mul_with_clamp() -> Call:
    """`silu_and_mul_with_clamp`."""

    def silu_and_mul_with_clamp(
        x: torch.Tensor, limit: float, *, alpha: float = 1.0, beta: float = 0.0
    ) -> torch.Tensor:
        # A whole number would be another kernel.
        return _apply(x, "clamp", float(limit), float(alpha), float(beta))

    return silu_and_mul_with_clamp
