"""Root-mean-square normalization, alone and fused with the addition of a residual.

Source of the semantics: vllm/model_executor/layers/layernorm.py and vllm/ir/ops/layernorm.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops import normalization_cases as cases
from vllm_fl_dispatch.ops.cases import rows
from vllm_fl_dispatch.types import Query

if TYPE_CHECKING:
    import torch


def rms_norm(  # type: ignore[empty-body]  # a contract
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    *,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor:
    """``x / sqrt(mean(x**2) + epsilon) * (weight + weight_offset)`` over the last dimension.

    Args:
        x: [..., n], float32, float16 or bfloat16; any strides; not changed.
        weight: [n], of x's dtype or float32; None means no multiplication.
        epsilon: added to the variance.
        variance_size: the variance is that of the first `variance_size` elements; None: of all.
        weight_offset: added to the weight in float32; 1.0 is Gemma's ``1 + weight``. The
            weight is read at each call: weights are reloaded.

    Returns:
        A new contiguous tensor [..., n] of x's dtype. The variance is computed in float32.
        vLLM rounds to the weight's dtype before it multiplies; one rounding of the exact
        product is accepted as well.
    """


def fused_add_rms_norm(  # type: ignore[empty-body]  # a contract
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    *,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm` of ``x + residual``, which is returned as well.

    Args:
        x: [..., n]; in eager mode its memory may be overwritten.
        residual: like x, of x's dtype or float32; in eager mode its memory may be overwritten.
            Not the same tensor as x.
        weight, epsilon, variance_size, weight_offset: as for `rms_norm`.

    Returns:
        (normed, new residual) of x's dtype: use these, not the arguments. Contiguous, or the memory
        of the arguments where that was overwritten.
        The sum is formed in float32 and rounded once for the new residual; the norm is that of
        the unrounded sum (vLLM's CUDA kernel takes the rounded one; both are accepted).
    """


def _like(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _two_like(x: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _facts(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    *,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[Any, ...]:
    weight_dtype = None if weight is None else weight.dtype
    return (x.dtype, x.device, x.shape[-1], weight_dtype, variance_size, weight_offset)


def _add_facts(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    epsilon: float,
    *,
    variance_size: int | None = None,
    weight_offset: float = 0.0,
) -> tuple[Any, ...]:
    return (
        *_facts(x, weight, epsilon, variance_size=variance_size, weight_offset=weight_offset),
        residual.dtype,
    )


FACT_NAMES = ("dtype", "device", "last_dim", "weight_dtype", "variance_size", "weight_offset")


def _example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    width = query.last_dim or 128
    x = rows(query, width)
    weight_dtype = query.get("weight_dtype", x.dtype)
    weight = None if weight_dtype is None else x[0].to(weight_dtype)
    options = {
        name: query.get(name)
        for name, default in (("variance_size", None), ("weight_offset", 0.0))
        if query.get(name, default) != default
    }
    if query.op_name == "rms_norm":
        return (x, weight, 1e-6), options
    return (x, rows(query, width).to(query.get("residual_dtype") or x.dtype), weight, 1e-6), options


def _fold_offset(*args: Any, **options: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Serve `weight_offset` by an implementation without it: hand it the shifted weight."""
    offset = options.pop("weight_offset")
    *before, weight, epsilon = args
    shifted = None if weight is None else weight.float() + offset
    return (*before, shifted, epsilon), options


_OPTIONS = "*, int? variance_size=None, float weight_offset=0.0"

SPECS = (
    OpSpec(
        "rms_norm",
        rms_norm,
        schema=f"(Tensor x, Tensor? weight, float epsilon, {_OPTIONS}) -> Tensor",
        fake=_like,
        facts=_facts,
        fact_names=FACT_NAMES,
        example=_example,
        shapes={"x": "... n", "weight": "n"},
        data=("x",),
        lower={"weight_offset": _fold_offset},
        oracle=cases.norm_oracle,
        cases=cases.norm_cases,
    ),
    OpSpec(
        "fused_add_rms_norm",
        fused_add_rms_norm,
        schema=(
            f"(Tensor x, Tensor residual, Tensor? weight, float epsilon, {_OPTIONS})"
            " -> (Tensor, Tensor)"
        ),
        fake=_two_like,
        facts=_add_facts,
        fact_names=(*FACT_NAMES, "residual_dtype"),
        example=_example,
        shapes={"x": "... n", "residual": "... n", "weight": "n"},
        data=("x", "residual"),
        donates=("x", "residual"),
        group="rms_norm",
        lower={"weight_offset": _fold_offset},
        oracle=cases.add_oracle,
        cases=cases.add_cases,
        # The norm of the rounded sum, the normed and the product: one rounding more.
        max_ulp={"float32": 6.0, "float16": 3.25, "bfloat16": 2.75},
    ),
)
