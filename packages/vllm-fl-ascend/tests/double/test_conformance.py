"""Every case of every contract through the conformance kit: the real dispatcher, then the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vllm_fl_ascend import plugin, probe
from vllm_fl_dispatch import OpManager, OpSpec, SelectionPolicy
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.testing import Outcome, Subject, run_case, subjects
from vllm_fl_dispatch.testing.strided import strided_cases
from vllm_fl_dispatch.testing.structure import CHECKS
from vllm_fl_dispatch.types import Origin

SPEC: dict[str, OpSpec] = {spec.name: spec for spec in SPECS}

#: operator -> what marks the cases that the kernels cannot serve. All others must be served.
DECLINED = {
    "rms_norm": ("no-weight", "partial-variance"),
    "fused_add_rms_norm": ("no-weight", "partial-variance"),
    "dynamic_per_token_quant_int8": ("float32",),
    "fused_experts": ("strided-w1", "strided-w2"),
}


def cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name in plugin.OPERATORS
        for case in (*(SPEC[name].cases or tuple)(), *strided_cases(SPEC[name]))
        if case.small
    ]


@pytest.fixture(scope="module")
def tested() -> Iterator[dict[str, Subject]]:
    """The implementations, which the probes find on a machine with a device node."""
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    plugin.vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-ascend")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "DEVICE_NODES", ("null",))
        found, absent = subjects(manager, impl_id="vendor.ascend")
        assert absent == []
        yield {subject.spec.name: subject for subject in found}


def test_every_operator_of_the_table_is_tested(tested: dict[str, Subject]) -> None:
    assert set(tested) == set(plugin.OPERATORS)


@pytest.mark.parametrize(("name", "case"), cases())
def test_case(tested: dict[str, Subject], name: str, case: Case) -> None:
    result = run_case(tested[name], case)
    declined = any(mark in case.name for mark in DECLINED.get(name, ()))
    expected = Outcome.UNSUPPORTED if declined else Outcome.PASSED
    assert (result.outcome, result.message) == (expected, result.message if declined else "")


# torch_npu says so whenever Inductor compiles.
@pytest.mark.filterwarnings("ignore:triton-ascend is not installed")
@pytest.mark.parametrize("structural", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", plugin.OPERATORS)
def test_structure(
    tested: dict[str, Subject], name: str, structural: Callable[[Subject], None]
) -> None:
    structural(tested[name])
