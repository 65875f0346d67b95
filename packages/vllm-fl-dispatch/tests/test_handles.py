"""What callers hold, and what runs behind it."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import (
    NoImplementation,
    OpNotSupported,
    Query,
    SelectionPolicy,
    UnknownOp,
    Verdict,
    resolve_op,
)
from vllm_fl_dispatch.ops import SPECS

from .conftest import impl

X = torch.ones(2, 8)
W = torch.ones(8)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_handle_has_the_signature_of_its_contract(make_manager: Any, spec: Any) -> None:
    handle = make_manager().get_op(spec.name)
    expected = inspect.signature(spec.contract)
    found = inspect.signature(handle)
    assert [(p.name, p.kind, p.default) for p in found.parameters.values()] == [
        (p.name, p.kind, p.default) for p in expected.parameters.values()
    ]
    assert handle.__doc__ == spec.contract.__doc__
    assert handle.__name__ == spec.name


def test_a_wrong_call_is_the_callers_and_bans_nothing(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme"), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    with pytest.raises(TypeError, match="silu_and_mul"):
        op(X, X, X)
    assert op(X) == "vendor.acme"
    assert manager.failures.all() == ()


def test_the_implementation_itself_stands_in_the_slot_when_nothing_needs_a_check(
    make_manager: Any,
) -> None:
    chosen = impl("vendor.acme")
    slot = make_manager(chosen).slot("silu_and_mul")
    assert slot.current is chosen.fn


def test_a_handle_follows_the_policy(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme"), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert op(X) == "vendor.acme"
    manager.set_policy(SelectionPolicy(prefer="reference"))
    assert op(X) == "reference.torch"


def test_a_handle_follows_a_late_registration(make_manager: Any) -> None:
    manager = make_manager(impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert op(X) == "reference.torch"
    manager.registry.register_impl(impl("default.flagos"))
    assert op(X) == "default.flagos"


def test_nothing_left_is_an_error_with_the_table_of_reasons(make_manager: Any) -> None:
    policy = SelectionPolicy.from_dict(per_op_order={"silu_and_mul": "flagos"})
    manager = make_manager(impl("vendor.acme"), policy=policy)
    with pytest.raises(NoImplementation) as caught:
        manager.get_op("silu_and_mul")(X)
    assert "vendor.acme" in str(caught.value)
    assert "no token of flagos names it" in str(caught.value)
    assert "vllm-fl-reference" in str(caught.value)


def test_an_unknown_operator_names_the_nearest(make_manager: Any) -> None:
    with pytest.raises(UnknownOp, match="did you mean 'silu_and_mul'"):
        make_manager().get_op("silu_and_mull")


def test_support_is_decided_per_kind_of_call(make_manager: Any) -> None:
    def only_wide(query: Query) -> Verdict:
        return Verdict(query.last_dim == 8, "8 wide only")

    manager = make_manager(impl("vendor.acme", supports=only_wide), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert op(torch.ones(2, 8)) == "vendor.acme"
    assert op(torch.ones(2, 6)) == "reference.torch"
    assert op(torch.ones(3, 8)) == "vendor.acme"


def test_a_predicate_that_raises_costs_its_own_implementation_only(make_manager: Any) -> None:
    def supports(query: Any) -> bool:
        return bool(query.get("rows") % 16 == 0)  # None where it is not known

    manager = make_manager(impl("vendor.acme", supports=supports), impl("reference.torch"))
    assert manager.get_op("silu_and_mul")(X) == "reference.torch"
    query = manager.registry.spec("silu_and_mul").query(X)
    resolution = manager.resolve("silu_and_mul", query=query)
    assert resolution.selected.impl_id == "reference.torch"
    reasons = {d.impl.impl_id: d.reason for d in resolution.decisions}
    assert reasons["vendor.acme"].startswith("supports raised TypeError")


def test_not_this_input_goes_on_without_a_penalty(make_manager: Any) -> None:
    calls = []

    def picky(x: Any) -> str:
        calls.append(x.shape[0])
        if x.shape[0] == 1:
            raise OpNotSupported("one row")
        return "vendor.acme"

    manager = make_manager(impl("vendor.acme", picky), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert [op(torch.ones(n, 8)) for n in (2, 1, 2, 1)] == [
        "vendor.acme", "reference.torch", "vendor.acme", "reference.torch",
    ]  # fmt: skip
    assert calls == [2, 1, 2, 1]
    assert manager.failures.all() == ()


@pytest.mark.parametrize(
    ("limit", "served", "refused"),
    [
        ({"needs_contiguous": True}, torch.ones(4, 8), torch.ones(8, 4).T),
        ({"max_numel": 32}, torch.ones(4, 8), torch.ones(5, 8)),
    ],
)
def test_declared_limits_are_enforced(
    make_manager: Any, limit: dict[str, Any], served: torch.Tensor, refused: torch.Tensor
) -> None:
    manager = make_manager(impl("vendor.acme", **limit), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert op(served) == "vendor.acme"
    assert op(refused) == "reference.torch"
    only = make_manager(impl("vendor.acme", **limit))
    with pytest.raises(NoImplementation, match=r"contiguous|at most 32 elements"):
        only.get_op("silu_and_mul")(refused)


def test_zero_rows_are_answered_without_the_implementation(make_manager: Any) -> None:
    def crash(x: Any) -> Any:
        raise AssertionError("launched with no rows")

    manager = make_manager(impl("vendor.acme", crash, empty_ok=False))
    result = manager.get_op("silu_and_mul")(torch.ones(0, 8, dtype=torch.float16))
    assert (result.shape, result.dtype) == ((0, 4), torch.float16)
    assert manager.failures.all() == ()


def test_an_option_that_an_implementation_lacks_goes_elsewhere(make_manager: Any) -> None:
    def plain(x: Any, weight: Any, epsilon: float) -> str:
        return "vendor.acme"

    def full(x: Any, weight: Any, epsilon: float, *, variance_size: Any = None,
             weight_offset: float = 0.0) -> Any:  # fmt: skip
        return ("reference.torch", variance_size)

    manager = make_manager(
        impl("vendor.acme", plain, op="rms_norm"), impl("reference.torch", full, op="rms_norm")
    )
    op = manager.get_op("rms_norm")
    assert op(X, W, 1e-6) == "vendor.acme"
    assert op(X, W, 1e-6, variance_size=4) == ("reference.torch", 4)
    assert op(X, W, 1e-6, variance_size=None) == "vendor.acme"


def test_the_core_adds_a_weight_offset_where_an_implementation_cannot(make_manager: Any) -> None:
    seen = []

    def plain(x: Any, weight: Any, epsilon: float) -> str:
        seen.append(weight)
        return "vendor.acme"

    op = make_manager(impl("vendor.acme", plain, op="rms_norm")).get_op("rms_norm")
    weight = torch.full((8,), 3.140625, dtype=torch.bfloat16)
    assert op(X.bfloat16(), weight, 1e-6, weight_offset=1.0) == "vendor.acme"
    assert seen[0].dtype == torch.float32
    assert seen[0].tolist() == [4.140625] * 8
    weight.fill_(1.0)
    op(X.bfloat16(), weight, 1e-6, weight_offset=1.0)
    assert seen[1].tolist() == [2.0] * 8, "weights are reloaded: nothing may be cached"


def test_a_loader_runs_once_and_only_when_bound(make_manager: Any) -> None:
    loads = []

    def load() -> Any:
        loads.append(1)
        return lambda x: "vendor.lazy"

    manager = make_manager(impl("vendor.lazy", load=load))
    op = manager.get_op("silu_and_mul")
    assert loads == []
    assert [op(X), op(X)] == ["vendor.lazy"] * 2
    manager.invalidate()
    assert op(X) == "vendor.lazy"
    assert loads == [1]


@pytest.mark.parametrize("error", [ImportError("no symbol"), OSError("libx.so"), TypeError("?")])
def test_what_cannot_be_loaded_is_passed_over(make_manager: Any, error: Exception) -> None:
    def load() -> Any:
        raise error

    manager = make_manager(impl("vendor.lazy", load=load), impl("reference.torch"))
    assert manager.get_op("silu_and_mul")(X) == "reference.torch"
    (failure,) = manager.failures.all()
    assert (failure.impl_id, failure.key) == ("vendor.lazy", None)


def test_a_loaded_function_must_fit_the_contract_too(make_manager: Any) -> None:
    manager = make_manager(
        impl("vendor.lazy", load=lambda: lambda layer, x: x), impl("reference.torch")
    )
    assert manager.get_op("silu_and_mul")(X) == "reference.torch"
    assert "does not fit the contract" in manager.failures.all()[0].error


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module that nobody has imported."""
    name = "kernels_of_acme"
    (tmp_path / f"{name}.py").write_text(
        "from vllm_fl_dispatch import Verdict\n"
        "def silu_and_mul(x): return 'named'\n"
        "def make_silu_and_mul(): return lambda x: 'made'\n"
        "def supports(query): return Verdict.no('never')\n"
        "def strange(layer, x): return x\n"
        "NUMBER = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("field", "name", "answer"),
    [("fn", "silu_and_mul", "named"), ("load", "make_silu_and_mul", "made")],
)
def test_a_function_given_by_its_place_is_imported_when_bound(
    make_manager: Any, kernels: str, field: str, name: str, answer: str
) -> None:
    manager = make_manager(impl("vendor.acme", **{field: f"{kernels}:{name}"}))
    op = manager.get_op("silu_and_mul")
    assert manager.resolve("silu_and_mul").selected is not None
    assert kernels not in sys.modules
    assert op(X) == answer


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("kernels_of_acme:f", "has no attribute 'f'"),
        ("kernels_of_acme:NUMBER", "is no function but 1"),
        ("kernels_of_acme:strange", "does not fit the contract"),
    ],
)
def test_a_place_with_nothing_that_fits_is_passed_over(
    make_manager: Any, kernels: str, place: str, said: str
) -> None:
    manager = make_manager(impl("vendor.acme", place), impl("reference.torch"))
    assert manager.get_op("silu_and_mul")(X) == "reference.torch"
    assert said in manager.failures.all()[0].error


def test_supports_given_by_its_place_is_imported_when_asked(
    make_manager: Any, kernels: str
) -> None:
    acme = impl("vendor.acme", supports=f"{kernels}:supports")
    manager = make_manager(acme, impl("reference.torch"))
    assert kernels not in sys.modules
    query = Query("silu_and_mul", {"dtype": X.dtype})
    decision = next(d for d in manager.resolve("silu_and_mul", query=query).decisions
                    if d.impl.impl_id == "vendor.acme")  # fmt: skip
    assert decision.reason == "never"
    assert manager.get_op("silu_and_mul")(X) == "reference.torch"


def test_availability_is_asked_once_and_may_raise(make_manager: Any) -> None:
    asked = []

    def available() -> bool:
        asked.append(1)
        raise OSError("libascendcl.so")

    manager = make_manager(impl("vendor.acme", available=available), impl("reference.torch"))
    for op in (manager.get_op("silu_and_mul"),) * 3:
        assert op(X) == "reference.torch"
    assert "asking raised OSError: libascendcl.so" in manager.resolve("silu_and_mul").table()
    assert asked == [1]


def test_the_limits_concern_every_tensor_of_a_call(make_manager: Any) -> None:
    def norm(x: Any, weight: Any, epsilon: float) -> str:
        return "vendor.acme"

    def align(topk_ids: Any, block_size: int, num_experts: int, **options: Any) -> str:
        return "vendor.acme"

    op, limits = "rms_norm", {"needs_contiguous": True, "max_numel": 32}
    other = "moe_align_block_size"
    manager = make_manager(
        impl("vendor.acme", norm, op=op, **limits),
        impl("reference.torch", lambda *_, **__: "reference.torch", op=op),
        impl("vendor.acme", align, op=other, **limits),
        impl("reference.torch", lambda *_, **__: "reference.torch", op=other),
    )
    norm_call, align_call = manager.get_op(op), manager.get_op(other)
    assert norm_call(X, W, 1e-6) == "vendor.acme"
    assert norm_call(X, torch.ones(16)[::2], 1e-6) == "reference.torch"
    ids = torch.zeros(4, 4, dtype=torch.int32)
    assert align_call(ids, 16, 8) == "vendor.acme"
    assert align_call(ids[:, ::2], 16, 8) == "reference.torch"
    assert align_call(ids, 16, 8, expert_map=torch.zeros(64)) == "reference.torch"


def test_a_sum_over_nothing_is_computed(make_manager: Any) -> None:
    total = impl("vendor.acme", lambda x: x.sum(1), op="moe_sum", empty_ok=False)
    op = make_manager(total).get_op("moe_sum")
    assert op(torch.ones(5, 0, 64)).eq(0).all()
    assert op(torch.ones(0, 2, 64)).shape == (0, 64)


def test_what_takes_no_empty_input_stands_in_the_slot_all_the_same(make_manager: Any) -> None:
    def fn(x: Any) -> Any:
        frames = traceback.extract_stack()
        assert not any(frame.filename.endswith("chain.py") for frame in frames)
        return x

    op = make_manager(impl("vendor.acme", fn, empty_ok=False)).get_op("silu_and_mul")
    op(torch.ones(2, 8))
    assert op(torch.ones(0, 8)).shape == (0, 4)


@pytest.mark.parametrize("limits", [{}, {"needs_contiguous": True}, {"supports": lambda q: True}])
def test_the_function_of_now_is_called_as_the_operator_is(
    default_manager: Any, limits: dict[str, Any]
) -> None:
    def plain(x: Any, weight: Any, epsilon: float) -> Any:
        return x * 0 + weight

    default_manager(impl("vendor.acme", plain, op="rms_norm", **limits))
    now = resolve_op("rms_norm")
    assert now(X, W, 1e-6).eq(1).all()
    assert now(X, W, 1e-6, weight_offset=1.0).eq(2).all()
    assert now(x=X, weight=W, epsilon=1e-6).eq(1).all()
