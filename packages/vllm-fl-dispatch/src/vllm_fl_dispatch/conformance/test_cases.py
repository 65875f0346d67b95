"""Numbers, dtypes, shapes and memory, case by case."""

from __future__ import annotations

import pytest

from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing.assertions import check
from vllm_fl_dispatch.testing.kit import Subject
from vllm_fl_dispatch.testing.subjects import Absent


def test_case(subject: Subject | Absent, case: Case) -> None:
    """Within tolerance of the oracle, and nothing written or returned that must not be."""
    if isinstance(subject, Absent):
        pytest.fail(f"{subject.impl} cannot be loaded: {subject.reason}", pytrace=False)
    check(subject, case)
