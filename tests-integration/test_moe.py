"""Mixture-of-experts models: routing and experts, one by one and in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe.router import (
    fused_topk_bias_router,
    fused_topk_router,
    router_factory,
)
from vllm.model_executor.layers.fused_moe.router.cpu_router import CPURouter
from vllm.model_executor.layers.fused_moe.router.fused_topk_bias_router import FusedTopKBiasRouter
from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import GroupedTopKRouter

from vllm_fl_dispatch import BackendImplKind, OpImpl, OpNotSupported, SelectionPolicy, api
from vllm_fl_dispatch.config.carried import carry
from vllm_fl_dispatch.vllm import compat, layers
from vllm_fl_dispatch.vllm.layers import Dispatched
from vllm_fl_dispatch.vllm.plugin import activate
from vllm_fl_dispatch.vllm.replaceable import replaceable
from vllm_fl_dispatch.vllm.routers import (
    CPURouterLayer,
    GroupedTopKLayer,
    RouterLayer,
    TopKLayer,
)
from vllm_fl_reference.impl import routing

from .conftest import Run, served

REFERENCE = {"VLLM_FL_PREFER": "reference", "TEST_REPORT": "1"}
MOE = {"topk_softmax", "fused_experts"}


@pytest.mark.parametrize("mode", [{"enforce_eager": True}, {}], ids=["eager", "compiled"])
def test_the_reference_serves_routing_and_experts(
    run_vllm: Run, truth: Callable[[str], Any], mode: dict[str, Any]
) -> None:
    result = run_vllm("moe", environ=REFERENCE, **mode)
    assert result["tokens"] == truth("moe")
    rows = served(result)
    assert set(rows) >= MOE
    assert {rows[op][0] for op in MOE} == {"reference.torch"}
    if mode:
        assert all(rows[op][2] > 0 for op in MOE)
    else:
        # torch traces the routing; which experts have tokens it could not.
        assert [rows[op][1] for op in sorted(MOE)] == ["opaque", "inlined"]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """No replaced class and no manager before and after each test."""

    def clear() -> None:
        for layer in replaceable():
            if issubclass(layer.site.current() or object, Dispatched):
                layer.site.remove()
        api._default = None
        carry(None)

    clear()
    yield
    clear()


def router(policy: SelectionPolicy, **arguments: Any) -> Any:
    """A router as vLLM makes it on the CPU."""
    api.set_global_policy(policy)
    activate()
    compilation = CompilationConfig(mode=0, custom_ops=["all"])
    with set_current_vllm_config(VllmConfig(compilation_config=compilation)):
        return router_factory.create_fused_moe_router(top_k=2, global_num_experts=16, **arguments)


def by_id(result: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    weights, ids = result
    order = ids.long().argsort(-1)
    return weights.gather(-1, order), ids.gather(-1, order)


GROUPED = {"use_grouped_topk": True, "num_expert_group": 4, "topk_group": 2}
SCHEMES: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("topk_softmax", {}),
    "not renormalized": ("topk_softmax", {"renormalize": False}),
    "grouped": ("grouped_topk", GROUPED),
    "grouped with bias": (
        "grouped_topk",
        {
            **GROUPED,
            "scoring_func": "sigmoid",
            "routed_scaling_factor": 2.5,
            "e_score_correction_bias": torch.linspace(-1, 1, 16),
        },
    ),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_dispatched_router_routes_as_vllms_own(scheme: str) -> None:
    op, arguments = SCHEMES[scheme]
    stock = router(SelectionPolicy(), **arguments)
    assert not isinstance(stock, Dispatched), "by default the CPU keeps its own"
    ours = router(SelectionPolicy(prefer="reference"), **arguments)
    assert isinstance(ours, RouterLayer)
    assert ours._fl_routing is not None
    assert ours._fl_routing.op == op
    hidden, logits = torch.zeros(9, 4), torch.randn(9, 16)
    for indices in (None, torch.int64):
        found = by_id(ours.select_experts(hidden, logits, indices))
        expected = by_id(stock.select_experts(hidden, logits, indices))
        assert torch.equal(found[1], expected[1])
        assert found[1].dtype == expected[1].dtype
        assert torch.allclose(found[0], expected[0], rtol=1e-6)
    api.set_global_policy(SelectionPolicy())
    activate()
    assert router_factory.CPURouter.__module__.startswith("vllm."), "vLLM's own is back"


def test_a_scheme_of_a_models_own_is_left_to_vllm() -> None:
    def custom(**_: Any) -> Any:
        return torch.ones(3, 2), torch.zeros(3, 2, dtype=torch.int32)

    ours = router(SelectionPolicy(prefer="reference"), custom_routing_function=custom)
    weights, ids = ours.select_experts(torch.zeros(3, 4), torch.randn(3, 16), None)
    assert weights.eq(1).all()
    assert ids.eq(0).all()


@pytest.mark.parametrize(
    ("family", "attributes", "op"),
    [
        (TopKLayer, {"scoring_func": "softmax", "e_score_correction_bias": None}, "topk_softmax"),
        (TopKLayer, {"scoring_func": "sigmoid"}, None),
        (TopKLayer, {"scoring_func": "softmax", "_hash_indices_table": 1}, None),
        (TopKLayer, {"scoring_func": "softmax", "num_fused_shared_experts": 1}, None),
        (TopKLayer, {"scoring_func": "softmax", "num_fused_shared_experts": 0}, "topk_softmax"),
        (GroupedTopKLayer, {"num_expert_group": 4, "scoring_func": "sigmoid"}, "grouped_topk"),
        (GroupedTopKLayer, {"num_expert_group": 16, "scoring_func": "softmax"}, "topk_softmax"),
        (GroupedTopKLayer, {"num_expert_group": 3, "scoring_func": "sigmoid"}, None),
    ],
)
def test_the_routers_of_other_platforms_name_the_operator_that_does_their_work(
    family: Any, attributes: dict[str, Any], op: str | None
) -> None:
    made = object.__new__(family)
    common = {
        "top_k": 2,
        "global_num_experts": 16,
        "renormalize": True,
        "topk_group": 2,
        "routed_scaling_factor": 1.0,
        "e_score_correction_bias": torch.zeros(16),
    }
    for name, value in {**common, **attributes}.items():
        setattr(made, name, value)
    routing = made.fl_routing()
    assert (routing and routing.op) == op


def routed(cls: type, **arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    api.get_default_manager().ensure_built()
    hidden, logits = torch.zeros(99, 4), torch.randn(99, 16).bfloat16()
    with compat.eager_configuration():
        made: Any = cls(top_k=2, global_num_experts=16, **arguments)
        return by_id(made._compute_routing(hidden, logits, None))


def test_half_precision_goes_to_the_experts_to_which_vllm_sends_it() -> None:
    _, arguments = SCHEMES["grouped with bias"]
    api.set_global_policy(SelectionPolicy(prefer="reference"))
    expected = routed(CPURouter, **arguments)
    found = routed(layers.replacement(CPURouter, CPURouterLayer), **arguments)
    assert torch.equal(found[1], expected[1])
    assert torch.allclose(found[0], expected[0], rtol=1e-6)


@pytest.mark.parametrize("bias", [None, torch.linspace(-1, 1, 16)], ids=["plain", "bias"])
def test_a_factor_applies_where_vllm_applies_it(
    monkeypatch: pytest.MonkeyPatch, bias: torch.Tensor | None
) -> None:
    """Of groups that are none, with torch in place of the compiled operator of the build."""

    def compiled(weights: Any, ids: Any, rows: Any, gating: Any, renormalize: bool,
                 bias: Any = None, **_: Any) -> tuple[Any, Any]:  # fmt: skip
        return routing.topk_softmax(gating, ids.shape[1], renormalize, e_score_correction_bias=bias)

    monkeypatch.setattr(fused_topk_router, "vllm_topk_softmax", compiled)
    monkeypatch.setattr(fused_topk_bias_router, "vllm_topk_softmax", compiled)
    monkeypatch.setattr(fused_topk_router, "dispatch_topk_softmax_func", lambda **_: compiled)
    arguments = {"num_expert_group": 16, "topk_group": 2, "routed_scaling_factor": 2.5,
                 "e_score_correction_bias": bias}  # fmt: skip
    api.set_global_policy(SelectionPolicy(prefer="reference"))
    expected = routed(GroupedTopKRouter, **arguments)
    found = routed(layers.replacement(GroupedTopKRouter, GroupedTopKLayer), **arguments)
    assert torch.equal(found[1], expected[1])
    assert torch.allclose(found[0], expected[0], rtol=1e-6)


def test_a_factor_is_applied_once_where_vllms_own_router_stands_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own(self: Any, hidden: Any, logits: Any, indices: Any, **_: Any) -> Any:
        weights, ids = routing.topk_softmax(logits, self.top_k, self.renormalize)
        return weights * self.routed_scaling_factor, ids

    monkeypatch.setattr(FusedTopKBiasRouter, "_compute_routing", own)

    def fails(*_: Any, **__: Any) -> Any:
        raise OpNotSupported("not this one")

    policy = SelectionPolicy.from_dict(per_op_order={"topk_softmax": "vendor:acme|stock"})
    api.set_global_policy(policy)
    manager = api.get_default_manager()
    manager.ensure_built()
    vendor = BackendImplKind.VENDOR
    refusing = OpImpl("topk_softmax", "vendor.acme", vendor, fails, "acme", empty_ok=True)
    manager.registry.register_impl(refusing)
    monkeypatch.setattr(manager, "try_out", lambda *_, **__: None)
    arguments = {"routed_scaling_factor": 2.5, "scoring_func": "softmax"}
    found = routed(layers.replacement(FusedTopKBiasRouter, TopKLayer), **arguments)
    assert torch.allclose(found[0], routed(FusedTopKBiasRouter, **arguments)[0])
