"""Every operator on a device: through the conformance kit, and captured in a graph."""

from __future__ import annotations

from typing import Any

import ours
import pytest
import torch

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing import Subject
from vllm_fl_dispatch.testing.assertions import check, parameters

# Warnings of torch and Triton on a device are not our subject.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]
SUBJECTS, ABSENT = ours.load("cuda")


def test_every_operator_is_served(device: str) -> None:
    """All but the one that newer releases have."""
    assert {each.impl.op_name for each in ABSENT} <= {"silu_and_mul_with_clamp"}, ABSENT


@pytest.mark.parametrize(("subject", "case"), parameters(SUBJECTS))
def test_case(subject: Subject, case: Case) -> None:
    # Of two runs the second goes through flag-gems' own launcher.
    check(subject, case)


@pytest.mark.parametrize(
    ("subject", "case"),
    [p for p in parameters(SUBJECTS) if not p.values[1].heavy and "zero" not in p.values[1].name],
)
def test_a_captured_call_gives_what_an_eager_one_gives(subject: Subject, case: Case) -> None:
    args, options = ours.arguments(subject, case)

    def run() -> tuple[Any, ...]:
        # On copies: what it overwrites must be the same at each call.
        copies = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
        result = subject.fn(*copies, **options)
        return result if isinstance(result, tuple) else (result,)

    try:
        eager = run()
    except OpNotSupported as declined:
        pytest.skip(str(declined))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for tensor in captured:
        if tensor is not None:
            tensor.zero_()
    graph.replay()
    torch.cuda.synchronize()
    meant = subject.spec.canonical or (lambda results, *_, **__: results)
    pairs = zip(meant(captured, *args, **options), meant(eager, *args, **options), strict=True)
    for found, truth in pairs:
        if truth is None:
            assert found is None
        else:
            torch.testing.assert_close(found, truth, rtol=0, atol=0, equal_nan=True)
