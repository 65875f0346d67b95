"""Root-mean-square normalization as vLLM's native layers compute it: in float32, then rounded
to the weight's dtype before the weight multiplies."""

from __future__ import annotations

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    *,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """See the contract of `rms_norm`."""
    return _normalize(x.float(), x.dtype, weight, epsilon, variance_size, weight_offset)


def fused_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    *,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the contract of `fused_add_rms_norm`; overwrites nothing."""
    total = x.float() + residual.float()
    normed = _normalize(total, x.dtype, weight, epsilon, variance_size, weight_offset)
    return normed, total.to(x.dtype).contiguous()


def _normalize(
    x: torch.Tensor,
    dtype: torch.dtype,
    weight: torch.Tensor | None,
    epsilon: float,
    variance_size: int | None,
    weight_offset: float,
) -> torch.Tensor:
    """Normalize float32 `x`; the result has `dtype`."""
    measured = x if variance_size is None else x[..., :variance_size]
    variance = measured.pow(2).mean(dim=-1, keepdim=True)
    x = x * torch.rsqrt(variance + epsilon)
    if weight is not None:
        if weight_offset:
            weight = weight.float() + weight_offset
        x = x.to(weight.dtype) * weight
    return x.to(dtype).contiguous()
