"""Gated activations: ``act(x[..., :d]) * x[..., d:]``.

Source of the semantics: vllm/model_executor/layers/activation.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import DTYPES, Case, Maker, rows
from vllm_fl_dispatch.types import OpSpec, Query

if TYPE_CHECKING:
    import torch


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:  # type: ignore[empty-body]  # a contract
    """``silu(x[..., :d]) * x[..., d:]`` with ``d = x.shape[-1] // 2``.

    Args:
        x: [..., 2d], float32, float16 or bfloat16; any strides; not changed.

    Returns:
        A new contiguous tensor [..., d] of x's dtype. vLLM rounds silu to x's dtype and then
        the product; one rounding of the exact product is accepted as well.
    """


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:  # type: ignore[empty-body]  # a contract
    """``gelu(x[..., :d]) * x[..., d:]`` with ``d = x.shape[-1] // 2``.

    Args:
        x: [..., 2d], float32, float16 or bfloat16; any strides; not changed.
        approximate: ``none`` (erf) or ``tanh``; anything else is a ValueError.

    Returns:
        A new contiguous tensor [..., d] of x's dtype; rounding as for `silu_and_mul`.
    """


def _half_width(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _facts(x: torch.Tensor) -> tuple[Any, ...]:
    return (x.dtype, x.device, x.shape[-1])


def _gelu_facts(x: torch.Tensor, approximate: str = "none") -> tuple[Any, ...]:
    return (x.dtype, x.device, x.shape[-1], approximate)


def _example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = rows(query, query.last_dim or 128)
    return ((x, query.get("approximate", "none")) if query.op_name == "gelu_and_mul" else (x,)), {}


def _halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = x.shape[-1] // 2
    wide = x.double()
    return wide[..., :d], wide[..., d:]


def _silu_oracle(x: torch.Tensor) -> torch.Tensor:
    gate, up = _halves(x)
    activated: torch.Tensor = gate * gate.sigmoid() * up
    return activated


def _gelu_oracle(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    import torch

    gate, up = _halves(x)
    return torch.nn.functional.gelu(gate, approximate=approximate) * up


def _inputs(dtype: str) -> Iterable[tuple[str, Any]]:
    """(name, function that makes x) for one dtype."""
    yield f"{dtype}-one-row", lambda m: m.normal(1, 2 * 512, dtype=dtype, scale=3.0)
    yield f"{dtype}-odd-width", lambda m: m.normal(7, 2 * 513, dtype=dtype, scale=3.0)
    yield f"{dtype}-3d", lambda m: m.normal(2, 3, 2 * 64, dtype=dtype)
    yield f"{dtype}-strided", lambda m: m.normal(5, 4 * 96, dtype=dtype)[:, : 2 * 96]
    yield f"{dtype}-zero-rows", lambda m: m.normal(0, 2 * 32, dtype=dtype)


def _tail(m: Maker, dtype: str) -> torch.Tensor:
    """Gates far below zero: a careless silu flushes them to 0."""
    gate = m.of((-16.0 + 12.0 * i / 255 for i in range(256)), dtype)
    row: torch.Tensor = m.torch.cat([gate, m.of([1.0] * 256, dtype)])
    return row.unsqueeze(0)


def _silu_cases() -> Iterable[Case]:
    for dtype in DTYPES:
        for name, make in _inputs(dtype):
            yield Case(name, _arguments(make))
        yield Case(f"{dtype}-tail", _arguments(partial(_tail, dtype=dtype)))


def _gelu_cases() -> Iterable[Case]:
    for approximate in ("none", "tanh"):
        for dtype in DTYPES:
            for name, make in _inputs(dtype):
                yield Case(f"{name}-{approximate}", _arguments(make, approximate))


def _arguments(make_x: Any, *rest: Any) -> Any:
    return lambda m: (make_x(m), *rest)


SPECS = (
    OpSpec(
        "silu_and_mul",
        silu_and_mul,
        schema="(Tensor x) -> Tensor",
        fake=_half_width,
        facts=_facts,
        fact_names=("dtype", "device", "last_dim"),
        example=_example,
        data=("x",),
        oracle=_silu_oracle,
        cases=_silu_cases,
    ),
    OpSpec(
        "gelu_and_mul",
        gelu_and_mul,
        schema='(Tensor x, str approximate="none") -> Tensor',
        fake=_half_width,
        facts=_gelu_facts,
        fact_names=("dtype", "device", "last_dim", "approximate"),
        example=_example,
        data=("x",),
        oracle=_gelu_oracle,
        cases=_gelu_cases,
        # 1 + erf cancels for large negative gates, in every implementation.
        max_ulp={"float32": 12.0, "float16": 1.5, "bfloat16": 1.5},
        ulp_floor=1.0,
    ),
)
