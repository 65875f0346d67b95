"""Quantization of activations."""

from __future__ import annotations

import torch

from vllm_fl_cuda.schema import EXPECTED, caller, compiled_operator
from vllm_fl_dispatch.handles import Call


def make_dynamic_per_token_quant_int8() -> Call:
    """`dynamic_per_token_quant_int8` through ``_C::dynamic_scaled_int8_quant``."""
    name = "_C::dynamic_scaled_int8_quant"
    op = caller(compiled_operator(name), len(EXPECTED[name]))

    def dynamic_per_token_quant_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        quantized = torch.empty(x.shape, dtype=torch.int8, device=x.device)
        scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        if quantized.numel():
            flat = x.reshape(-1, x.shape[-1])
            op(quantized.view(flat.shape), flat.contiguous(), scales.view(-1, 1), None)
        return quantized, scales

    return dynamic_per_token_quant_int8
