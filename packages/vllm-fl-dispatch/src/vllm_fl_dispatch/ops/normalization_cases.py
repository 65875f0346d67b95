"""Oracles and conformance cases of root-mean-square normalization."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import DTYPES, HALF, MANY_ROWS, Case, Maker

if TYPE_CHECKING:
    import torch

EPSILON = 1e-6
#: The epsilon of many models, and the size of inputs whose variance it exceeds.
ANOTHER_EPSILON, _SMALL = 1e-5, 2e-3


def norm_oracle(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    *,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """`rms_norm` in float64."""
    wide = x.double()
    variance = wide[..., :variance_size].square().mean(-1, keepdim=True)
    normed = wide / (variance + epsilon).sqrt()
    return normed if weight is None else normed * (weight.double() + weight_offset)


def add_oracle(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`fused_add_rms_norm` in float64."""
    total = x.double() + residual.double()
    return norm_oracle(total, weight, epsilon, **options), total


def _large(m: Maker, dtype: str) -> torch.Tensor:
    """Numbers whose squares leave float16, and bfloat16's exactness, far behind."""
    return m.normal(4, 64, dtype=dtype, scale=1e4)


def _with(value: float) -> Callable[[Maker, str], torch.Tensor]:
    """Ordinary rows, one of which has one special element."""

    def make(m: Maker, dtype: str) -> torch.Tensor:
        x = m.normal(3, 64, dtype=dtype)
        x[1, 5] = value
        return x

    return make


#: name -> (width, (Maker, dtype) -> x)
_INPUTS: dict[str, tuple[int, Callable[[Maker, str], torch.Tensor]]] = {
    "one-row": (128, lambda m, dtype: m.normal(1, 128, dtype=dtype)),
    "one-dimension": (128, lambda m, dtype: m.normal(128, dtype=dtype)),
    "odd-width": (515, lambda m, dtype: m.normal(7, 515, dtype=dtype)),
    # Of a size at which the factor of a row is no simple number: errors then cancel in the mean.
    "wide": (4096, lambda m, dtype: m.normal(33, 4096, dtype=dtype, scale=1.67)),
    "odd-wide": (8200, lambda m, dtype: m.normal(3, 8200, dtype=dtype, scale=1.67)),
    "3d": (64, lambda m, dtype: m.normal(2, 3, 64, dtype=dtype)),
    "4d": (64, lambda m, dtype: m.normal(2, 3, 4, 64, dtype=dtype)),
    "row-stride": (96, lambda m, dtype: m.normal(5, 160, dtype=dtype)[:, :96]),
    "heads-of-qkv": (
        64,
        lambda m, dtype: m.normal(5, 6, 64, dtype=dtype)[:, :4],
    ),
    "column-stride": (64, lambda m, dtype: m.normal(5, 128, dtype=dtype)[:, ::2]),
    "transposed": (64, lambda m, dtype: m.normal(64, 32, dtype=dtype).T),
    "zero-rows": (64, lambda m, dtype: m.normal(0, 64, dtype=dtype)),
    "zero-rows-3d": (40, lambda m, dtype: m.normal(3, 0, 40, dtype=dtype)),
    "tiny": (64, lambda m, dtype: m.normal(4, 64, dtype=dtype, scale=1e-4)),
    "large": (64, _large),
    "infinity": (64, _with(float("inf"))),
    "nan": (64, _with(float("nan"))),
}

#: Weights at which a rounded ``1 + weight`` shows.
_AWKWARD = (15.8125, 0.00390625, 3.140625, -0.99609375)


def _awkward(m: Maker, width: int, dtype: str) -> torch.Tensor:
    return m.of([_AWKWARD[(i + m.seed) % len(_AWKWARD)] for i in range(width)], dtype)


#: name -> ((Maker, width, dtype) -> weight, (width) -> options)
_WEIGHTS: dict[str, tuple[Callable[[Maker, int, str], Any], Callable[[int], dict[str, Any]]]] = {
    "weight": (lambda m, n, dtype: m.normal(n, dtype=dtype), lambda n: {}),
    "no-weight": (lambda m, n, dtype: None, lambda n: {}),
    "float32-weight": (lambda m, n, dtype: m.normal(n), lambda n: {}),
    "gemma": (_awkward, lambda n: {"weight_offset": 1.0}),
    "partial-variance": (
        lambda m, n, dtype: m.normal(n, dtype=dtype),
        lambda n: {"variance_size": n // 2},
    ),
}
#: The same, for one input: an option without its usual companion, or of another value.
_MORE_WEIGHTS: dict[str, Any] = {
    "half-offset": (_awkward, lambda n: {"weight_offset": 0.5}),
    "float32-gemma": (
        lambda m, n, dtype: _awkward(m, n, "float32"),
        lambda n: {"weight_offset": 1.0},
    ),
    "gemma-partial-variance": (
        _awkward,
        lambda n: {"weight_offset": 1.0, "variance_size": n // 2},
    ),
    "no-weight-partial-variance": (
        lambda m, n, dtype: None,
        lambda n: {"variance_size": n // 2},
    ),
}


def norm_cases() -> Iterable[Case]:
    """The cases of `rms_norm`."""
    return _cases(lambda m, x, weight, epsilon: (x, weight, epsilon))


def add_cases() -> Iterable[Case]:
    """The cases of `fused_add_rms_norm`."""

    def make(m: Maker, x: Any, weight: Any, epsilon: float) -> tuple[Any, ...]:
        # Larger than x, so that a norm of x alone, or of an old residual, is far off; but where
        # epsilon is to show.
        scale = 4.0 if epsilon == EPSILON else _SMALL
        return (x, m.normal(*x.shape, scale=scale).to(x.dtype), weight, epsilon)

    yield from _cases(make)
    for dtype in HALF:
        yield Case(f"{dtype}-float32-residual", _float32_residual(dtype), dtype=dtype)


def _float32_residual(dtype: str) -> Callable[[Maker], tuple[Any, ...]]:
    def make(m: Maker) -> tuple[Any, ...]:
        x, residual = m.normal(7, 96, dtype=dtype), m.normal(7, 96, scale=4.0)
        return (x, residual, m.normal(96, dtype=dtype), EPSILON)

    return make


def _cases(arguments: Any) -> Iterable[Case]:
    for dtype in DTYPES:
        for name, (width, make_x) in _INPUTS.items():
            for weight_name, (make_weight, options) in _WEIGHTS.items():
                yield Case(
                    f"{dtype}-{name}-{weight_name}",
                    _arguments(arguments, make_x, make_weight, width, dtype),
                    _options(options, width),
                    dtype=dtype,
                )
        for weight_name, (make_weight, options) in _MORE_WEIGHTS.items():
            make = _arguments(arguments, _INPUTS["row-stride"][1], make_weight, 96, dtype)
            yield Case(f"{dtype}-{weight_name}", make, _options(options, 96), dtype=dtype)
        make = _arguments(arguments, _small, _WEIGHTS["weight"][0], 64, dtype, ANOTHER_EPSILON)
        yield Case(f"{dtype}-epsilon", make, dtype=dtype)
    for dtype in HALF:
        make = _arguments(arguments, _far, _WEIGHTS["weight"][0], 64, dtype)
        yield Case(f"{dtype}-far-rows", make, dtype=dtype, heavy=True)
    make = _arguments(arguments, _many, _WEIGHTS["weight"][0], 16, "bfloat16")
    yield Case(f"bfloat16-{MANY_ROWS}-rows", make, dtype="bfloat16", rows=MANY_ROWS)


def _options(make: Callable[[int], dict[str, Any]], width: int) -> Any:
    return lambda m: make(width)


def _small(m: Maker, dtype: str) -> torch.Tensor:
    return m.normal(4, 64, dtype=dtype, scale=_SMALL)


def _many(m: Maker, dtype: str) -> torch.Tensor:
    return m.normal(MANY_ROWS, 16, dtype=dtype)


def _far(m: Maker, dtype: str) -> torch.Tensor:
    return m.far_rows(64, dtype=dtype)


def _arguments(
    arguments: Any,
    make_x: Any,
    make_weight: Any,
    width: int,
    dtype: str,
    epsilon: float = EPSILON,
) -> Callable[[Maker], tuple[Any, ...]]:
    return lambda m: arguments(m, make_x(m, dtype), make_weight(m, width, dtype), epsilon)
