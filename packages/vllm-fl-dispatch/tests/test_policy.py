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
