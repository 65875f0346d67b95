"""Every kernel against the contract of its operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_fl_dispatch import get_default_manager
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing import Subject, read_xfails, subjects
from vllm_fl_dispatch.testing.assertions import check, parameters
from vllm_fl_dispatch.testing.structure import CHECKS

#: Where the kernels run: torch's name of the device.
DEVICE = "cpu"

SUBJECTS, ABSENT = subjects(get_default_manager(), impl_id="vendor.acme", device=DEVICE)
XFAILS = read_xfails(Path(__file__).parents[1] / "xfails.txt")


def test_every_kernel_can_run_here() -> None:
    assert not ABSENT, [f"{each.impl}: {each.reason}" for each in ABSENT]


@pytest.mark.parametrize(("subject", "case"), parameters(SUBJECTS, XFAILS, ABSENT))
def test_case(subject: Subject, case: Case) -> None:
    check(subject, case)


@pytest.mark.parametrize("structural", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_structure(subject: Subject, structural: Callable[[Subject], None]) -> None:
    structural(subject)
