"""Quantization of activations.

Source of the semantics: vllm/model_executor/layers/quantization/utils/int8_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops.cases import DTYPES, MANY_ROWS, Case, Maker, rows
from vllm_fl_dispatch.types import Query

if TYPE_CHECKING:
    import torch


def dynamic_per_token_quant_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[empty-body]  # a contract
    """Symmetric int8 numbers with one scale for each row: ``x`` is near ``q * scale``.

    Args:
        x: [..., n], float32, float16 or bfloat16, finite; any strides; not changed.

    Returns:
        (q [..., n] int8, scale [..., 1] float32), both contiguous. ``scale = max(|x|) / 127``
        over the last dimension; ``q`` is ``x / scale`` rounded to the nearest integer, within
        [-127, 127]. Computed in float32: where the quotient is half way between two integers,
        either is right. A row of zeros has q 0 and a scale below 1e-11: vLLM's Triton function
        takes 1e-10 for its maximum, its CUDA kernel 0.
    """


def _oracle(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.double()
    largest = wide.abs().amax(-1, keepdim=True).clamp(min=1e-10)
    return wide * (127 / largest), largest / 127


def _scales_of_zeros(results: tuple[Any, ...], *_: Any, **__: Any) -> tuple[Any, ...]:
    """Any scale is right for a row of zeros that is small enough."""
    quantized, scales = results
    return quantized, scales.masked_fill(scales < 1e-11, 0.0)


def _fake(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    scales = x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=torch.int8), scales


def _facts(x: torch.Tensor) -> tuple[Any, ...]:
    return (x.dtype, x.device, x.shape[-1])


def _example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (rows(query, query.last_dim or 128),), {}


_INPUTS: dict[str, Any] = {
    "one-row": lambda m, dtype: m.normal(1, 512, dtype=dtype),
    "odd-width": lambda m, dtype: m.normal(7, 515, dtype=dtype),
    "wide": lambda m, dtype: m.normal(33, 4096, dtype=dtype),
    "odd-wide": lambda m, dtype: m.normal(3, 8200, dtype=dtype),
    "3d": lambda m, dtype: m.normal(2, 3, 64, dtype=dtype),
    "row-stride": lambda m, dtype: m.normal(5, 160, dtype=dtype)[:, :96],
    "large": lambda m, dtype: m.normal(4, 64, dtype=dtype, scale=1e4),
    "tiny": lambda m, dtype: m.normal(4, 64, dtype=dtype, scale=1e-4),
    "row-of-zeros": lambda m, dtype: m.normal(3, 64, dtype=dtype) * m.of([1, 0, 1], dtype)[:, None],
    "zero-rows": lambda m, dtype: m.normal(0, 64, dtype=dtype),
    "zero-rows-3d": lambda m, dtype: m.normal(3, 0, 40, dtype=dtype),
}


def _cases() -> Iterable[Case]:
    for dtype in DTYPES:
        for name, make in _INPUTS.items():
            yield Case(f"{dtype}-{name}", _argument(make, dtype), dtype=dtype)
    make = _argument(lambda m, dtype: m.normal(MANY_ROWS, 16, dtype=dtype), "bfloat16")
    yield Case(f"bfloat16-{MANY_ROWS}-rows", make, dtype="bfloat16", rows=MANY_ROWS)


def _argument(make: Any, dtype: str) -> Any:
    def argument(m: Maker) -> tuple[Any, ...]:
        return (make(m, dtype),)

    return argument


SPECS = (
    OpSpec(
        "dynamic_per_token_quant_int8",
        dynamic_per_token_quant_int8,
        schema="(Tensor x) -> (Tensor, Tensor)",
        fake=_fake,
        facts=_facts,
        fact_names=("dtype", "device", "last_dim"),
        example=_example,
        shapes={"x": "... n"},
        data=("x",),
        oracle=_oracle,
        cases=_cases,
        canonical=_scales_of_zeros,
        max_ulp={"float32": 4.0, "float16": 4.0, "bfloat16": 4.0},
        # The oracle is the unrounded quotient: half a step is the rounding itself.
        max_steps=0.502,
    ),
)
