"""On an NVIDIA device: graphs and streams."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_fl_dispatch import get_default_manager
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.probing import module_installed
from vllm_fl_dispatch.testing import Subject, subjects
from vllm_fl_dispatch.testing.kit import as_tuple
from vllm_fl_dispatch.testing.served import served
from vllm_fl_dispatch.testing.subjects import manager_of

pytestmark = pytest.mark.gpu


def available() -> list[Subject]:
    if not torch.cuda.is_available() or not module_installed("vllm"):
        return []
    return subjects(get_default_manager(), impl_id="vendor.cuda", device="cuda")[0]


SUBJECTS = available()
if not SUBJECTS:
    pytest.skip("needs an NVIDIA device and vLLM's CUDA build", allow_module_level=True)


def first_case(subject: Subject) -> Any:
    """A case that the implementation serves, with arguments for two seeds."""
    (case,) = served(subject, limit=1)
    return [(case.make(Maker("cuda", seed)), case.options(Maker("cuda", seed))) for seed in (0, 1)]


def copies(args: tuple[Any, ...]) -> list[Any]:
    return [a.clone() if isinstance(a, torch.Tensor) else a for a in args]


def assert_same(subject: Subject, call: Any, found: Any, expected: Any) -> None:
    """Equal, where the contract specifies the result of the call (arguments, options)."""
    found, expected = as_tuple(found), as_tuple(expected)
    if subject.spec.canonical is not None:
        args, options = call
        found = subject.spec.canonical(found, *args, **options)
        expected = subject.spec.canonical(expected, *args, **options)
    for have, want in zip(found, expected, strict=True):
        if want is not None:
            torch.testing.assert_close(have, want, equal_nan=True)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_it_is_captured_and_replayed_on_new_numbers(subject: Subject) -> None:
    call = manager_of(subject).get_op(subject.spec.name)
    (args, options), (others, other_options) = first_case(subject)
    expected = [call(*copies(args), **options), call(*copies(others), **other_options)]
    inputs, work = copies(args), copies(args)
    chosen = dict(zip(options, copies(tuple(options.values())), strict=True))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(*copies(args), **options)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # An implementation may overwrite what it is given.
        for kept, given in zip(inputs, work, strict=True):
            if isinstance(kept, torch.Tensor):
                given.copy_(kept)
        results = call(*work, **chosen)
    calls = ((args, options), (others, other_options))
    for (source, given), want in zip(calls, expected, strict=True):
        # What the graph reads: arguments, and tensors among the options.
        for kept, new in zip([*inputs, *chosen.values()], [*source, *given.values()], strict=True):
            if isinstance(kept, torch.Tensor):
                kept.copy_(new)
        graph.replay()
        torch.cuda.synchronize()
        assert_same(subject, (source, given), results, want)


@pytest.mark.parametrize("subject", SUBJECTS, ids=str)
def test_two_streams_do_not_disturb_each_other(subject: Subject) -> None:
    call = manager_of(subject).get_op(subject.spec.name)
    calls = first_case(subject)
    expected = [call(*copies(args), **options) for args, options in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    given = [[copies(args) for _ in range(20)] for args, _ in calls]
    torch.cuda.synchronize()
    found: list[list[Any]] = [[], []]
    for number in range(20):
        for which, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                found[which].append(call(*given[which][number], **calls[which][1]))
    torch.cuda.synchronize()
    for given_call, results, want in zip(calls, found, expected, strict=True):
        for result in results:
            assert_same(subject, given_call, result, want)
