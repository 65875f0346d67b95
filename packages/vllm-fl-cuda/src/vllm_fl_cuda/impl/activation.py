"""Gated activations. The kernels read packed rows and write a given output."""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_cuda.schema import compiled_operator
from vllm_fl_dispatch import OpNotSupported
from vllm_fl_dispatch.handles import Call


def make_silu_and_mul() -> Call:
    """`silu_and_mul` through ``_C::silu_and_mul``."""
    op = compiled_operator("_C::silu_and_mul")

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        return _gated(op, x)

    return silu_and_mul


def make_gelu_and_mul() -> Call:
    """`gelu_and_mul` through ``_C::gelu_and_mul`` and ``_C::gelu_tanh_and_mul``."""
    ops = {
        "none": compiled_operator("_C::gelu_and_mul"),
        "tanh": compiled_operator("_C::gelu_tanh_and_mul"),
    }

    def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        if approximate not in ops:
            raise ValueError(f"approximate={approximate!r} is not accepted; accepted: none, tanh")
        return _gated(ops[approximate], x)

    return gelu_and_mul


def make_silu_and_mul_with_clamp() -> Call:
    """`silu_and_mul_with_clamp` through ``_C::silu_and_mul_with_clamp``."""
    op = compiled_operator("_C::silu_and_mul_with_clamp")
    has_constants = len(op._schema.arguments) >= 5

    def silu_and_mul_with_clamp(
        x: torch.Tensor, limit: float, *, alpha: float = 1.0, beta: float = 0.0
    ) -> torch.Tensor:
        constants = (alpha, beta) if has_constants else ()
        if not has_constants and (alpha, beta) != (1.0, 0.0):
            raise OpNotSupported("the compiled operator of this vLLM has no alpha and beta")
        return _gated(op, x, limit, *constants)

    return silu_and_mul_with_clamp


def _gated(op: Any, x: torch.Tensor, *rest: float) -> torch.Tensor:
    *rows, width = x.shape
    # Sizes one by one cost the host less than a tuple of them: benchmarks/host_cost.py.
    out = x.new_empty(*rows, width // 2)
    # A launch with no rows is an error of the device.
    if out.numel():
        op(out, x.contiguous(), *rest)
    return out
