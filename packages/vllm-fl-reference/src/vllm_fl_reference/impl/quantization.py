"""Quantization of activations in plain torch."""

from __future__ import annotations

import torch


def dynamic_per_token_quant_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See the contract of `dynamic_per_token_quant_int8`."""
    wide = x.float()
    largest = wide.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10)
    quantized = torch.round(wide * (127.0 / largest)).to(torch.int8)
    return quantized.contiguous(), largest / 127.0
