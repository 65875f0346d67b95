"""Root-mean-square normalization. A weight of float32 beside activations of half precision is fine;
without a weight, or with the variance of a part of the row, another implementation serves."""

from __future__ import annotations

import torch

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.derived import add_then_norm
from vllm_fl_dispatch.handles import Call
from vllm_fl_flaggems import library
from vllm_fl_flaggems.impl.limits import check_extent, on_known_ground

#: `fused_add_rms_norm` keeps a row in one block of the next power of two; beyond this width its
#: compilation takes many seconds and its registers spill.
MAX_ROW = 32768


def supports(query: Query) -> Verdict:
    """Residual of the input's dtype; rows that fit a block."""
    residual, width = query.get("residual_dtype"), query.last_dim
    if residual is not None and query.dtype is not None and residual != query.dtype:
        return Verdict.no(f"residual_dtype {residual} differs from the input's {query.dtype}")
    if query.op_name == "fused_add_rms_norm" and width is not None and width > MAX_ROW:
        return Verdict.no(f"rows of {width} elements, at most {MAX_ROW} fit its block")
    return on_known_ground(query)


def make_rms_norm() -> Call:
    """`rms_norm` through ``rms_norm_forward``: no autograd, half the host time."""
    kernel = library.function("rms_norm", cheap="flag_gems.ops.rms_norm:rms_norm_forward")
    returns_variance = kernel.__name__ == "rms_norm_forward"

    def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
        if weight is None:
            raise OpNotSupported("it needs a weight")
        check_extent(x)
        # The kernel gives its output the layout that it finds; the contract wants rows.
        x = x.contiguous()
        if not x.numel():
            return torch.empty_like(x)
        normed = kernel(x, weight.shape, weight, epsilon)
        result: torch.Tensor = normed[0] if returns_variance else normed.detach()
        return result

    return rms_norm


def make_fused_add_rms_norm() -> Call:
    """`fused_add_rms_norm`, in place."""
    kernel = library.function("fused_add_rms_norm")

    def fused_add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if weight is None:
            raise OpNotSupported("it needs a weight")
        # It overwrites the copy of what is not contiguous, and not the caller's tensor.
        x, residual = x.contiguous(), residual.contiguous()
        if x.numel():
            kernel(x, residual, weight.shape, weight, epsilon)
        return x, residual

    return fused_add_rms_norm


def make_functional_fused_add_rms_norm() -> Call:
    """`fused_add_rms_norm` in two kernels that overwrite nothing."""
    return add_then_norm(make_rms_norm())
