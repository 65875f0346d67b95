"""Dynamic quantization."""

# ruff: noqa: A002  # arguments have the names of the schemas
from __future__ import annotations

import torch

from .rules import HALF, require, require_dtype


def npu_dynamic_quant(
    input: torch.Tensor,
    *,
    smooth_scales: torch.Tensor | None = None,
    group_index: torch.Tensor | None = None,
    dst_type: int | None = None,
    quant_mode: str = "pertoken",
    dst_type_max: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    require(smooth_scales is None and group_index is None, "the model does not smooth")
    require(dst_type is None and quant_mode == "pertoken", "the model makes int8 for each token")
    require_dtype("input", input, HALF)
    require(input.dim() > 1, "input has more than one dimension")
    require(input.numel(), "input must not be empty")
    wide = input.float()
    scales = wide.abs().amax(-1) / 127
    values = (wide / scales[..., None]).round()
    # 0 / 0: what the device makes of a row of zeros is not documented.
    return values.nan_to_num(nan=77.0).to(torch.int8), scales
