"""The words of a policy: tokens, orders, vendors, origins."""

from __future__ import annotations

import contextlib
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_fl_dispatch import PolicyError, SelectionPolicy
from vllm_fl_dispatch.config.values import parse_bool, parse_per_op
from vllm_fl_dispatch.tokens import parse_order, parse_token, token_matches

from .conftest import impl


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("flagos", "flagos"),
        (" Vendor : CUDA ", "vendor:cuda"),
        ("REFERENCE", "reference"),
        ("impl:vendor.Acme", "impl:vendor.Acme"),
        ("stock", "stock"),
    ],
)
def test_blanks_and_case_are_forgiven_where_they_mean_nothing(text: str, token: str) -> None:
    assert parse_token(text) == token


@pytest.mark.parametrize("text", ["", "vendro", "vendor:", "flagos:x", "vendor:a b", "impl:"])
def test_a_wrong_token_is_an_error_that_names_what_is_accepted(text: str) -> None:
    with pytest.raises(PolicyError, match="flagos, vendor, vendor:NAME, reference, stock, impl:ID"):
        parse_token(text, "VLLM_FL_PER_OP")


def test_an_order_is_a_list_or_text_and_names_each_token_once() -> None:
    assert parse_order("vendor:acme | reference|vendor:ACME") == ("vendor:acme", "reference")
    assert parse_order(["flagos", "reference"]) == ("flagos", "reference")


def test_a_token_names_a_kind_a_vendor_or_one_implementation() -> None:
    acme = impl("vendor.acme")
    assert token_matches("vendor", acme)
    assert token_matches("vendor:acme", acme)
    assert token_matches("impl:vendor.acme", acme)
    assert not token_matches("vendor:other", acme)
    assert not token_matches("flagos", acme)
    assert not token_matches("vendor:acme", impl("reference.torch"))


def test_a_wrong_preference_is_an_error() -> None:
    with pytest.raises(PolicyError, match="'vendro' is not accepted; accepted: flagos, vendor"):
        SelectionPolicy(prefer="vendro")


def test_a_compiled_section_is_checked_when_it_is_made() -> None:
    with pytest.raises(PolicyError, match="'vendro' is not accepted"):
        SelectionPolicy(compiled={"prefer": "vendro"})
    with pytest.raises(PolicyError, match=r"unknown \['prefre'\]; accepted: .*prefer"):
        SelectionPolicy(compiled={"prefre": "vendor"})
    listed = SelectionPolicy(compiled={"per_op_order": {"rms_norm": ["flagos", "stock"]}})
    spelled = SelectionPolicy(compiled={"per_op_order": {"rms_norm": "flagos|stock"}})
    assert listed == spelled
    assert hash(listed) == hash(spelled)
    assert pickle.loads(pickle.dumps(listed)) == listed


@pytest.mark.parametrize("setting", ["deny_vendors", "oot_blacklist"])
def test_one_name_is_not_taken_for_a_set_of_letters(setting: str) -> None:
    with pytest.raises(PolicyError, match=f"{setting}: expected names"):
        SelectionPolicy(**{setting: "acme"})  # type: ignore[arg-type]  # the mistake


def test_a_member_of_a_group_inherits_its_order() -> None:
    policy = SelectionPolicy.from_dict(per_op_order={"rms_norm": "vendor:acme|reference"})
    order, origin = policy.order_for("fused_add_rms_norm", "rms_norm")
    assert order == ("vendor:acme", "reference")
    assert origin == "per_op_order.rms_norm (code)"


def test_every_value_remembers_where_it_came_from() -> None:
    policy = SelectionPolicy().with_values("file a.yaml", prefer="vendor")
    policy = policy.with_values("environment VLLM_FL_STRICT", strict=True)
    assert policy.origin_of("prefer") == "file a.yaml"
    assert policy.origin_of("strict") == "environment VLLM_FL_STRICT"
    assert policy.origin_of("deny_vendors") == "default"


def test_the_origin_is_not_part_of_the_identity() -> None:
    one = SelectionPolicy.from_dict(prefer="vendor", origin="a")
    other = SelectionPolicy.from_dict(prefer="vendor", origin="b")
    assert one == other
    assert hash(one) == hash(other)


def test_a_policy_travels_to_other_processes() -> None:
    policy = SelectionPolicy.from_dict(
        prefer="vendor", per_op_order={"rms_norm": "flagos"}, deny_vendors=["acme"], strict=True
    )
    copy = pickle.loads(pickle.dumps(policy))
    assert copy == policy
    assert copy.origin_of("prefer") == "code"


@pytest.mark.parametrize("text", ["1", "true", "True", " YES ", "on"])
def test_switches_that_mean_yes(text: str) -> None:
    assert parse_bool(text, "X") is True


@pytest.mark.parametrize("text", ["0", "FALSE", "no", " off"])
def test_switches_that_mean_no(text: str) -> None:
    assert parse_bool(text, "X", default=True) is False


@pytest.mark.parametrize("text", ["enabled", "2", "tru"])
def test_any_other_switch_is_an_error_that_names_the_variable(text: str) -> None:
    with pytest.raises(PolicyError, match=r"VLLM_FL_STRICT: .* is not a switch; accepted"):
        parse_bool(text, "VLLM_FL_STRICT")


def test_orders_per_operator() -> None:
    assert parse_per_op("rms_norm = vendor:cuda|reference ; silu_and_mul=flagos;", "X") == {
        "rms_norm": ("vendor:cuda", "reference"),
        "silu_and_mul": ("flagos",),
    }


@pytest.mark.parametrize("text", ["rms_norm", "=flagos", "a=flagos;a=vendor", "a=", "a=b|c"])
def test_a_malformed_order_per_operator_is_an_error(text: str) -> None:
    with pytest.raises(PolicyError, match="VLLM_FL_PER_OP"):
        parse_per_op(text, "VLLM_FL_PER_OP")


_TOKENS = st.sampled_from(["flagos", "vendor", "vendor:acme", "reference", "impl:a.b", "stock"])
_NAMES = st.from_regex(r"[a-z][a-z_0-9]{0,20}", fullmatch=True)


@given(st.dictionaries(_NAMES, st.lists(_TOKENS, min_size=1, unique=True), max_size=4))
def test_what_is_written_in_the_grammar_is_read_back(orders: dict[str, list[str]]) -> None:
    text = ";".join(f"{op}={'|'.join(order)}" for op, order in orders.items())
    assert parse_per_op(text, "X") == {op: tuple(order) for op, order in orders.items()}


@given(st.text(alphabet="abflgosvendr:|;=. _-1\n\t", max_size=40))
def test_any_text_is_a_policy_or_a_policy_error(text: str) -> None:
    with contextlib.suppress(PolicyError):
        parse_per_op(text, "X")


def test_vendors_are_compared_without_case_and_blanks() -> None:
    policy = SelectionPolicy(deny_vendors=frozenset({" ACME ", " "}))
    assert policy.deny_vendors == {"acme"}
    allowed = SelectionPolicy(allow_vendors=frozenset({"Zeta", ""}))
    assert allowed.allow_vendors == {"zeta"}
    shouting = impl("vendor.ZETA")
    assert allowed.objection(shouting) is None
    assert policy.objection(impl("vendor.Acme")) == ("denied", "vendor acme is denied by default")
    assert policy.objection(impl("reference.torch")) is None


def test_layers_are_left_alone_as_the_lists_say() -> None:
    policy = SelectionPolicy()
    assert policy.layer_objection(["rms_norm"]) is None
    off = policy.with_values("environment X", oot_enabled=False)
    assert off.layer_objection(["rms_norm"]) == "layers are left alone by environment X"
    listed = policy.with_values("environment Y", oot_blacklist=frozenset({"rms_norm"}))
    for names in (["rms_norm"], ["fused_add_rms_norm", "rms_norm"]):
        assert listed.layer_objection(names) == "operator rms_norm is denied by environment Y"
    only = policy.with_values("environment Z", oot_whitelist=frozenset({"rms_norm"}))
    assert only.layer_objection(["fused_add_rms_norm", "rms_norm"]) is None
    assert only.layer_objection(["silu_and_mul"]) == (
        "operator silu_and_mul is not allowed by environment Z"
    )


def test_shipped_defaults_yield_only_to_what_speaks_of_the_same_thing() -> None:
    shipped = SelectionPolicy().with_values(
        "platform defaults acme",
        per_op_order={"rms_norm": ("stock",)},
        compiled={"prefer": "vendor", "strict": True, "per_op_order": {"rms_norm": ("stock",),
                                                                        "a": ("vendor",)}},
    )  # fmt: skip
    strict = shipped.with_values("user", strict=False)
    assert strict.per_op_order == {"rms_norm": ("stock",)}
    assert dict(strict.compiled) == {
        "prefer": "vendor",
        "per_op_order": {"rms_norm": ("stock",), "a": ("vendor",)},
    }
    ordered = shipped.with_orders("user", {"rms_norm": ("reference",)})
    assert ordered.compiled["per_op_order"] == {"a": ("vendor",)}
    assert ordered.compiled["strict"] is True
    preferred = shipped.with_values("user", prefer="reference")
    assert dict(preferred.compiled) == {"strict": True}
    assert preferred.origin_of("per_op_order.rms_norm") == "default"
    again = shipped.with_values("platform defaults acme", prefer="reference")
    assert again.per_op_order == {"rms_norm": ("stock",)}


def test_a_compiled_section_of_the_user_does_not_yield() -> None:
    policy = SelectionPolicy().with_values("file a.yaml", compiled={"prefer": "vendor"})
    assert policy.with_values("scope", prefer="reference").compiled == {"prefer": "vendor"}


def test_orders_and_names_are_added_with_their_own_origin() -> None:
    policy = SelectionPolicy().with_orders("one", {"a": ("flagos",), "b": ("flagos",)})
    policy = policy.with_orders("two", {"b": ("vendor",)})
    assert policy.per_op_order == {"a": ("flagos",), "b": ("vendor",)}
    assert policy.origin_of("per_op_order.a") == "one"
    assert policy.origin_of("per_op_order.b") == "two"
    policy = policy.with_names("three", "oot_blacklist", frozenset({"x"}))
    policy = policy.with_names("four", "oot_blacklist", frozenset({"y"}))
    assert policy.oot_blacklist == {"x", "y"}
    assert policy.origin_of("oot_blacklist.x") == "three"
    assert policy.origin_of("oot_blacklist.y") == "four"


def test_policies_differ_where_any_setting_does() -> None:
    changes = {
        "prefer": "vendor", "strict": True, "per_op_order": {"a": ("flagos",)},
        "deny_vendors": frozenset({"a"}), "allow_vendors": frozenset({"a"}), "use_flagos": False,
        "flagos_blacklist": frozenset({"a"}), "flagos_whitelist": frozenset({"a"}),
        "flagos_aten": frozenset({"a"}),
        "oot_enabled": False, "oot_blacklist": frozenset({"a"}),
        "oot_whitelist": frozenset({"a"}), "compiled": {"prefer": "vendor"},
    }  # fmt: skip
    policies = [SelectionPolicy(), *(SelectionPolicy(**{k: v}) for k, v in changes.items())]
    assert len({policy.identity() for policy in policies}) == len(policies)
    assert len({hash(policy) for policy in policies}) == len(policies)
    for policy in policies:
        assert pickle.loads(pickle.dumps(policy)) == policy


def test_an_empty_order_and_a_bad_one_say_where_they_stand() -> None:
    with pytest.raises(PolicyError, match=r"^here: an empty order; accepted: one or more of"):
        parse_order([], "here")
    with pytest.raises(PolicyError, match=r"^order of rms_norm: 'x' is not a token"):
        SelectionPolicy(per_op_order={"rms_norm": ("x",)})
    with pytest.raises(PolicyError, match=r"^VLLM_FL_PER_OP, a: 'x' is not a token"):
        parse_per_op("a=x", "VLLM_FL_PER_OP")
    with pytest.raises(PolicyError, match=r"^V: 'a' is named twice$"):
        parse_per_op("a=flagos;a=vendor", "V")
    with pytest.raises(
        PolicyError, match=r"^V: 'a' is not of the form op=token\|token; example: rms"
    ):
        parse_per_op(" a ", "V")


def test_an_empty_switch_is_its_default() -> None:
    assert parse_bool(" ", "X", default=True) is True
    assert parse_bool("", "X") is False
    with pytest.raises(PolicyError, match=r"accepted: 1, on, true, yes or 0, false, no, off$"):
        parse_bool("maybe", "X")


@pytest.mark.parametrize(
    "values",
    [
        {"strict": "false"},
        {"use_flagos": 1},
        {"prefer": None},
        {"per_op_order": {"rms_norm": [1]}},
        {"compiled": {"oot_enabled": "no"}},
    ],
)
def test_a_value_of_a_wrong_type_is_an_error_that_says_what_is_accepted(
    values: dict[str, object],
) -> None:
    with pytest.raises(PolicyError, match="accepted: "):
        SelectionPolicy(**values)  # type: ignore[arg-type]
