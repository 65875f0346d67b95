"""Functions that backends make of others of theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm_fl_dispatch.handles import Call

if TYPE_CHECKING:
    import torch


def add_then_norm(rms_norm: Call) -> Call:
    """`fused_add_rms_norm` that overwrites nothing, from a backend's `rms_norm`.

    For `OpImpl.load_functional` beside a kernel that overwrites both arguments: an addition and a
    norm move less than that kernel and copies for it would.
    """

    def fused_add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = (x + residual).to(x.dtype).contiguous()
        return rms_norm(total, weight, epsilon), total

    return fused_add_rms_norm
