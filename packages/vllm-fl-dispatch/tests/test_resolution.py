"""Who serves an operator, and why not the others."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_fl_dispatch import BackendImplKind, OpImpl, Query, SelectionPolicy, Verdict
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.resolution import Facts, Outcome, Resolution, resolve

from .conftest import impl

SPEC = {spec.name: spec for spec in SPECS}
STOCK = OpImpl("silu_and_mul", "stock", BackendImplKind.STOCK)
ALL = [impl("reference.torch"), impl("vendor.acme"), impl("default.flagos"), impl("vendor.zeta")]


def resolved(
    policy: SelectionPolicy | None = None,
    impls: list[OpImpl] = ALL,
    op: str = "silu_and_mul",
    **facts: Any,
) -> Resolution:
    return resolve(SPEC[op], impls, policy or SelectionPolicy(), Facts(**facts))


def ids(resolution: Resolution) -> list[str]:
    return [impl.impl_id for impl in resolution.accepted]


def outcome(resolution: Resolution, impl_id: str) -> tuple[Outcome, str]:
    return next((d.outcome, d.reason) for d in resolution.decisions if d.impl.impl_id == impl_id)


@pytest.mark.parametrize(
    ("prefer", "order"),
    [
        ("flagos", ["default.flagos", "vendor.zeta", "vendor.acme", "stock", "reference.torch"]),
        ("vendor", ["vendor.zeta", "vendor.acme", "default.flagos", "stock", "reference.torch"]),
        ("reference", ["reference.torch", "default.flagos", "vendor.zeta", "vendor.acme", "stock"]),
    ],
)
def test_the_preference_orders_the_kinds(prefer: str, order: list[str]) -> None:
    found = resolved(SelectionPolicy(prefer=prefer), [*ALL, STOCK])
    assert ids(found) == order
    assert [d.outcome for d in found.decisions][:2] == [Outcome.SELECTED, Outcome.FALLBACK]


def test_priority_breaks_ties_inside_a_token_and_nowhere_else() -> None:
    high = impl("vendor.low", priority=101)
    found = resolved(impls=[*ALL, high, impl("default.second", priority=1)])
    assert ids(found) == [
        "default.flagos", "default.second", "vendor.low", "vendor.zeta", "vendor.acme",
        "reference.torch",
    ]  # fmt: skip


def test_an_order_lists_all_that_may_be_tried() -> None:
    policy = SelectionPolicy.from_dict(per_op_order={"silu_and_mul": "vendor:acme|reference"})
    found = resolved(policy)
    assert ids(found) == ["vendor.acme", "reference.torch"]
    assert outcome(found, "default.flagos") == (
        Outcome.NOT_IN_ORDER,
        "no token of vendor:acme|reference names it",
    )
    assert found.order_origin == "per_op_order.silu_and_mul (code)"


def test_denied_and_not_allowed_vendors_say_which_setting_did_it() -> None:
    policy = SelectionPolicy().with_values(
        "environment VLLM_FL_DENY_VENDORS", deny_vendors=frozenset({"ZETA"})
    )
    found = resolved(policy)
    assert outcome(found, "vendor.zeta") == (
        Outcome.DENIED,
        "vendor zeta is denied by environment VLLM_FL_DENY_VENDORS",
    )
    found = resolved(SelectionPolicy.from_dict(allow_vendors=["zeta"]))
    assert outcome(found, "vendor.acme")[0] is Outcome.NOT_ALLOWED
    assert "vendor.zeta" in ids(found)


def test_absence_is_told_from_unavailability() -> None:
    found = resolved(
        installed={"default.flagos": Verdict.no("flag_gems is not installed")},
        available={"vendor.zeta": Verdict.no("no device")},
    )
    assert outcome(found, "default.flagos") == (
        Outcome.NOT_INSTALLED,
        "flag_gems is not installed",
    )
    assert outcome(found, "vendor.zeta") == (Outcome.UNAVAILABLE, "no device")


def test_support_is_asked_only_when_the_call_is_known() -> None:
    asked: list[Query] = []

    def supports(query: Query) -> Verdict:
        asked.append(query)
        return Verdict.no("float64 only")

    picky = impl("vendor.picky", supports=supports)
    assert "vendor.picky" in ids(resolved(impls=[picky, *ALL]))
    assert asked == []
    query = Query("silu_and_mul", {"dtype": "float32"})
    found = resolved(impls=[picky, *ALL], query=query)
    assert outcome(found, "vendor.picky") == (Outcome.UNSUPPORTED, "float64 only")
    assert asked == [query]


def test_earlier_failures_are_left_out() -> None:
    found = resolved(failures={"default.flagos": "RuntimeError: no symbol"})
    assert outcome(found, "default.flagos") == (Outcome.FAILED, "RuntimeError: no symbol")


def test_batch_invariance_leaves_only_those_that_promise_it() -> None:
    safe = impl("vendor.safe", batch_invariant=True)
    assert ids(resolved(impls=[*ALL, safe], batch_invariant=True)) == ["vendor.safe"]


def test_an_empty_group_order_is_filled_up_with_a_note() -> None:
    policy = SelectionPolicy.from_dict(per_op_order={"rms_norm": "vendor:acme"})
    reference = impl("reference.torch", lambda x, residual, weight, epsilon: x)
    found = resolved(policy, [reference], "fused_add_rms_norm")
    assert ids(found) == ["reference.torch"]
    assert "fused_add_rms_norm inherits the order of rms_norm" in found.note
    strict = SelectionPolicy.from_dict(per_op_order={"rms_norm": "vendor:acme"}, strict=True)
    assert ids(resolved(strict, [reference], "fused_add_rms_norm")) == []


def test_the_table_names_every_candidate_and_the_order() -> None:
    text = resolved(SelectionPolicy.from_dict(deny_vendors=["zeta"])).table()
    assert "order: flagos|vendor|stock|reference, from prefer=flagos (code)" in text
    for each in ALL:
        assert each.impl_id in text
    assert "denied" in text
