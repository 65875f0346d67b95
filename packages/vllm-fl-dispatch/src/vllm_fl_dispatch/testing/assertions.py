"""The kit as pytest sees it: parameters, and a check that passes, skips or fails."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing.kit import Outcome, Result, Subject, run_case
from vllm_fl_dispatch.testing.reproduce import described, snippet
from vllm_fl_dispatch.testing.subjects import Absent
from vllm_fl_dispatch.testing.xfails import Xfail, check_used


def parameters(
    subjects: Iterable[Subject], xfails: Iterable[Xfail] = (), absent: Iterable[Absent] = ()
) -> list[Any]:
    """(subject, case) for every case of every subject, known failures marked.

    A known failure that passes is a failure: its line is out of date.

    Args:
        absent: what cannot be tested here; known failures of it are not looked for.

    Raises:
        PolicyError: a known failure matches no case.
    """
    subjects, xfails = tuple(subjects), tuple(xfails)
    check_used(xfails, subjects, absent)
    return [
        pytest.param(
            subject, case, id=f"{subject}-{case.name}", marks=_marks(subject, case, xfails)
        )
        for subject in subjects
        for case in subject.cases()
    ]


def _marks(subject: Subject, case: Case, xfails: tuple[Xfail, ...]) -> Any:
    return [
        pytest.mark.xfail(reason=each.reason, strict=True)
        for each in xfails
        if each.matches(subject.spec.name, case.name)
    ]


def check(subject: Subject, case: Case) -> Result:
    """Run one case; fail with everything needed to repeat it, skip what is unsupported."""
    __tracebackhide__ = True
    result = run_case(subject, case)
    if result.outcome is Outcome.FAILED:
        pytest.fail(explanation(result), pytrace=False)
    if result.outcome is not Outcome.PASSED:
        pytest.skip(f"{result.outcome.value}: {result.message}")
    return result


def explanation(result: Result) -> str:
    """What failed, the call, and how to make it again."""
    return (
        f"{result.subject} fails the case {result.case.name}: {result.message}\n"
        f"{described(result)}\n\n{snippet(result)}"
    )
