"""Selectors share registry, policy, resolution and explanations with operators."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_fl_dispatch import (
    BackendImplKind,
    ContractError,
    OpImpl,
    SelectionPolicy,
    UnknownOp,
    Verdict,
)
from vllm_fl_dispatch.explain import explain
from vllm_fl_dispatch.selectors import ATTENTION_BACKEND
from vllm_fl_dispatch.types import Query

NAME = "attention_backend"


def backend(impl_id: str, **more: Any) -> OpImpl:
    kind = BackendImplKind.VENDOR if "vendor" in impl_id else BackendImplKind.REFERENCE
    vendor = "acme" if "vendor" in impl_id else None

    def fn(use_mla: bool = False, use_sparse: bool = False) -> str:
        return f"{impl_id}.Class"

    return OpImpl(NAME, impl_id, kind, fn, vendor, **more)


def test_it_is_no_operator(make_manager: Any) -> None:
    manager = make_manager(backend("reference.torch"))
    assert NAME in manager.registry.names()
    assert NAME not in manager.registry.op_names()
    with pytest.raises(UnknownOp, match="is selected when vLLM asks for it"):
        manager.registry.spec(NAME)
    with pytest.raises(UnknownOp, match="cannot be called"):
        manager.get_op(NAME)(True, False)


def test_an_implementation_must_fit_the_contract(make_manager: Any) -> None:
    manager = make_manager()

    def wrong(head_size: int) -> str:
        return ""

    with pytest.raises(ContractError, match=r"expected: attention_backend\(use_mla"):
        manager.registry.register_impl(
            OpImpl(NAME, "reference.torch", BackendImplKind.REFERENCE, wrong)
        )


@pytest.mark.parametrize("prefer", ["flagos", "vendor", "reference"])
def test_a_stock_platform_keeps_its_own_unless_an_order_names_it(
    make_manager: Any, prefer: str
) -> None:
    policy = SelectionPolicy.from_dict(prefer=prefer)
    manager = make_manager(backend("vendor.acme"), backend("reference.torch"), policy=policy)
    assert manager.resolve(NAME, stock=True).selected.impl_id == "stock"
    manager.set_policy(policy.with_values("test", per_op_order={NAME: "reference"}))
    assert manager.resolve(NAME, stock=True).selected.impl_id == "reference.torch"


def test_without_a_stock_platform_the_preference_decides(make_manager: Any) -> None:
    manager = make_manager(backend("vendor.acme"), backend("reference.torch"))
    assert [i.impl_id for i in manager.resolve(NAME).accepted] == ["vendor.acme", "reference.torch"]
    manager.set_policy(SelectionPolicy.from_dict(prefer="reference"))
    assert manager.resolve(NAME).selected.impl_id == "reference.torch"


def test_explain_shows_a_request_and_why_not_the_others(make_manager: Any) -> None:
    def dense_only(query: Query) -> Verdict:
        return Verdict.no("no MLA") if query.get("use_mla") else Verdict.yes()

    manager = make_manager(backend("vendor.acme", supports=dense_only), backend("reference.torch"))
    found = explain(manager, NAME, layer=False, facts={"use_mla": True, "head_size": 576})
    assert found.resolution.selected is not None
    assert found.resolution.selected.impl_id == "reference.torch"
    reasons = {d.impl.impl_id: d.reason for d in found.resolution.decisions}
    assert reasons["vendor.acme"] == "no MLA"


def test_sparse_without_mla_is_one_error_whoever_is_asked() -> None:
    for mla in (False, True):
        for sparse in (False, True):
            query = Query(NAME, {"use_mla": mla, "use_sparse": sparse})
            refused = ATTENTION_BACKEND.objection(query) is not None
            assert refused == (sparse and not mla)


def test_every_option_of_the_contract_is_a_fact() -> None:
    from vllm_fl_dispatch.contracts import option_defaults, positional_names

    parameters = {*positional_names(ATTENTION_BACKEND), *option_defaults(ATTENTION_BACKEND)}
    assert parameters == set(ATTENTION_BACKEND.fact_names)
