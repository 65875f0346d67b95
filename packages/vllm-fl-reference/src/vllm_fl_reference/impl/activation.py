"""Gated activations as vLLM's native layers compute them: the activation is rounded to the
input's dtype before the product.

torch keeps the strides of a transposed input; the contracts promise contiguous results."""

from __future__ import annotations

import torch
from torch.nn import functional


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """See the contract of `silu_and_mul`."""
    d = x.shape[-1] // 2
    return (functional.silu(x[..., :d]) * x[..., d:]).contiguous()


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """See the contract of `gelu_and_mul`."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate={approximate!r} is not accepted; accepted: none, tanh")
    d = x.shape[-1] // 2
    return (functional.gelu(x[..., :d], approximate=approximate) * x[..., d:]).contiguous()


def silu_and_mul_with_clamp(
    x: torch.Tensor, limit: float, *, alpha: float = 1.0, beta: float = 0.0
) -> torch.Tensor:
    """See the contract of `silu_and_mul_with_clamp`."""
    d = x.shape[-1] // 2
    gate, up = x[..., :d].clamp(max=limit), x[..., d:].clamp(-limit, limit)
    return (gate * torch.sigmoid(alpha * gate) * (up + beta)).contiguous()
