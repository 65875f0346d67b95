"""Every case of every contract, through the real dispatcher, against the float64 oracle."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_fl_ascend import plugin
from vllm_fl_dispatch import OpManager, OpSpec, SelectionPolicy
from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.testing.compare import run_case
from vllm_fl_dispatch.types import Origin

SPEC: dict[str, OpSpec] = {spec.name: spec for spec in SPECS}

#: operator -> what marks the cases that the kernels cannot serve. All others must be served.
DECLINED = {
    "rms_norm": ("no-weight", "partial-variance"),
    "fused_add_rms_norm": ("no-weight", "partial-variance"),
}


def cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name in plugin.OPERATORS
        for case in (SPEC[name].cases or tuple)()
    ]


@pytest.fixture(scope="module")
def candidates() -> dict[str, Candidate]:
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    plugin.vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-ascend")))
    made = {}
    for name in plugin.OPERATORS:
        (impl,) = manager.registry.impls(name)
        assert impl.load is not None
        fn = impl.load()
        made[name] = Candidate.of(SPEC[name], impl, fn, fn)
    return made


@pytest.mark.parametrize(("name", "case"), cases())
def test_served_within_tolerance_or_declined(
    candidates: dict[str, Candidate], name: str, case: Case
) -> None:
    candidate, spec = candidates[name], SPEC[name]
    refusal = candidate.refusal(case.make(Maker()), case.options)
    if any(mark in case.name for mark in DECLINED.get(name, ())):
        assert refusal is not None
        return
    assert refusal is None

    def call(*args: Any, **options: Any) -> Any:
        return candidate.call(args, options, (), donate=True)

    error, results, _ = run_case(spec, call, case)
    assert error <= spec.max_ulp[case.name.split("-")[0]]
    assert all(result is None or result.is_contiguous() for result in results)
