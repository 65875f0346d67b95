"""Numbers, dtypes, shapes and memory, case by case."""

from __future__ import annotations

from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing.assertions import check
from vllm_fl_dispatch.testing.kit import Subject


def test_case(subject: Subject, case: Case) -> None:
    """Within tolerance of the oracle, and nothing written or returned that must not be."""
    check(subject, case)
