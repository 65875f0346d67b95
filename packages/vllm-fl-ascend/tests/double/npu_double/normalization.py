"""Root-mean-square normalization."""

# ruff: noqa: A002  # arguments have the names of the schemas
from __future__ import annotations

import torch

from .rules import FLOAT, require, require_dense, require_dtype

#: (input, gamma) as the documentation of npu_rms_norm lists them for A2 and A3.
DTYPE_PAIRS = {
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.bfloat16),
    (torch.float32, torch.float32),
}


def npu_rms_norm(
    input: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    pair = (input.dtype, gamma.dtype)
    require(pair in DTYPE_PAIRS, f"no kernel for input and gamma of {pair}")
    return _normalize(input.float(), gamma, epsilon, input.dtype)


def npu_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    require_dtype("x1", x1, FLOAT)
    require(x1.dtype == x2.dtype == gamma.dtype, "x1, x2 and gamma have one dtype")
    require(x1.shape == x2.shape, "x1 and x2 have one shape")
    require_dense(x1=x1, x2=x2)
    total = (x1.float() + x2.float()).to(x1.dtype)
    normed, rstd = _normalize(total.float(), gamma, epsilon, x1.dtype)
    return normed, rstd, total


def _normalize(
    wide: torch.Tensor, gamma: torch.Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    require(
        gamma.dim() >= 1 and wide.shape[-gamma.dim() :] == gamma.shape,
        f"gamma {tuple(gamma.shape)} covers the last dimensions of {tuple(wide.shape)}",
    )
    dims = tuple(range(-gamma.dim(), 0))
    rstd = torch.rsqrt(wide.square().mean(dims, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(dtype), rstd
