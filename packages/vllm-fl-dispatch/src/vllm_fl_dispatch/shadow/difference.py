"""How far two results are apart, without holding a float64 copy of either."""

from __future__ import annotations

import math
from typing import Any

import torch

from vllm_fl_dispatch.testing.compare import ulp_error
from vllm_fl_dispatch.types import OpSpec

#: Elements that are widened to float64 at a time.
CHUNK = 1 << 22


def difference(spec: OpSpec, found: Any, expected: Any) -> tuple[float, float, str]:
    """(ulp, tolerance, note) for one result of an operator.

    The tolerance is twice that of the contract: each of the two may be that far from the truth.
    Integers differ in units of 1.
    """
    if found is None or expected is None:
        same = found is expected
        return (0.0 if same else math.inf), 0.0, "" if same else "None in one of the two"
    tolerance = 2 * spec.max_ulp.get(str(found.dtype).removeprefix("torch."), 0.0)
    for what in ("shape", "dtype"):
        one, other = getattr(found, what), getattr(expected, what)
        if one != other:
            return math.inf, tolerance, f"{what} {one}, beside {other}"
    if not found.numel():
        return 0.0, tolerance, ""
    width = found.shape[-1] if found.ndim else 1
    rows = max(1, CHUNK // width)
    pairs = zip(
        found.reshape(-1, width).split(rows), expected.reshape(-1, width).split(rows), strict=True
    )
    return max(_error(spec, *pair) for pair in pairs), tolerance, ""


def _error(spec: OpSpec, found: torch.Tensor, expected: torch.Tensor) -> float:
    # Not every device has float64.
    if found.device.type not in ("cpu", "cuda"):
        found, expected = found.cpu(), expected.cpu()
    wide = expected.double()
    if not found.is_floating_point():
        return float((found.double() - wide).abs().max())
    return ulp_error(found, wide, spec.ulp_floor)
