"""Gated activations. The kernels read packed rows and write a given output."""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_cuda.schema import compiled_operator
from vllm_fl_dispatch.handles import Call


def make_silu_and_mul() -> Call:
    """`silu_and_mul` through ``_C::silu_and_mul``."""
    op = compiled_operator("silu_and_mul")

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        return _gated(op, x)

    return silu_and_mul


def make_gelu_and_mul() -> Call:
    """`gelu_and_mul` through ``_C::gelu_and_mul`` and ``_C::gelu_tanh_and_mul``."""
    ops = {
        "none": compiled_operator("gelu_and_mul"),
        "tanh": compiled_operator("gelu_tanh_and_mul"),
    }

    def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        if approximate not in ops:
            raise ValueError(f"approximate={approximate!r} is not accepted; accepted: none, tanh")
        return _gated(ops[approximate], x)

    return gelu_and_mul


def _gated(op: Any, x: torch.Tensor) -> torch.Tensor:
    out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
    # A launch with no rows is an error of the device.
    if out.numel():
        op(out, x.contiguous())
    return out
