"""Every operator through the conformance kit in float32 and float16, by FlagGems' own kernels.

bfloat16 is left to a device: the interpreter rounds it by truncation.
"""

from __future__ import annotations

import pytest

interpreted = pytest.importorskip("interpreted", reason="needs Triton: nox -s flaggems")
interpreted.load()

import ours  # noqa: E402

from vllm_fl_dispatch.ops.cases import Case  # noqa: E402
from vllm_fl_dispatch.testing import Subject  # noqa: E402
from vllm_fl_dispatch.testing.assertions import check, parameters  # noqa: E402

pytestmark = interpreted.NUMPY_IS_SILENT
SUBJECTS, ABSENT = ours.load()


def test_what_this_release_has_not_is_known() -> None:
    assert {each.impl.op_name for each in ABSENT} <= {"silu_and_mul_with_clamp"}, ABSENT


def _can_be_interpreted(case: Case) -> bool:
    """Wide rows take seconds each, and once shows all that they can show here."""
    return case.dtype == "float32" or (case.dtype == "float16" and "wide" not in case.name)


@pytest.mark.parametrize(
    ("subject", "case"), [p for p in parameters(SUBJECTS) if _can_be_interpreted(p.values[1])]
)
def test_case(subject: Subject, case: Case) -> None:
    check(subject, case)
