"""How far a result is from the oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch.op_spec import OpSpec


def ulp_error(
    found: torch.Tensor,
    expected: torch.Tensor,
    floor: float = 0.0,
    unit_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The error of each element, in units of the last place at the expected value.

    Args:
        found: floating point, any dtype.
        expected: float64, of the same shape.
        floor: no value counts as smaller than this fraction of the root mean square of its row
            (the last dimension).
        unit_dtype: the dtype whose units are counted; by default that of `found`.

    Returns:
        float64, of the same shape; infinity where one is not finite and the other is not the
        same.
    """
    wide = found.double()
    same = (wide == expected) | (wide.isnan() & expected.isnan())
    size = expected.abs()
    if floor:
        row = expected.square().mean(-1, keepdim=True).sqrt() * floor
        size = torch.where(row.isfinite(), torch.maximum(size, row), size)
    info = torch.finfo(unit_dtype or found.dtype)
    size = size.clamp(min=info.tiny)
    unit = torch.exp2(size.log2().floor()) * info.eps
    error = (wide - expected).abs() / unit
    infinite = float("inf")
    return error.masked_fill(same, 0.0).nan_to_num(nan=infinite, posinf=infinite)


@dataclass(frozen=True)
class Deviation:
    """The worst element of one result.

    Attributes:
        amount: its error, in units of the last place, or in steps for integers.
        limit: what the contract accepts.
        text: where it is, and both values.
    """

    amount: float
    limit: float
    text: str

    @property
    def ok(self) -> bool:
        return self.amount <= self.limit


#: From so many elements on, errors of half-precision results must cancel in the mean; in rows
#: of this length in each row, where a variance in half precision would shift all of them.
MANY, LONG_ROW = 1024, 4096
#: A right rounding has a mean error near 0, truncation one of half a unit.
MAX_MEAN_ULP = 0.15


def mean_error(found: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> float:
    """The mean error in units of the last place, away from zero positive; of the worst long row.

    Args:
        found: float16 or bfloat16.
        expected: float64, of the same shape.
        floor: see `ulp_error`.

    Returns:
        0.0 for fewer than `MANY` elements.
    """
    if found.numel() < MANY:
        return 0.0
    signs = (found.double().abs() - expected.abs()).sign()
    error = (ulp_error(found, expected, floor) * signs).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    means = error.mean(-1).flatten() if found.shape[-1] >= LONG_ROW else error.mean().reshape(1)
    return float(means[means.abs().argmax()])


def deviation(
    spec: OpSpec, case_dtype: str, found: torch.Tensor, expected: torch.Tensor, unit_dtype: Any
) -> Deviation | None:
    """The worst element of `found`; None for an empty tensor.

    Args:
        expected: the oracle's result, of the same shape.
        unit_dtype: see `ulp_error`; for floating-point results.
    """
    if not found.numel():
        return None
    if found.dtype.is_floating_point:
        error = ulp_error(found, expected.double(), spec.ulp_floor, unit_dtype)
        limit, unit = spec.max_ulp[case_dtype], "ulp"
    else:
        error = (found.double() - expected.double()).abs()
        limit, unit = spec.max_steps, "steps"
    worst = int(error.argmax())
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), found.shape))
    amount = float(error.flatten()[worst])
    wrong = int((error > limit).sum())
    text = (
        f"{amount:.4g} {unit} at {list(index)}: found {found.flatten()[worst].item():.9g}, "
        f"expected {expected.flatten()[worst].item():.9g}; accepted {limit:g} {unit}; "
        f"{wrong} of {found.numel()} elements are outside"
    )
    return Deviation(amount, limit, text)
