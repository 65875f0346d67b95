"""Mixture-of-experts models: routing and experts, one by one and in a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.fused_moe.router import router_factory

from vllm_fl_dispatch import SelectionPolicy, api
from vllm_fl_dispatch.config.carried import carry
from vllm_fl_dispatch.vllm.layers import Dispatched
from vllm_fl_dispatch.vllm.plugin import activate
from vllm_fl_dispatch.vllm.replaceable import replaceable
from vllm_fl_dispatch.vllm.routers import GroupedTopKLayer, RouterLayer, TopKLayer

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
