"""How the model says that a call breaks a documented rule."""

from __future__ import annotations

from typing import Any

import torch

HALF = (torch.float16, torch.bfloat16)
FLOAT = (*HALF, torch.float32)


class RuleBroken(RuntimeError):
    """A call that the device would refuse, answer wrongly or not survive."""


def require(condition: Any, rule: str) -> None:
    """Raise RuleBroken unless the condition holds; `rule` states it."""
    if not condition:
        raise RuleBroken(rule)


def require_dtype(name: str, tensor: torch.Tensor, accepted: tuple[torch.dtype, ...]) -> None:
    """The tensor has one of these dtypes."""
    require(tensor.dtype in accepted, f"{name} is {tensor.dtype}, must be one of {accepted}")


def require_dense(**tensors: torch.Tensor) -> None:
    """The tensors are contiguous and have elements."""
    for name, tensor in tensors.items():
        require(tensor.is_contiguous(), f"{name} must be contiguous")
        require(tensor.numel(), f"{name} must not be empty")


def poison(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of what nobody may rely on: NaN, or integers far out of every range."""
    return torch.full(shape, float("nan") if dtype.is_floating_point else -(2**30), dtype=dtype)
