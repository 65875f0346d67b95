"""Gated activations: ``act(x[..., :d]) * x[..., d:]``.

Source of the semantics: vllm/model_executor/layers/activation.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.op_spec import DEFAULT_MAX_ULP, OpSpec
from vllm_fl_dispatch.ops import activation_cases as cases
from vllm_fl_dispatch.ops.cases import rows
from vllm_fl_dispatch.types import Query

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


def silu_and_mul_with_clamp(  # type: ignore[empty-body]  # a contract
    x: torch.Tensor, limit: float, *, alpha: float = 1.0, beta: float = 0.0
) -> torch.Tensor:
    """``g * sigmoid(alpha * g) * (u + beta)`` of clamped halves of x.

    ``g = min(x[..., :d], limit)``, ``u = clamp(x[..., d:], -limit, limit)``.

    Args:
        x: [..., 2d], float32, float16 or bfloat16; any strides; not changed.
        limit: bound of both halves, positive.
        alpha: factor inside the sigmoid; SwiGLU-OAI models have 1.702.
        beta: added to the second half; SwiGLU-OAI models have 1.0.

    Returns:
        A new contiguous tensor [..., d] of x's dtype. vLLM rounds to x's dtype after each step;
        one rounding of the exact result is accepted as well. What becomes of a NaN is not
        specified: torch hands it on, vLLM's CUDA kernel clamps it.
    """


def _half_width(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] // 2))


def _facts(x: torch.Tensor) -> tuple[Any, ...]:
    return (x.dtype, x.device, x.shape[-1])


def _gelu_facts(x: torch.Tensor, approximate: str = "none") -> tuple[Any, ...]:
    return (x.dtype, x.device, x.shape[-1], approximate)


def _clamp_facts(
    x: torch.Tensor, limit: float, *, alpha: float = 1.0, beta: float = 0.0
) -> tuple[Any, ...]:
    return (x.dtype, x.device, x.shape[-1], limit, alpha, beta)


def _example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (rows(query, query.last_dim or 128),), {}


def _gelu_example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (x,), options = _example(query)
    return (x, query.get("approximate") or "none"), options


def _clamp_example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    (x,), options = _example(query)
    limit, alpha, beta = (query.get(name) for name in ("limit", "alpha", "beta"))
    if alpha not in (None, 1.0):
        options["alpha"] = alpha
    if beta not in (None, 0.0):
        options["beta"] = beta
    return (x, 7.0 if limit is None else limit), options


FACT_NAMES = ("dtype", "device", "last_dim")

SPECS = (
    OpSpec(
        "silu_and_mul",
        silu_and_mul,
        schema="(Tensor x) -> Tensor",
        fake=_half_width,
        facts=_facts,
        fact_names=FACT_NAMES,
        example=_example,
        shapes={"x": "... 2*d"},
        data=("x",),
        oracle=cases.silu_oracle,
        cases=cases.silu_cases,
        # The exponential of a device multiplies the rounding of its argument by the argument.
        max_ulp={**DEFAULT_MAX_ULP, "float32": 24.0},
    ),
    OpSpec(
        "gelu_and_mul",
        gelu_and_mul,
        schema='(Tensor x, str approximate="none") -> Tensor',
        fake=_half_width,
        facts=_gelu_facts,
        fact_names=(*FACT_NAMES, "approximate"),
        example=_gelu_example,
        shapes={"x": "... 2*d"},
        data=("x",),
        oracle=cases.gelu_oracle,
        cases=cases.gelu_cases,
        # 1 + erf cancels for large negative gates, in every implementation.
        max_ulp={"float32": 12.0, "float16": 1.75, "bfloat16": 1.75},
        ulp_floor=1.0,
    ),
    OpSpec(
        "silu_and_mul_with_clamp",
        silu_and_mul_with_clamp,
        schema="(Tensor x, float limit, *, float alpha=1.0, float beta=0.0) -> Tensor",
        fake=_half_width,
        facts=_clamp_facts,
        fact_names=(*FACT_NAMES, "limit", "alpha", "beta"),
        example=_clamp_example,
        shapes={"x": "... 2*d"},
        data=("x",),
        oracle=cases.clamp_oracle,
        cases=cases.clamp_cases,
        # vLLM's native layer rounds four times, and `u + beta` cancels.
        max_ulp={"float32": 6.0, "float16": 4.0, "bfloat16": 4.0},
        ulp_floor=1.0,
    ),
)
