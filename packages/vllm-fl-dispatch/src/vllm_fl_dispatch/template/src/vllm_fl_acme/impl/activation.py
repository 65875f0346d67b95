"""Gated activations."""

from __future__ import annotations

import torch
from torch.nn import functional


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """See the contract of `silu_and_mul`: x [..., 2d] -> [..., d], rounded once.

    Your kernel goes here.
    """
    gate, up = x.float().chunk(2, dim=-1)
    return (functional.silu(gate) * up).to(x.dtype).contiguous()
