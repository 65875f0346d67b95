"""Gated activations. FlagGems' kernels read two halves and write a given output."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_dispatch.handles import Call
from vllm_fl_flaggems import library
from vllm_fl_flaggems.impl.limits import check_extent
from vllm_fl_flaggems.impl.limits import on_known_ground as supports

__all__ = ["make_gelu_and_mul", "make_silu_and_mul", "make_silu_and_mul_with_clamp", "supports"]


def make_silu_and_mul() -> Call:
    """`silu_and_mul` through ``silu_and_mul_out``: no autograd, one output."""
    kernel = library.function("silu_and_mul_out")

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        gate, up, out = _halves(x)
        if out.numel():
            kernel(gate, up, out)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])

    return silu_and_mul


def make_gelu_and_mul() -> Call:
    """`gelu_and_mul` through the two kernels behind the public function: it has no ``_out``."""
    public = library.function("gelu_and_mul")
    generic = public.__module__ == "flag_gems.fused.gelu_and_mul"
    module = importlib.import_module(public.__module__)
    kernels = {
        "none": _into(public, "none", getattr(module, "gelu_none_and_mul_kernel", None), generic),
        "tanh": _into(public, "tanh", getattr(module, "gelu_tanh_and_mul_kernel", None), generic),
    }

    def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        if approximate not in kernels:
            raise ValueError(f"approximate={approximate!r} is not accepted; accepted: none, tanh")
        gate, up, out = _halves(x)
        if out.numel():
            kernels[approximate](gate, up, out)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])

    return gelu_and_mul


def make_silu_and_mul_with_clamp() -> Call:
    """`silu_and_mul_with_clamp` through ``silu_and_mul_with_clamp_out``, of newer releases.

    Its options `alpha` and `beta` do not exist there: calls with other values go elsewhere.
    """
    kernel = library.function("silu_and_mul_with_clamp_out")

    def silu_and_mul_with_clamp(x: torch.Tensor, limit: float) -> torch.Tensor:
        if x.is_cuda and torch.cuda.is_current_stream_capturing():
            raise OpNotSupported("it copies the limit to the device, which a graph cannot capture")
        gate, up, out = _halves(x)
        if out.numel():
            kernel(gate, up, out, limit)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])

    return silu_and_mul_with_clamp


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(gate, up, new output), each of two dimensions: a kernel is generated per rank."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    check_extent(rows)
    gate, up = rows.chunk(2, 1)
    # Sizes one by one cost the host less than a tuple of them: benchmarks/host_cost.py.
    return gate, up, rows.new_empty(rows.shape[0], rows.shape[1] // 2)


def _into(public: Any, approximate: str, kernel: Any, generic: bool) -> Call:
    """A function of (gate, up, out); through the kernel where it is the generic one."""
    if generic and kernel is not None:
        return lambda gate, up, out: kernel(gate, up, out0=out)
    return lambda gate, up, out: out.copy_(public(gate, up, approximate))
