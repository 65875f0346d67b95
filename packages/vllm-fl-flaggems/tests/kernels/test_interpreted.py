"""Every operator on every conformance case of float32 and float16, by the kernels of FlagGems.

bfloat16 is left to a device: the interpreter rounds it by truncation.
"""

from __future__ import annotations

from typing import Any

import pytest

interpreted = pytest.importorskip("interpreted", reason="needs Triton: nox -s flaggems")

from candidates import SPEC, load_all  # noqa: E402

from vllm_fl_dispatch import OpNotSupported  # noqa: E402
from vllm_fl_dispatch.candidates import Candidate  # noqa: E402
from vllm_fl_dispatch.ops.cases import Maker  # noqa: E402
from vllm_fl_dispatch.testing.compare import run_case  # noqa: E402

pytestmark = interpreted.NUMPY_IS_SILENT


@pytest.fixture(scope="module")
def candidates() -> dict[str, Candidate]:
    interpreted.load()
    return load_all()


def _cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name, spec in SPEC.items()
        for case in spec.cases()
        if not case.name.startswith("bfloat16")
    ]


@pytest.mark.parametrize(("name", "case"), _cases())
def test_a_case_is_within_tolerance_or_declined(
    candidates: dict[str, Candidate], name: str, case: Any
) -> None:
    spec, candidate = SPEC[name], candidates.get(name)
    if candidate is None:
        pytest.skip("not in this release of flag-gems")
    if refusal := candidate.refusal(case.make(Maker()), case.options):
        pytest.skip(refusal)
    try:
        error, _, _ = run_case(
            spec, lambda *args, **options: candidate.call(args, options, None, True), case
        )
    except OpNotSupported as declined:
        pytest.skip(str(declined))
    assert error <= spec.max_ulp[case.name.split("-")[0]]
