"""Gated activations."""

# ruff: noqa: A002  # arguments have the names of the schemas
from __future__ import annotations

import torch
from torch.nn import functional

from .rules import FLOAT, require, require_dense, require_dtype


def npu_swiglu(input: torch.Tensor, dim: int = -1) -> torch.Tensor:
    left, right = _halves(input, dim)
    return (functional.silu(left) * right).to(input.dtype)


def npu_geglu(
    input: torch.Tensor, dim: int = -1, approximate: int = 1, activate_left: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    require(approximate in (0, 1), "approximate is 0 (erf) or 1 (tanh)")
    left, right = _halves(input, dim)
    gate, up = (left, right) if activate_left else (right, left)
    activated = functional.gelu(gate, approximate=("none", "tanh")[approximate])
    return (activated * up).to(input.dtype), activated.to(input.dtype)


def npu_clipped_swiglu(
    x: torch.Tensor,
    *,
    group_index: torch.Tensor | None = None,
    dim: int = -1,
    alpha: float = 1.702,
    limit: float = 7.0,
    bias: float = 1.0,
    interleaved: bool = True,
) -> torch.Tensor:
    require(group_index is None, "the model knows no groups")
    require(x.dim() > 1, "x has more than one dimension")
    left, right = _halves(x, dim)
    if interleaved:
        wide = x.double()
        require(dim == -1, "the model interleaves the last dimension only")
        left, right = wide[..., ::2], wide[..., 1::2]
    left, right = left.clamp(max=limit), right.clamp(-limit, limit)
    return (left * torch.sigmoid(alpha * left) * (right + bias)).to(x.dtype)


def _halves(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    require_dtype("input", x, FLOAT)
    require(1 <= x.dim() <= 8, "input has 1 to 8 dimensions")
    require(x.shape[dim] % 2 == 0, f"dimension {dim} of {tuple(x.shape)} is even")
    require_dense(input=x)
    left, right = x.double().chunk(2, dim)
    return left, right
