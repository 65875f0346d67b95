"""Gated activations. The kernels take contiguous tensors with at least one element."""

from __future__ import annotations

import torch

from vllm_fl_ascend.library import operator
from vllm_fl_ascend.limits import FLOAT, dtype_in, within
from vllm_fl_dispatch import Query, Verdict
from vllm_fl_dispatch.handles import Call

APPROXIMATE = {"none": 0, "tanh": 1}


def supports_silu_and_mul(query: Query) -> Verdict:
    """Half precision and float32."""
    return within(dtype_in(query, FLOAT))


def make_silu_and_mul() -> Call:
    """`silu_and_mul` through npu_swiglu, which rounds once."""
    swiglu = operator("npu::npu_swiglu")

    def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
        if not x.numel():
            return _empty(x)
        gated: torch.Tensor = swiglu(input=x.contiguous(), dim=-1)
        return gated

    return silu_and_mul


supports_gelu_and_mul = supports_silu_and_mul


def make_gelu_and_mul() -> Call:
    """`gelu_and_mul` through npu_geglu."""
    geglu = operator("npu::npu_geglu")

    def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
        if approximate not in APPROXIMATE:
            raise ValueError(f"approximate={approximate!r} is not accepted; accepted: none, tanh")
        if not x.numel():
            return _empty(x)
        # Left to itself the kernel activates the right half, with tanh.
        gated: torch.Tensor = geglu(
            input=x.contiguous(),
            dim=-1,
            approximate=APPROXIMATE[approximate],
            activate_left=True,
        )[0]
        return gated

    return gelu_and_mul


supports_silu_and_mul_with_clamp = supports_silu_and_mul


def make_silu_and_mul_with_clamp() -> Call:
    """`silu_and_mul_with_clamp` through npu_clipped_swiglu."""
    clipped = operator("npu::npu_clipped_swiglu")

    def silu_and_mul_with_clamp(
        x: torch.Tensor, limit: float, *, alpha: float = 1.0, beta: float = 0.0
    ) -> torch.Tensor:
        if not x.numel():
            return _empty(x)
        # Not with one dimension. By default the kernel pairs even with odd channels.
        gated: torch.Tensor = clipped(
            x=x.contiguous().view(-1, x.shape[-1]),
            dim=-1,
            alpha=alpha,
            limit=limit,
            bias=beta,
            interleaved=False,
        )
        return gated.view(*x.shape[:-1], x.shape[-1] // 2)

    return silu_and_mul_with_clamp


def _empty(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))
