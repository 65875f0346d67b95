"""Quantization of activations."""

from __future__ import annotations

import torch

from vllm_fl_ascend.library import operator
from vllm_fl_ascend.limits import HALF, dtype_in, within
from vllm_fl_dispatch import Query, Verdict
from vllm_fl_dispatch.handles import Call

#: The scale of a row of zeros; the kernel returns 0.
SMALLEST_SCALE = 1e-10 / 127


def supports_dynamic_per_token_quant_int8(query: Query) -> Verdict:
    """Half precision only."""
    return within(dtype_in(query, HALF))


def make_dynamic_per_token_quant_int8() -> Call:
    """`dynamic_per_token_quant_int8` through npu_dynamic_quant."""
    dynamic_quant = operator("npu::npu_dynamic_quant")

    def dynamic_per_token_quant_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not x.numel():
            return (
                x.new_empty(x.shape, dtype=torch.int8),
                x.new_empty((*x.shape[:-1], 1), dtype=torch.float32),
            )
        # The kernel takes no tensor of one dimension.
        values, scales = dynamic_quant(input=x.contiguous().view(-1, x.shape[-1]))
        values, scales = values.view(x.shape), scales.view(*x.shape[:-1], 1)
        # A row of zeros is 0 / 0 in the kernel, and its integers are not documented.
        values = values.masked_fill(scales == 0, 0)
        return values, scales.clamp(min=SMALLEST_SCALE)

    return dynamic_per_token_quant_int8
