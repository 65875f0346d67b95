"""On which cases an implementation's other properties are checked."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import torch

from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.testing.kit import Outcome, Subject, run_case

Where = Callable[[tuple[Any, ...]], bool]


def served(
    subject: Subject, *, limit: int, where: Where = lambda args: True, dtype: str | None = None
) -> list[Case]:
    """The first cases that the implementation passes, of float32 before the others.

    Args:
        where: positional arguments -> is it a case to be looked at?
        dtype: only of this one.
    """

    def suits(case: Case) -> bool:
        return where(case.make(Maker("cpu"))) and (
            run_case(subject, case).outcome is Outcome.PASSED
        )

    small = [
        case
        for case in subject.cases()
        if case.small and "zero" not in case.name and dtype in (None, case.dtype)
    ]
    small.sort(key=lambda case: case.dtype != "float32")
    return list(islice(filter(suits, small), limit))


def served_in_each_dtype(subject: Subject, *, limit: int, where: Where) -> list[Case]:
    """As `served`, so many of each dtype: each may have a kernel of its own."""
    cases = list(subject.cases())
    return [
        case
        for dtype in dict.fromkeys(case.dtype for case in cases)
        for case in served(subject, limit=limit, where=where, dtype=dtype)
    ]


def light(subject: Subject, *, limit: int) -> list[Case]:
    """Some cases, spread over all, whether they are served or not."""
    small = [case for case in subject.cases() if case.small]
    return small[:: max(1, len(small) // limit)][:limit]


def has_views(args: tuple[Any, ...]) -> bool:
    """Is an argument a view of a larger tensor?"""
    return any(isinstance(v, torch.Tensor) and v._base is not None for v in args)
