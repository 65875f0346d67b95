"""Results of one call against the shapes and the numbers that the contract says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.testing.compare import MAX_MEAN_ULP, deviation, mean_error


def misfits(found: tuple[Any, ...], shapes: tuple[Any, ...]) -> list[str]:
    """Where results differ from what the contract's shape function says."""
    if len(found) != len(shapes):
        return [f"returned {len(found)} results, expected {len(shapes)}"]
    problems = []
    for number, (result, shape) in enumerate(zip(found, shapes, strict=True)):
        if not isinstance(result, torch.Tensor) or shape is None:
            if result is not shape:
                wanted = None if shape is None else "a tensor"
                problems.append(f"result {number} is {type(result).__name__}, expected {wanted}")
            continue
        for what in ("shape", "dtype", "device"):
            have, want = getattr(result, what), getattr(shape, what)
            if have != want:
                have, want = (list(v) if what == "shape" else v for v in (have, want))
                problems.append(f"result {number} has {what} {have}, expected {want}")
    return problems


def errors(
    spec: OpSpec,
    case_dtype: str,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    found: tuple[Any, ...],
    expected: tuple[Any, ...],
) -> tuple[float, list[str]]:
    """(largest error in ulp, what is wrong) of the numbers.

    Args:
        found: tensors, or None.
        expected: the oracle's.
    """
    if len(found) != len(expected) or not all(map(_is_tensor, found)):
        kinds = ", ".join(type(each).__name__ for each in found)
        return float("inf"), [f"returned ({kinds}), the oracle {len(expected)} tensors"]
    if spec.canonical is not None:
        found = spec.canonical(found, *args, **options)
        expected = spec.canonical(expected, *args, **options)
    unit = args[positional_names(spec).index(spec.ulp_of)].dtype if spec.ulp_of else None
    worst, problems = 0.0, []
    for number, (result, truth) in enumerate(zip(found, expected, strict=True)):
        if result is None or truth is None:
            continue
        if result.shape != truth.shape:
            problems.append(f"result {number} means {list(result.shape)} elements, "
                            f"expected {list(truth.shape)}")  # fmt: skip
            continue
        off = deviation(spec, case_dtype, result, truth, unit)
        if off is not None:
            if result.dtype.is_floating_point:
                worst = max(worst, off.amount)
            if not off.ok:
                problems.append(f"result {number} is off by {off.text}")
            elif result.element_size() == 2:
                mean = mean_error(result, truth, spec.ulp_floor)
                if abs(mean) > MAX_MEAN_ULP:
                    problems.append(
                        f"result {number} is off by {mean:+.3f} ulp in the mean: rounded "
                        f"wrongly, or computed in too short a type; accepted {MAX_MEAN_ULP}"
                    )
    return worst, problems


def _is_tensor(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor)
