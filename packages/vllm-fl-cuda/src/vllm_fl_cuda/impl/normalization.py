"""Root-mean-square normalization. The kernels want the weight in the input's dtype; the fused
one overwrites its input and the residual."""

from __future__ import annotations

import torch

from vllm_fl_cuda.impl.gaps import without_gaps
from vllm_fl_cuda.schema import compiled_operator, takes_none
from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.derived import add_then_norm
from vllm_fl_dispatch.handles import Call

_NEEDS_WEIGHT = "the compiled operator of this vLLM needs a weight"


def supports(query: Query) -> Verdict:
    """The weight, and a residual, must have the input's dtype."""
    for fact in ("weight_dtype", "residual_dtype"):
        other = query.get(fact)
        if other is not None and query.dtype is not None and other != query.dtype:
            return Verdict.no(f"{fact} {other} differs from the input's {query.dtype}")
    return Verdict.yes()


def make_rms_norm() -> Call:
    """`rms_norm` through ``_C::rms_norm``."""
    op = compiled_operator("_C::rms_norm")
    weightless = takes_none(op, 2)

    def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, epsilon: float) -> torch.Tensor:
        if weight is None and not weightless:
            raise OpNotSupported(_NEEDS_WEIGHT)
        weight = without_gaps(weight)
        if x.is_contiguous():
            out = torch.empty_like(x)
        else:
            # Rows may lie anywhere: heads between those of others. Not in vLLM's build for the CPU.
            x = x if x.stride(-1) == 1 and not x.is_cpu else x.contiguous()
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        if x.dim() == 1:  # the kernel asks for the stride of a second dimension
            op(out[None], x[None], weight, epsilon)
        elif out.numel():
            op(out, x, weight, epsilon)
        return out

    return rms_norm


def make_fused_add_rms_norm() -> Call:
    """`fused_add_rms_norm` through ``_C::fused_add_rms_norm``, in place."""
    op = compiled_operator("_C::fused_add_rms_norm")
    weightless = takes_none(op, 2)

    def fused_add_rms_norm(
        x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if weight is None and not weightless:
            raise OpNotSupported(_NEEDS_WEIGHT)
        x, residual, weight = x.contiguous(), residual.contiguous(), without_gaps(weight)
        if x.dim() == 1:
            op(x[None], residual[None], weight, epsilon)
        elif x.numel():
            op(x, residual, weight, epsilon)
        return x, residual

    return fused_add_rms_norm


def make_functional_fused_add_rms_norm() -> Call:
    """`fused_add_rms_norm` in two kernels that overwrite nothing."""
    return add_then_norm(make_rms_norm())
