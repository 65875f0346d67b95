"""Oracles and conformance cases of the gated activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import DTYPES, HALF, MANY_ROWS, Case, Maker

if TYPE_CHECKING:
    import torch

INF, NAN = float("inf"), float("nan")


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = x.shape[-1] // 2
    wide = x.double()
    return wide[..., :d], wide[..., d:]


def silu_oracle(x: torch.Tensor) -> torch.Tensor:
    """`silu_and_mul` in float64."""
    gate, up = _halves(x)
    activated: torch.Tensor = gate * gate.sigmoid() * up
    return activated


def gelu_oracle(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """`gelu_and_mul` in float64."""
    import torch

    gate, up = _halves(x)
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


def clamp_oracle(
    x: torch.Tensor, limit: float, *, alpha: float = 1.0, beta: float = 0.0
) -> torch.Tensor:
    """`silu_and_mul_with_clamp` in float64."""
    gate, up = _halves(x)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    activated: torch.Tensor = gate * (alpha * gate).sigmoid() * (up + beta)
    return activated


def _tail(m: Maker, dtype: str) -> torch.Tensor:
    """Gates far below zero: a careless silu flushes them to 0."""
    gate = m.of((-16.0 + 12.0 * i / 255 for i in range(256)), dtype)
    row: torch.Tensor = m.torch.cat([gate, m.of([1.0] * 256, dtype)])
    return row.unsqueeze(0)


def _extremes(m: Maker, dtype: str) -> torch.Tensor:
    """Saturated gates, NaN, and an up of zero, infinity and NaN, among ordinary numbers."""
    gate = [88.0, -88.0, 30.0, -30.0, NAN, 0.0, 1.0, -1.0, 1e-6, -1e-6, 2.0, 5.0, -2.0, 3.0, 4.0]
    up = [1.0] * 12 + [0.0, INF, NAN]
    return m.of([*gate, 0.5, *up, -0.5], dtype).unsqueeze(0)


def _infinite_gate(m: Maker, dtype: str) -> torch.Tensor:
    return m.of([INF] + [1.0] * 15 + [2.0] * 16, dtype).unsqueeze(0)


#: name -> (Maker, dtype) -> x
_INPUTS: dict[str, Callable[[Maker, str], torch.Tensor]] = {
    "one-row": lambda m, dtype: m.normal(1, 2 * 512, dtype=dtype, scale=3.0),
    "one-dimension": lambda m, dtype: m.normal(2 * 64, dtype=dtype),
    "odd-width": lambda m, dtype: m.normal(7, 2 * 513, dtype=dtype, scale=3.0),
    "wide": lambda m, dtype: m.normal(83, 2 * 1728, dtype=dtype, scale=3.0),
    "odd-wide": lambda m, dtype: m.normal(3, 2 * 8200, dtype=dtype, scale=3.0),
    "3d": lambda m, dtype: m.normal(2, 3, 2 * 64, dtype=dtype),
    "row-stride": lambda m, dtype: m.normal(5, 4 * 96, dtype=dtype)[:, : 2 * 96],
    "column-stride": lambda m, dtype: m.normal(5, 4 * 96, dtype=dtype)[:, ::2],
    "transposed": lambda m, dtype: m.normal(2 * 64, 9, dtype=dtype).T,
    "zero-rows": lambda m, dtype: m.normal(0, 2 * 32, dtype=dtype),
    "zero-rows-3d": lambda m, dtype: m.normal(3, 0, 2 * 20, dtype=dtype),
    "extremes": _extremes,
}
#: Where the activation does not cancel, and torch's own is right on every device.
_SILU_INPUTS = {"tail": _tail, "infinite-gate": _infinite_gate}


def _cases(
    inputs: dict[str, Any] = _INPUTS, **rest: Callable[[Maker], tuple[Any, ...]]
) -> Iterable[Case]:
    """Every input with every kind of further arguments: name -> function that makes them."""
    for suffix, more in rest.items():
        ending = "" if suffix == "plain" else f"-{suffix}"
        for dtype in DTYPES:
            for name, make in inputs.items():
                yield Case(f"{dtype}-{name}{ending}", _arguments(make, dtype, more), dtype=dtype)
    for dtype in HALF:
        yield Case(f"{dtype}-far-rows", _arguments(_far, dtype, more), dtype=dtype, heavy=True)
    make = _arguments(_many, "bfloat16", more)
    yield Case(f"bfloat16-{MANY_ROWS}-rows", make, dtype="bfloat16", rows=MANY_ROWS)


def _many(m: Maker, dtype: str) -> torch.Tensor:
    return m.normal(MANY_ROWS, 2 * 16, dtype=dtype)


def _far(m: Maker, dtype: str) -> torch.Tensor:
    return m.far_rows(2 * 64, dtype=dtype)


def _arguments(make_x: Any, dtype: str, more: Any) -> Callable[[Maker], tuple[Any, ...]]:
    return lambda m: (make_x(m, dtype), *more(m))


def silu_cases() -> Iterable[Case]:
    """The cases of `silu_and_mul`."""
    return _cases({**_INPUTS, **_SILU_INPUTS}, plain=lambda m: ())


def gelu_cases() -> Iterable[Case]:
    """The cases of `gelu_and_mul`."""
    return _cases(none=lambda m: ("none",), tanh=lambda m: ("tanh",))


def clamp_cases() -> Iterable[Case]:
    """The cases of `silu_and_mul_with_clamp`."""
    inputs = {name: make for name, make in _INPUTS.items() if name != "extremes"}
    yield from _cases(inputs, limit=lambda m: (2.5,))
    for dtype in DTYPES:
        for name in ("odd-width", "row-stride"):
            yield Case(
                f"{dtype}-{name}-oai",
                _arguments(_INPUTS[name], dtype, lambda m: (7.0,)),
                lambda m: {"alpha": 1.702, "beta": 1.0},
                dtype=dtype,
            )
        make = _arguments(_INPUTS["3d"], dtype, lambda m: (1.5,))
        yield Case(f"{dtype}-alpha", make, lambda m: {"alpha": 1.702}, dtype=dtype)
        yield Case(f"{dtype}-beta", make, lambda m: {"beta": 1.0}, dtype=dtype)
