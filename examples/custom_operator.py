"""An operator of one's own: its contract, its truth, its cases, and two implementations.

usage: python custom_operator.py
       PYTHONPATH=. VLLM_FL_PLUGIN_MODULES=custom_operator vllm-fl verify squared_relu
       PYTHONPATH=. VLLM_FL_PLUGIN_MODULES=custom_operator vllm-fl bench squared_relu
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

import vllm_fl_dispatch as fl
from vllm_fl_dispatch import BackendImplKind, OpImpl, OpSpec, Query, Registrar, hookimpl
from vllm_fl_dispatch.ops.cases import DTYPES, Case, rows

if TYPE_CHECKING:
    from vllm_fl_dispatch.benching.inputs import Maker

vllm_fl_api = 1


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """``max(x, 0) ** 2``.

    Args:
        x: [..., n], float32, float16 or bfloat16; any strides; not changed.

    Returns:
        A new contiguous tensor like x.
    """
    raise NotImplementedError  # a contract


def reference(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).square().contiguous()


def fused(x: torch.Tensor) -> torch.Tensor:
    """Stands for a kernel: one pass, here through a clamp that is squared in place."""
    return x.clamp(min=0).contiguous().square_()


def cases() -> Iterable[Case]:
    for dtype in DTYPES:
        yield Case(f"{dtype}-2d", lambda m, d=dtype: (m.normal(7, 65, dtype=d),), dtype=dtype)
        yield Case(
            f"{dtype}-column-stride",
            lambda m, d=dtype: (m.normal(5, 128, dtype=d)[:, ::2],),
            dtype=dtype,
        )


def example(query: Query) -> tuple[tuple[torch.Tensor], dict[str, object]]:
    return (rows(query, query.last_dim or 16),), {}


def bench_inputs(m: Maker) -> tuple[tuple[torch.Tensor], dict[str, object]]:
    return (m.rows(m.shape.intermediate),), {}


SPEC = OpSpec(
    "squared_relu",
    squared_relu,
    schema="(Tensor x) -> Tensor",  # for compiled code: torch.ops.vllm_fl.squared_relu
    fake=torch.empty_like,
    facts=lambda x: (x.dtype, x.device, x.shape[-1]),
    fact_names=("dtype", "device", "last_dim"),
    example=example,
    data=("x",),
    oracle=lambda x: x.double().clamp(min=0) ** 2,
    cases=cases,
    bench_inputs=bench_inputs,
)


@hookimpl
def vllm_fl_register_specs(registrar: Registrar) -> None:
    registrar.add_spec(SPEC)


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    op = SPEC.name
    registrar.add_many(
        [
            OpImpl(op, "vendor.mine", BackendImplKind.VENDOR, fused, "mine", empty_ok=True),
            OpImpl(op, "reference.mine", BackendImplKind.REFERENCE, reference, empty_ok=True),
        ]
    )


def main() -> None:
    os.environ["VLLM_FL_PLUGIN_MODULES"] = "custom_operator"  # this file, as a module
    op = fl.get_op("squared_relu")
    x = torch.tensor([-2.0, 3.0])
    print(fl.resolve_op("squared_relu").__name__, op(x).tolist())
    with fl.with_preference("reference"):
        print(fl.resolve_op("squared_relu").__name__, op(x).tolist())


if __name__ == "__main__":
    main()
