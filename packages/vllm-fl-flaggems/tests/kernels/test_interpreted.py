"""Every operator on every conformance case of float32 and float16, by the kernels of FlagGems.

bfloat16 is left to a device: the interpreter rounds it by truncation.
"""

from __future__ import annotations

from typing import Any

import pytest

interpreted = pytest.importorskip("interpreted", reason="needs flag-gems: nox -s flaggems")

from vllm_fl_dispatch import OpManager, OpNotSupported, OpSpec, SelectionPolicy  # noqa: E402
from vllm_fl_dispatch.candidates import Candidate  # noqa: E402
from vllm_fl_dispatch.ops import SPECS  # noqa: E402
from vllm_fl_dispatch.ops.cases import Maker  # noqa: E402
from vllm_fl_dispatch.registry import Registrar  # noqa: E402
from vllm_fl_dispatch.testing.compare import run_case  # noqa: E402
from vllm_fl_dispatch.types import Origin  # noqa: E402
from vllm_fl_flaggems.plugin import OPERATORS, vllm_fl_register_ops  # noqa: E402

# Of numpy, in which the interpreter computes: exp of a large number is infinite, as on a device.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
SPEC: dict[str, OpSpec] = {spec.name: spec for spec in SPECS}


@pytest.fixture(scope="module")
def candidates() -> dict[str, Candidate]:
    """Our implementations, loaded."""
    interpreted.load()
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-flaggems")))
    found = {}
    for name in set(OPERATORS) & set(SPEC):
        (impl,) = manager.registry.impls(name)
        if manager.resolve(name).decisions[0].outcome.value == "not installed":
            continue
        fn = manager.load(SPEC[name], impl)
        assert fn is not None, manager.failures.all()
        found[name] = Candidate.of(SPEC[name], impl, fn, fn)
    return found


def cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name in OPERATORS
        if name in SPEC
        for case in SPEC[name].cases()
        if not case.name.startswith("bfloat16")
    ]


@pytest.mark.parametrize(("name", "case"), cases())
def test_a_case_is_within_tolerance_or_declined(
    candidates: dict[str, Candidate], name: str, case: Any
) -> None:
    spec, candidate = SPEC[name], candidates[name]
    refusal = candidate.refusal(case.make(Maker()), case.options)

    def call(*args: Any, **options: Any) -> Any:
        return candidate.call(args, options, None, True)

    if refusal is not None:
        pytest.skip(refusal)
    try:
        error, _, _ = run_case(spec, call, case)
    except OpNotSupported as declined:
        pytest.skip(str(declined))
    assert error <= spec.max_ulp[case.name.split("-")[0]]
