"""The written contracts: their parts agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_fl_dispatch import ImplementationFailed, OpNotSupported, Query, SelectionPolicy
from vllm_fl_dispatch.contracts import lowered
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.testing.kit import as_tuple

from .conftest import impl

SPEC = {spec.name: spec for spec in SPECS}


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_an_example_can_be_made_of_nothing(spec: Any) -> None:
    args, options = spec.example(Query(spec.name))
    spec.oracle(*args, **options)


def test_an_example_of_large_experts_is_small_and_keeps_what_matters() -> None:
    # One layer of DeepSeek-V3: 21 GiB of weights.
    facts = {"dtype": torch.bfloat16, "hidden_size": 7168, "intermediate_size": 1408,
             "num_experts": 256, "topk": 8, "activation": "gelu",
             "has_expert_map": True}  # fmt: skip
    args, options = SPEC["fused_experts"].example(Query("fused_experts", facts))
    x, w1, w2, _, ids, activation = args
    assert sum(each.nbytes for each in (x, w1, w2)) < 2**24
    assert (x.dtype, ids.shape[1], activation) == (torch.bfloat16, 8, "gelu")
    assert w1.shape[0] == w2.shape[0] == len(options["expert_map"])
    assert ids.max() < w1.shape[0]
    assert ids.unique().numel() >= 8
    assert (x.shape[1] % 256, w2.shape[2] % 256) == (7168 % 256, 1408 % 256)
    SPEC["fused_experts"].oracle(*args, **options)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_case_is_a_call_whose_result_the_shape_function_knows(spec: Any) -> None:
    names = set()
    for case in spec.cases():
        assert case.name not in names, f"two cases are called {case.name}"
        names.add(case.name)
        if case.heavy or case.dtype != "float32":
            continue
        maker = Maker()
        args, options = case.make(maker), case.options(maker)
        expected, shapes = spec.oracle(*args, **options), spec.fake(*args, **options)
        if spec.name == "moe_align_block_size":
            continue  # its oracle says only what is meant
        for truth, shape in zip(as_tuple(expected), as_tuple(shapes), strict=True):
            assert (truth is None) == (shape is None), case.name
            if truth is not None:
                assert truth.shape == shape.shape, case.name
                assert shape.is_contiguous(), case.name


def test_a_query_reads_well() -> None:
    query = SPEC["silu_and_mul"].query(torch.ones(2, 8))
    assert (query.dtype, query.device_type, query.last_dim) == (torch.float32, "cpu", 8)
    assert str(query) == "silu_and_mul(dtype=torch.float32, device=cpu, last_dim=8)"
    assert query.get("approximate", "none") == "none"
    assert Query("x", {"device": "npu"}).device_type == "npu"


def test_options_that_cannot_be_lowered_are_not_supported() -> None:
    def plain(x: Any, weight: Any, epsilon: float) -> Any: ...

    spec, args = SPEC["rms_norm"], (torch.ones(1, 4), torch.ones(4), 1e-6)
    assert lowered(spec, plain, args, {"variance_size": None})[1] == {}
    assert lowered(spec, plain, args, {"weight_offset": 1.0})[0][1].eq(2).all()
    assert lowered(spec, plain, (args[0], None, 1e-6), {"weight_offset": 1.0})[0][1] is None
    with pytest.raises(OpNotSupported, match="it has no option variance_size"):
        lowered(spec, plain, args, {"variance_size": 2})


def test_an_implementation_is_tried_once_for_a_kind_of_call(make_manager: Any) -> None:
    calls = []

    def broken(x: Any) -> Any:
        calls.append(x.shape)
        raise RuntimeError("no symbol")

    manager = make_manager(impl("vendor.acme", broken), impl("reference.torch"))
    spec, query = SPEC["silu_and_mul"], Query("silu_and_mul", {"last_dim": 6})
    chosen = manager.registry.impls("silu_and_mul")[0]
    for _ in range(3):
        assert manager.try_out(spec, chosen, broken, query) == "RuntimeError: no symbol"
    assert calls == [(2, 6)]
    assert len(manager.failures.all()) == 1
    manager.clear_failures()
    manager.set_policy(SelectionPolicy(strict=True))
    for _ in range(2):  # what was raised is not forgotten
        with pytest.raises(ImplementationFailed):
            manager.try_out(spec, chosen, broken, query)

    def unsure(x: Any) -> Any:
        raise OpNotSupported("not so narrow")

    manager.clear_failures()
    other = impl("vendor.other", unsure)
    assert "not so narrow" in (manager.try_out(spec, other, unsure, query) or "")
    assert manager.failures.all() == ()
    assert manager.try_out(spec, impl("vendor.good"), lambda x: x, query) is None
