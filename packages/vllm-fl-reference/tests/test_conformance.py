"""Every case of every contract, and what holds for all calls."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vllm_fl_dispatch import OpManager, SelectionPolicy
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.testing import Subject, subjects
from vllm_fl_dispatch.testing.assertions import check, parameters
from vllm_fl_dispatch.testing.structure import CHECKS
from vllm_fl_dispatch.types import Origin
from vllm_fl_reference.plugin import OPERATORS, vllm_fl_register_ops


def make_manager() -> OpManager:
    made = OpManager(SelectionPolicy(), sources=())
    made.ensure_built()
    vllm_fl_register_ops(Registrar(made.registry, Origin("vllm-fl-reference")))
    return made


MANAGER = make_manager()
SUBJECTS, ABSENT = subjects(MANAGER, impl_id="reference.torch")


def test_every_operator_of_the_core_is_served() -> None:
    assert set(OPERATORS) == {spec.name for spec in SPECS} == {s.spec.name for s in SUBJECTS}
    assert ABSENT == []


@pytest.mark.parametrize(("subject", "case"), parameters(SUBJECTS))
def test_case(subject: Subject, case: Case) -> None:
    check(subject, case)


@pytest.mark.parametrize("structural", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_structure(subject: Subject, structural: Callable[[Subject], None]) -> None:
    structural(subject)


@pytest.mark.parametrize(
    ("op", "arguments", "message"),
    [
        ("gelu_and_mul", (torch.ones(1, 4), "fast"), "approximate='fast' is not accepted"),
        (
            "grouped_topk",
            (torch.ones(1, 4), 1, True, 2, 1, "tanh"),
            "scoring_func='tanh' is not accepted; accepted: softmax, sigmoid",
        ),
    ],
)
def test_a_wrong_choice_is_the_callers_error(
    op: str, arguments: tuple[object, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MANAGER.get_op(op)(*arguments)
    assert MANAGER.failures.all() == ()
