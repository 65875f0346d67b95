"""How far the results of two implementations are apart, in what the contract leaves equal."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.testing.compare import ulp_error

#: Elements that are widened to float64 at a time.
CHUNK = 1 << 22


def differences(
    spec: OpSpec,
    args: tuple[Any, ...],
    options: dict[str, Any],
    found: tuple[Any, ...],
    expected: tuple[Any, ...],
) -> Iterator[tuple[float, float, str]]:
    """(difference, tolerance, note) for each result of a call.

    The tolerance is twice that of the contract: each of the two may be that far from the truth.
    Floating-point results differ in units of the last place, integers in steps.
    """
    if spec.canonical is not None:
        found = spec.canonical(found, *args, **options)
        expected = spec.canonical(expected, *args, **options)
    limits = (spec.max_ulp.get(_data_dtype(args), 0.0), spec.max_steps)
    unit = args[positional_names(spec).index(spec.ulp_of)].dtype if spec.ulp_of else None
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            same = one is other
            yield 0.0 if same else math.inf, 0.0, "" if same else "None in one of the two"
            continue
        tolerance = 2 * limits[0 if one.is_floating_point() else 1]
        note = _misfit(one, other)
        yield math.inf if note else _largest(one, other, spec.ulp_floor, unit), tolerance, note


def _data_dtype(args: tuple[Any, ...]) -> str:
    """Name of the dtype of the data, under which tolerances are looked up."""
    tensors = (a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point())
    return next((str(tensor.dtype).removeprefix("torch.") for tensor in tensors), "")


def _misfit(found: torch.Tensor, expected: torch.Tensor) -> str:
    for what in ("shape", "dtype"):
        one, other = getattr(found, what), getattr(expected, what)
        if one != other:
            return f"{what} {one}, beside {other}"
    return ""


def _largest(
    found: torch.Tensor, expected: torch.Tensor, floor: float, unit: torch.dtype | None
) -> float:
    if not found.numel():
        return 0.0
    width = found.shape[-1] if found.ndim else 1
    rows = max(1, CHUNK // width)
    pairs = zip(
        torch.split(found.reshape(-1, width), rows),
        torch.split(expected.reshape(-1, width), rows),
        strict=True,
    )
    return max(_error(one, other, floor, unit) for one, other in pairs)


def _error(
    found: torch.Tensor, expected: torch.Tensor, floor: float, unit: torch.dtype | None
) -> float:
    # Not every device has float64.
    if found.device.type not in ("cpu", "cuda"):
        found, expected = found.cpu(), expected.cpu()
    wide = expected.double()
    if found.is_floating_point():
        return float(ulp_error(found, wide, floor, unit).max())
    return float((found.double() - wide).abs().max())
