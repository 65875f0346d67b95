"""The written contracts: their parts agree, and the comparison with the oracle can fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_fl_dispatch import ImplementationFailed, OpNotSupported, Query, SelectionPolicy
from vllm_fl_dispatch.contracts import lowered
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.testing.compare import run_case, ulp_error

from .conftest import impl
from .test_torch_ops import double

SPEC = {spec.name: spec for spec in SPECS}


def all_cases() -> list[Any]:
    return [
        pytest.param(spec, case, id=f"{spec.name}-{case.name}")
        for spec in SPECS
        for case in spec.cases()
        if case.name.startswith(("float32", "bfloat16-3d", "bfloat16-strided"))
    ]


@pytest.mark.parametrize(("spec", "case"), all_cases())
def test_the_oracle_rounded_once_passes_every_case(spec: Any, case: Any) -> None:
    error, found, _ = run_case(spec, double(spec), case)
    assert error <= 0.5
    shapes = spec.fake(*case.make(Maker()), **case.options)
    shapes = shapes if isinstance(shapes, tuple) else (shapes,)
    for result, shape in zip(found, shapes, strict=True):
        if result is not None:
            assert result.shape == shape.shape
            assert shape.is_contiguous()


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_an_example_is_a_call_with_the_facts_it_was_made_for(spec: Any) -> None:
    for case in list(spec.cases())[:12]:
        args = case.make(Maker())
        query = spec.query(*args, **case.options)
        example, options = spec.example(query)
        assert spec.query(*example, **options).facts == query.facts
        double(spec)(*example, **options)
    args, options = spec.example(Query(spec.name))
    double(spec)(*args, **options)


def test_a_query_reads_well() -> None:
    query = SPEC["silu_and_mul"].query(torch.ones(2, 8))
    assert (query.dtype, query.device_type, query.last_dim) == (torch.float32, "cpu", 8)
    assert str(query) == "silu_and_mul(dtype=torch.float32, device=cpu, last_dim=8)"
    assert query.get("approximate", "none") == "none"
    assert Query("x", {"device": "npu"}).device_type == "npu"


FAULTS = {
    "silu_and_mul": lambda x: torch.nn.functional.silu(x[..., ::2].contiguous()) * x[..., 1::2],
    "gelu_and_mul": lambda x, approximate="none": (
        torch.nn.functional.gelu(x[..., : x.shape[-1] // 2], approximate="tanh")
        * x[..., x.shape[-1] // 2 :]
    ),
    "rms_norm": lambda x, weight, epsilon, **_: (
        x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon).to(x.dtype)
    ),
    "fused_add_rms_norm": lambda x, residual, weight, epsilon, **o: (
        SPEC["fused_add_rms_norm"].oracle(x, residual, weight, epsilon, **o)[0].to(x.dtype),
        residual.clone(),
    ),
    "rotary_embedding": lambda positions, query, key, head_size, cache, neox, **o: (
        query.clone(),
        None if key is None else key.clone(),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_far_outside_the_tolerance(name: str) -> None:
    spec = SPEC[name]
    worst = max(
        run_case(spec, FAULTS[name], case)[0]
        for case in spec.cases()
        if case.name.startswith("float32") and "odd" not in case.name
    )
    assert worst > 100 * spec.max_ulp["float32"]


def test_a_wrong_dtype_shape_or_changed_argument_is_an_error() -> None:
    spec = SPEC["silu_and_mul"]
    case = next(case for case in spec.cases() if case.name == "bfloat16-3d")
    right = double(spec)
    with pytest.raises(AssertionError, match=r"dtype torch\.float32, expected torch\.bfloat16"):
        run_case(spec, lambda x: right(x).float(), case)
    with pytest.raises(AssertionError, match=r"shape \(1, 2, 3, 64\), expected \(2, 3, 64\)"):
        run_case(spec, lambda x: right(x)[None], case)
    with pytest.raises(AssertionError, match="silu_and_mul changed its argument x"):
        run_case(spec, lambda x: (right(x), x.add_(1))[0], case)
    rotary = SPEC["rotary_embedding"]
    no_key = next(case for case in rotary.cases() if "no-key-tokens" in case.name)
    with pytest.raises(AssertionError, match="expected None"):
        run_case(rotary, lambda p, q, k, *_: (double(rotary)(p, q, k, *_)[0], q), no_key)


def test_errors_are_counted_in_units_of_the_last_place() -> None:
    one = torch.ones(1, 4, dtype=torch.bfloat16)
    assert ulp_error(one, one.double()) == 0
    assert ulp_error(one + 2**-7, one.double()) == 1
    assert ulp_error(one, one.double() * float("nan")) == float("inf")
    assert ulp_error(one * float("nan"), one.double() * float("nan")) == 0
    assert ulp_error(one * float("inf"), one.double()) == float("inf")
    assert ulp_error(torch.empty(0, 4), torch.empty(0, 4).double()) == 0
    small = torch.tensor([[1.0, 1e-6]])
    expected = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert ulp_error(small, expected) > 1e6
    assert ulp_error(small, expected, floor=1.0) < 20


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
    with pytest.raises(ImplementationFailed):
        manager.try_out(spec, chosen, broken, query)

    def unsure(x: Any) -> Any:
        raise OpNotSupported("not so narrow")

    manager.clear_failures()
    other = impl("vendor.other", unsure)
    assert "not so narrow" in (manager.try_out(spec, other, unsure, query) or "")
    assert manager.failures.all() == ()
    assert manager.try_out(spec, impl("vendor.good"), lambda x: x, query) is None
