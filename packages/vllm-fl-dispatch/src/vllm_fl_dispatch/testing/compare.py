"""How far a result is from the oracle, in units of the last place."""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.types import OpSpec


def ulp_error(found: torch.Tensor, expected: torch.Tensor, floor: float = 0.0) -> float:
    """The largest error of `found`, in units of the last place of its dtype.

    Args:
        found: floating point, any dtype.
        expected: float64, of the same shape.
        floor: no value counts as smaller than this fraction of the root mean square of its row
            (the last dimension).

    Returns:
        0.0 for equal or empty tensors; infinity where one is not finite and the other is not
        the same.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"shape {tuple(found.shape)}, expected {tuple(expected.shape)}")
    if not found.numel():
        return 0.0
    wide = found.double()
    same = (wide == expected) | (wide.isnan() & expected.isnan())
    size = expected.abs()
    if floor:
        row = expected.square().mean(-1, keepdim=True).sqrt() * floor
        size = torch.maximum(size, row)
    info = torch.finfo(found.dtype)
    size = size.clamp(min=info.tiny)
    unit = torch.exp2(size.log2().floor()) * info.eps
    error = (wide - expected).abs() / unit
    error = error.masked_fill(same, 0.0).nan_to_num(nan=float("inf"), posinf=float("inf"))
    return float(error.max())


def run_case(
    spec: OpSpec, fn: Any, case: Case, device: str = "cpu"
) -> tuple[float, tuple[Any, ...], tuple[Any, ...]]:
    """Run one conformance case; returns (largest error in ulp, results, expected results).

    Raises:
        AssertionError: shape or dtype differ from the contract's, or an argument that the
            contract does not donate was changed.
    """
    from vllm_fl_dispatch.contracts import positional_names

    args = case.make(Maker(device))
    # The truth is computed first: the implementation may overwrite what it is given.
    expected = _as_tuple(spec.oracle(*args, **case.options)) if spec.oracle else ()
    shapes = _as_tuple(spec.fake(*args, **case.options)) if spec.fake else ()
    kept = {
        name: arg.clone()
        for name, arg in zip(positional_names(spec), args, strict=False)
        if isinstance(arg, torch.Tensor) and name not in spec.donates
    }
    found = _as_tuple(fn(*args, **case.options))
    for name, before in kept.items():
        after = args[positional_names(spec).index(name)]
        if not torch.equal(after, before):
            raise AssertionError(f"{spec.name} changed its argument {name}")
    worst = 0.0
    for result, truth, shape in zip(found, expected, shapes, strict=True):
        if result is None or truth is None:
            if result is not truth:
                raise AssertionError(f"found {result}, expected {truth}")
            continue
        if result.dtype != shape.dtype:
            raise AssertionError(f"dtype {result.dtype}, expected {shape.dtype}")
        worst = max(worst, ulp_error(result, truth, spec.ulp_floor))
    return worst, found, expected


def _as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)
