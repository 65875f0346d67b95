"""Changes that come while slots are in use, and what they must not disturb."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from types import FunctionType, MethodType
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import Query, SelectionPolicy
from vllm_fl_dispatch.scopes import scoped

from .conftest import impl

X = torch.ones(2, 8)
WITHOUT_ACME = SelectionPolicy(deny_vendors=frozenset({"acme"}))


def test_a_call_that_outlives_a_change_does_not_undo_it(make_manager: Any) -> None:
    def add(x: Any, residual: Any, weight: Any, epsilon: float) -> str:
        manager.set_policy(WITHOUT_ACME)  # as another thread would, in the middle of a first call
        return "vendor.acme"

    op = "fused_add_rms_norm"
    manager = make_manager(
        impl("vendor.acme", add, op=op, mutates=("x", "residual")),
        impl("reference.torch", lambda x, residual, weight, epsilon: "reference.torch", op=op),
    )
    spec = manager.registry.spec(op)
    slot = manager.new_slot(spec, query=spec.query(X, X, None, 1e-6))
    assert slot.call(X, X, None, 1e-6) == "vendor.acme"
    assert slot.call(X, X, None, 1e-6) == "reference.torch"


def test_a_plan_of_before_a_change_serves_no_call_after_it(make_manager: Any) -> None:
    asked: list[Query] = []

    def supports(query: Query) -> bool:
        asked.append(query)
        if len(asked) == 1:
            manager.set_policy(WITHOUT_ACME)
            manager.slot("silu_and_mul").bind()
        return True

    manager = make_manager(
        impl("vendor.acme", supports=supports), impl("vendor.other", supports=lambda query: True)
    )
    op = manager.get_op("silu_and_mul")
    op(X)
    assert asked
    assert [op(X), op(X)] == ["vendor.other"] * 2


def test_a_scope_around_the_first_call_stays_out_of_a_layer_built_before(
    make_manager: Any,
) -> None:
    manager = make_manager(impl("vendor.acme"), impl("reference.torch"))
    spec = manager.registry.spec("silu_and_mul")
    slot = manager.new_slot(spec, query=spec.query(X))
    with scoped(manager, prefer="reference"):
        assert manager.get_op("silu_and_mul")(X) == "reference.torch"
        assert slot.call(X) == "vendor.acme"
    assert slot.call(X) == "vendor.acme"


def test_a_failure_leaves_what_was_compiled_for_other_operators(make_manager: Any) -> None:
    def fails(gating_output: Any, topk: int, renormalize: bool = False) -> Any:
        raise RuntimeError("no symbol")

    manager = make_manager(
        impl("vendor.acme", lambda x: x * 2),
        impl("vendor.acme", fails, op="topk_softmax"),
        impl(
            "reference.torch", lambda gating_output, topk, renormalize=False: 1, op="topk_softmax"
        ),
    )
    op = manager.get_op("silu_and_mul")
    op(X)
    compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, backend="eager")
    assert compiled(X).eq(3).all()
    manager.get_op("topk_softmax")(X, 1)
    assert manager.failures.all()
    assert compiled(X).eq(3).all()


def test_two_that_share_a_function_are_both_passed_over_when_it_fails(make_manager: Any) -> None:
    calls = []

    def shared(x: Any) -> str:
        calls.append(x)
        raise RuntimeError("no symbol")

    manager = make_manager(
        impl("vendor.acme", shared), impl("vendor.other", shared), impl("reference.torch")
    )
    op = manager.get_op("silu_and_mul")
    assert [op(X), op(X)] == ["reference.torch"] * 2
    assert len(calls) == 2
    assert {f.impl_id for f in manager.failures.all()} == {"vendor.acme", "vendor.other"}


def test_slots_are_made_while_nobody_goes_through_them(make_manager: Any) -> None:
    interval = sys.getswitchinterval()
    # Threads take turns so often that one of them is in between.
    sys.setswitchinterval(1e-6)
    try:
        make_and_invalidate(make_manager(impl("vendor.acme")))
    finally:
        sys.setswitchinterval(interval)


def make_and_invalidate(manager: Any) -> None:
    spec = manager.registry.spec("silu_and_mul")
    made: list[Any] = []

    def make() -> None:
        made.extend(manager.new_slot(spec) for _ in range(500))

    thread = threading.Thread(target=make)
    thread.start()
    while thread.is_alive():
        manager.invalidate()
    thread.join()
    assert len(made) == 500


def test_scopes_that_come_and_go_leave_nothing_behind(
    make_manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_FL_SHADOW", "silu_and_mul=reference")
    monkeypatch.setenv("VLLM_FL_SHADOW_SAMPLE", "first=0;every=0")
    manager = make_manager(impl("vendor.acme"), impl("reference.torch"))
    manager.report.enabled = True
    op = manager.get_op("silu_and_mul")

    def functions() -> int:
        with scoped(manager, prefer="vendor"):
            op(X)
        gc.collect()
        return sum(type(each) in (FunctionType, MethodType) for each in gc.get_objects())

    functions()
    before = functions()
    for _ in range(20):
        functions()
    assert functions() - before < 20


@pytest.mark.parametrize("shadowed", [False, True])
def test_a_layer_that_is_gone_is_not_kept_by_what_counts_its_calls(
    make_manager: Any, monkeypatch: pytest.MonkeyPatch, shadowed: bool
) -> None:
    if shadowed:
        monkeypatch.setenv("VLLM_FL_SHADOW", "silu_and_mul=reference")
    manager = make_manager(impl("vendor.acme"), impl("reference.torch"))
    manager.report.enabled = True
    spec = manager.registry.spec("silu_and_mul")
    layer = torch.nn.Linear(2, 2)
    gone = weakref.ref(layer)

    def stock(x: Any, layer: Any = layer) -> Any:
        return layer

    slot = manager.new_slot(spec, query=spec.query(X), stock=stock, layer=weakref.ref(layer))
    slot.bind()
    del layer, slot, stock
    gc.collect()
    assert gone() is None


def test_who_holds_what_a_call_runs_now_may_pass_options(make_manager: Any) -> None:
    def norm(
        x: Any, weight: Any, epsilon: float, *, variance_size: Any = None, weight_offset: float = 0
    ) -> float:
        return weight_offset

    manager = make_manager(impl("vendor.acme", norm, op="rms_norm", supports=lambda query: True))
    current = manager.slot("rms_norm").current
    assert current(X, None, 1e-6) == 0
    assert current(X, None, 1e-6, weight_offset=1.0) == 1.0
