"""On which cases an implementation's other properties are checked."""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch

from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.testing.kit import Outcome, Subject, run_case


def served(subject: Subject, *, limit: int, views: bool = False) -> list[Case]:
    """The first cases that the implementation passes, of float32 before the others.

    Args:
        views: only cases with an argument that is a view of a larger tensor.
    """

    def suits(case: Case) -> bool:
        if views and not _has_views(case.make(Maker("cpu"))):
            return False
        return run_case(subject, case).outcome is Outcome.PASSED

    small = [case for case in subject.cases() if not case.heavy and "zero" not in case.name]
    small.sort(key=lambda case: case.dtype != "float32")
    return list(islice(filter(suits, small), limit))


def light(subject: Subject, *, limit: int) -> list[Case]:
    """Some cases, spread over all, whether they are served or not."""
    small = [case for case in subject.cases() if not case.heavy]
    return small[:: max(1, len(small) // limit)][:limit]


def _has_views(args: tuple[Any, ...]) -> bool:
    return any(isinstance(v, torch.Tensor) and v._base is not None for v in args)
