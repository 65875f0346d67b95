"""`supports` of an implementation is foreign code, and is asked before all is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.support import looks_at_unknown

from .conftest import impl

FLOAT = Query("silu_and_mul", {"dtype": torch.float32, "device": "cpu"})


def even(query: Query) -> Verdict | bool:
    """As a vendor may write it: without a thought of widths that are not known."""
    return query.last_dim % 16 == 0  # type: ignore[operator]  # the mistake


def wide(query: Query) -> Verdict:
    if query.last_dim is not None and query.last_dim < 16:
        return Verdict.no("too narrow")
    return Verdict.yes()


@pytest.mark.parametrize(
    ("supports", "reason"),
    [
        (even, "supports raised TypeError: unsupported operand"),
        (lambda query: query.facts["tokens"] < 64, "supports raised KeyError: 'tokens'"),
        (lambda query: None, "the answer None is neither a Verdict nor a boolean"),
        (lambda query: "bfloat16 only", "the answer 'bfloat16 only' is neither"),
    ],
)
def test_a_predicate_that_goes_wrong_is_a_no_with_a_warning_and_others_serve(
    make_manager: Any, caplog: pytest.LogCaptureFixture, supports: Any, reason: str
) -> None:
    manager = make_manager(impl("vendor.acme", supports=supports), impl("reference.torch"))
    resolution = manager.resolve("silu_and_mul", query=FLOAT)
    assert resolution.selected.impl_id == "reference.torch"
    assert reason in resolution.table()
    assert reason in caplog.text
    if supports is not even:  # which works once the width is known
        assert manager.get_op("silu_and_mul")(torch.ones(2, 8)) == "reference.torch"


def test_what_an_answer_depends_on() -> None:
    assert looks_at_unknown(impl("vendor.acme", supports=wide), FLOAT)
    assert looks_at_unknown(impl("vendor.acme", supports=even), FLOAT)
    assert not looks_at_unknown(impl("vendor.acme", supports=lambda q: q.dtype is not None), FLOAT)
    assert not looks_at_unknown(impl("vendor.acme"), FLOAT)
    known = Query("silu_and_mul", {**FLOAT.facts, "last_dim": None})
    assert not looks_at_unknown(impl("vendor.acme", supports=wide), known)
    assert impl("vendor.acme", supports=wide).verdict_on(FLOAT)


def test_a_layer_asks_at_each_call_about_what_it_did_not_know_when_it_was_built(
    make_manager: Any,
) -> None:
    manager = make_manager(
        impl("vendor.acme", supports=wide, empty_ok=True), impl("reference.torch", empty_ok=True)
    )
    spec = manager.registry.spec("silu_and_mul")
    slot = manager.new_slot(spec, query=FLOAT)
    assert slot.call(torch.ones(2, 32)) == "vendor.acme"
    assert slot.call(torch.ones(2, 8)) == "reference.torch"
    assert slot.call(torch.ones(2, 32)) == "vendor.acme"


def test_a_layer_asks_once_for_each_kind_of_call(make_manager: Any) -> None:
    asked = []

    def supports(query: Query) -> bool:
        asked.append(query)
        return query.dtype is torch.float32

    manager = make_manager(impl("vendor.acme", supports=supports), impl("reference.torch"))
    slot = manager.new_slot(manager.registry.spec("silu_and_mul"), query=FLOAT)
    assert slot.call(torch.ones(2, 32)) == "vendor.acme"
    before = len(asked)
    assert slot.call(torch.ones(5, 32)) == "vendor.acme"
    assert len(asked) == before
    # What a layer says of its calls is what is usual, no promise.
    assert slot.call(torch.ones(2, 32, dtype=torch.float64)) == "reference.torch"


def test_the_kernel_may_still_decline(make_manager: Any) -> None:
    def declines(x: torch.Tensor) -> str:
        raise OpNotSupported("not today")

    manager = make_manager(impl("vendor.acme", declines, supports=wide), impl("reference.torch"))
    assert manager.get_op("silu_and_mul")(torch.ones(2, 32)) == "reference.torch"


def test_what_runs_on_another_device_is_no_candidate(make_manager: Any) -> None:
    here = impl("vendor.here", device_types=("cpu", "meta"))
    there = impl("vendor.there", device_types=("cuda",), priority=200)
    manager = make_manager(here, there)
    known = Query("silu_and_mul", {"device": "cpu"})
    resolution = manager.resolve("silu_and_mul", query=known)
    assert resolution.selected is here
    assert "it runs on cuda, the call is on cpu" in resolution.table()
    assert manager.resolve("silu_and_mul").selected is there
    layer = manager.new_slot(manager.registry.spec("silu_and_mul"), query=known)
    assert layer.call(torch.ones(2, 8)) == "vendor.here"
