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
from vllm_fl_dispatch.testing.kit import as_tuple
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


ROWS = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
#: operator -> its arguments for some rows; those left out have no rows, or share them.
BATCHES: dict[str, Callable[[torch.Tensor], tuple[object, ...]]] = {
    "silu_and_mul": lambda rows: (rows,),
    "gelu_and_mul": lambda rows: (rows, "tanh"),
    "silu_and_mul_with_clamp": lambda rows: (rows, 1.0),
    "rms_norm": lambda rows: (rows, ROWS[0], 1e-6),
    "fused_add_rms_norm": lambda rows: (rows, rows * 3, ROWS[0], 1e-6),
    "rotary_embedding": lambda rows: (rows[:, 0].abs().long(), rows, None, 64, ROWS[:4, :64], True),
    "topk_softmax": lambda rows: (rows, 4, True),
    "grouped_topk": lambda rows: (rows, 4, True, 8, 4),
    "moe_sum": lambda rows: (rows.view(-1, 4, 64),),
    "dynamic_per_token_quant_int8": lambda rows: (rows,),
    "fused_experts": lambda rows: (
        rows,
        ROWS.view(2, 32, 256),
        ROWS[:32].reshape(2, 256, 16),
        torch.ones(len(rows), 1),
        torch.zeros(len(rows), 1, dtype=torch.int32),
    ),
}


@pytest.mark.parametrize("op", BATCHES)
def test_a_row_by_itself_is_what_it_is_in_a_batch_where_that_is_promised(op: str) -> None:
    (impl,) = MANAGER.registry.impls(op)
    call = MANAGER.get_op(op)
    whole = as_tuple(call(*BATCHES[op](ROWS)))
    single = [as_tuple(call(*BATCHES[op](row[None]))) for row in ROWS]
    same = all(
        one is None or torch.equal(one, torch.cat([each[i] for each in single]))
        for i, one in enumerate(whole)
    )
    assert same or not impl.batch_invariant


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
