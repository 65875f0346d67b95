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


def test_the_resolution_as_data_and_as_text() -> None:
    policy = SelectionPolicy.from_dict(per_op_order={"silu_and_mul": "vendor:acme|reference"})
    query = Query("silu_and_mul", {"dtype": "float32", "last_dim": None})
    found = resolve(SPEC["silu_and_mul"], ALL, policy, Facts(query=query))
    data = found.as_dict()
    assert data["op"] == "silu_and_mul"
    assert data["query"] == "silu_and_mul(dtype=float32)"
    assert data["order"] == ["vendor:acme", "reference"]
    assert data["order_origin"] == "per_op_order.silu_and_mul (code)"
    assert data["selected"] == "vendor.acme"
    assert data["note"] == ""
    assert data["candidates"][0] == {
        "impl_id": "vendor.acme",
        "kind": "vendor",
        "vendor": "acme",
        "priority": 100,
        "origin": "",
        "accepted": True,
        "outcome": "selected",
        "reason": "token vendor:acme, priority 100",
        "token": "vendor:acme",
    }
    assert [c["outcome"] for c in data["candidates"]] == [
        "selected", "fallback", "not in the order", "not in the order",
    ]  # fmt: skip
    assert found.table() == (
        "order: vendor:acme|reference, from per_op_order.silu_and_mul (code)\n"
        "  implementation   decision          reason\n"
        "  vendor.acme      selected          token vendor:acme, priority 100\n"
        "  reference.torch  fallback          token reference, priority 50\n"
        "  default.flagos   not in the order  no token of vendor:acme|reference names it\n"
        "  vendor.zeta      not in the order  no token of vendor:acme|reference names it"
    )


def test_nothing_registered_is_said_in_words() -> None:
    found = resolved(impls=[])
    assert found.selected is None
    assert found.as_dict()["selected"] is None
    assert found.as_dict()["query"] is None
    assert found.table().endswith("\n  (nothing is registered for this operator)")


def test_refused_candidates_keep_their_token_and_stand_behind_the_accepted() -> None:
    found = resolved(
        SelectionPolicy.from_dict(deny_vendors=["zeta"]),
        available={"default.flagos": Verdict.no("no device")},
    )
    assert [(d.impl.impl_id, d.token, d.accepted) for d in found.decisions] == [
        ("vendor.acme", "vendor", True),
        ("reference.torch", "reference", True),
        ("default.flagos", "flagos", False),
        ("vendor.zeta", "vendor", False),
    ]


def test_a_plain_no_still_has_a_reason() -> None:
    picky = impl("vendor.picky", supports=lambda query: False)
    query = Query("silu_and_mul", {"last_dim": 7})
    found = resolved(impls=[picky, *ALL], query=query)
    assert outcome(found, "vendor.picky") == (
        Outcome.UNSUPPORTED,
        "does not support silu_and_mul(last_dim=7)",
    )


def test_sizes_count_only_where_they_are_known() -> None:
    small = impl("default.small", max_numel=10)
    for numel, accepted in ((None, True), (10, True), (11, False)):
        assert ("default.small" in ids(resolved(impls=[small], numel=numel))) == accepted


def test_the_lists_of_flagos_speak_of_operators_and_groups() -> None:
    shifted = [impl("default.flagos", lambda x, residual, weight, epsilon: x)]

    def found(**lists: Any) -> tuple[Outcome, str]:
        policy = SelectionPolicy().with_values("file a.yaml", **lists)
        return outcome(resolved(policy, shifted, "fused_add_rms_norm"), "default.flagos")

    assert found(flagos_blacklist=frozenset({"rms_norm"})) == (
        Outcome.DENIED,
        "operator rms_norm is denied by file a.yaml",
    )
    assert found(flagos_blacklist=frozenset({"fused_add_rms_norm"}))[0] is Outcome.DENIED
    assert found(flagos_whitelist=frozenset({"silu_and_mul"})) == (
        Outcome.NOT_ALLOWED,
        "operator fused_add_rms_norm is not allowed by file a.yaml",
    )
    assert found(flagos_whitelist=frozenset({"rms_norm"}))[0] is Outcome.SELECTED
    assert found(use_flagos=False) == (
        Outcome.DENIED,
        "FlagGems is switched off by file a.yaml",
    )


def test_the_appended_order_says_so_word_for_word() -> None:
    policy = SelectionPolicy.from_dict(per_op_order={"rms_norm": "vendor:acme"})
    reference = impl("reference.torch", lambda x, residual, weight, epsilon: x)
    found = resolved(policy, [reference], "fused_add_rms_norm")
    assert found.order == ("vendor:acme", "stock", "reference")
    assert found.note == (
        "fused_add_rms_norm inherits the order of rms_norm, which leaves it without an "
        "implementation; stock and reference were appended"
    )
    own = SelectionPolicy.from_dict(per_op_order={"fused_add_rms_norm": "vendor:acme"})
    assert ids(resolved(own, [reference], "fused_add_rms_norm")) == []
