"""Root-mean-square normalization. The kernels need a weight; the fused one needs all dtypes equal
and at least one element."""

from __future__ import annotations

import torch

from vllm_fl_ascend.library import operator
from vllm_fl_ascend.limits import FLOAT, dtype_in, within
from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call

_NEEDS_WEIGHT = "the kernel needs a weight"


def supports_rms_norm(query: Query) -> Verdict:
    """A weight of the input's dtype, or of float32."""
    weight, dtype = query.get("weight_dtype"), query.dtype
    pair_known = weight is not None and dtype is not None
    return within(
        dtype_in(query, FLOAT),
        _NEEDS_WEIGHT if "weight_dtype" in query.facts and weight is None else None,
        f"no kernel for an input of {dtype} with a weight of {weight}"
        if pair_known and weight not in (dtype, torch.float32)
        else None,
    )


def make_rms_norm() -> Call:
    """`rms_norm` through npu_rms_norm: computed in float32, rounded once."""
    norm = operator("npu::npu_rms_norm")

    def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
        if weight is None:
            raise OpNotSupported(_NEEDS_WEIGHT)
        if not x.numel():
            return x.new_empty(x.shape)
        normed: torch.Tensor = norm(input=x.contiguous(), gamma=weight, epsilon=epsilon)[0]
        return normed

    return rms_norm


def supports_fused_add_rms_norm(query: Query) -> Verdict:
    """As for `rms_norm`; the residual may be float32."""
    verdict = supports_rms_norm(query)
    accepted = (query.dtype, torch.float32) if query.dtype is not None else FLOAT
    return within(dtype_in(query, accepted, "residual_dtype")) if verdict else verdict


def make_fused_add_rms_norm() -> Call:
    """`fused_add_rms_norm` through npu_add_rms_norm, which norms the rounded sum."""
    fused = operator("npu::npu_add_rms_norm")
    norm = operator("npu::npu_rms_norm")

    def fused_add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if weight is None:
            raise OpNotSupported(_NEEDS_WEIGHT)
        if not x.numel():
            return x.new_empty(x.shape), x.new_empty(x.shape)
        if x.dtype == residual.dtype == weight.dtype:
            # The result in the middle is the reciprocal of the root.
            normed, _, total = fused(
                x1=x.contiguous(), x2=residual.contiguous(), gamma=weight, epsilon=epsilon
            )
            return normed, total
        # The sum of mixed dtypes is formed in float32, and rounded once.
        total = torch.add(x, residual).to(x.dtype).contiguous()
        return norm(input=total, gamma=weight, epsilon=epsilon)[0], total

    return fused_add_rms_norm
