"""Every operator on a device: all conformance cases, and captured in a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from candidates import SPEC, load_all

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.testing.compare import run_case

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def candidates(device: str) -> dict[str, Candidate]:
    return load_all()


def _cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name, spec in SPEC.items()
        for case in spec.cases()
    ]


def _taken(candidate: Candidate | None, case: Any, device: str) -> Candidate:
    if candidate is None:
        pytest.skip("not in this release of flag-gems")
    if refusal := candidate.refusal(case.make(Maker(device)), case.options):
        pytest.skip(refusal)
    return candidate


@pytest.mark.parametrize(("name", "case"), _cases())
def test_a_case_is_within_tolerance_or_declined(
    candidates: dict[str, Candidate], device: str, name: str, case: Any
) -> None:
    spec, candidate = SPEC[name], _taken(candidates.get(name), case, device)
    # Twice: the second call goes through flag-gems' own launcher.
    for _ in range(2):
        try:
            error, _, _ = run_case(
                spec,
                lambda *args, **options: candidate.call(args, options, None, True),
                case,
                device,
            )
        except OpNotSupported as declined:
            pytest.skip(str(declined))
        assert error <= spec.max_ulp[case.name.split("-")[0]]


@pytest.mark.parametrize(("name", "case"), [p for p in _cases() if "zero" not in str(p.id)])
def test_a_captured_call_gives_what_an_eager_one_gives(
    candidates: dict[str, Candidate], device: str, name: str, case: Any
) -> None:
    candidate = _taken(candidates.get(name), case, device)

    def run(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        # On copies: what it overwrites must be the same at each call.
        copies = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments)
        result = candidate.call(copies, case.options, None, True)
        return result if isinstance(result, tuple) else (result,)

    arguments = case.make(Maker(device))
    try:
        expected = run(arguments)
    except OpNotSupported as declined:
        pytest.skip(str(declined))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(arguments)
    for tensor in found:
        if tensor is not None and tensor.is_floating_point():
            tensor.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    for tensor, truth in zip(found, expected, strict=True):
        assert tensor is truth is None or torch.equal(tensor, truth)
