"""Every case of every contract, against the float64 oracle."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_fl_dispatch import OpManager, OpSpec, SelectionPolicy
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.testing.compare import run_case
from vllm_fl_dispatch.types import Origin
from vllm_fl_reference.plugin import OPERATORS, vllm_fl_register_ops

SPEC: dict[str, OpSpec] = {spec.name: spec for spec in SPECS}


@pytest.fixture(scope="module")
def manager() -> OpManager:
    made = OpManager(SelectionPolicy(), sources=())
    made.ensure_built()
    vllm_fl_register_ops(Registrar(made.registry, Origin("vllm-fl-reference")))
    return made


def test_every_operator_of_the_core_is_served(manager: OpManager) -> None:
    assert set(OPERATORS) == set(SPEC)
    for name in SPEC:
        selected = manager.resolve(name).selected
        assert selected is not None
        assert selected.impl_id == "reference.torch"


def cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name, spec in SPEC.items()
        for case in (spec.cases or tuple)()
    ]


@pytest.mark.parametrize(("name", "case"), cases())
def test_within_tolerance_of_the_oracle(manager: OpManager, name: str, case: Any) -> None:
    error, _, _ = run_case(SPEC[name], manager.slot(name).call, case)
    assert error <= SPEC[name].max_ulp[case.name.split("-")[0]]


def test_an_approximation_that_does_not_exist_is_the_callers_error(manager: OpManager) -> None:
    import torch

    with pytest.raises(ValueError, match="approximate='fast' is not accepted"):
        manager.get_op("gelu_and_mul")(torch.ones(1, 4), "fast")
    assert manager.failures.all() == ()
