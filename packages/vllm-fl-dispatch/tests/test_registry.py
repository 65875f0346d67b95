"""Who implements what: duplicates, misfits, orphans."""

from __future__ import annotations

import inspect
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import (
    BackendImplKind,
    BackendPriority,
    ContractError,
    DuplicateError,
    OpImpl,
    OpManager,
    OpRegistry,
    OpSpec,
    SelectionPolicy,
    UnknownOp,
    Verdict,
)
from vllm_fl_dispatch.ops import SPECS

from .conftest import impl, source


@pytest.fixture
def registry() -> OpRegistry:
    registry = OpRegistry()
    for spec in SPECS:
        registry.add_spec(spec)
    return registry


def test_the_same_implementation_twice_is_no_change(registry: OpRegistry) -> None:
    one = impl("vendor.acme")
    registry.register_many([one, one])
    assert registry.size() == 1


def test_what_several_threads_register_at_once_is_all_there(registry: OpRegistry) -> None:
    class Slow:
        """A function whose signature takes so long that all threads ask for one meanwhile."""

        def __call__(self, x: Any) -> None: ...

        @property
        def __signature__(self) -> inspect.Signature:
            time.sleep(0.02)
            return inspect.signature(lambda x: None)

    with ThreadPoolExecutor(4) as threads:
        names = [f"vendor.acme{number}" for number in range(4)]
        list(threads.map(lambda name: registry.register_impl(impl(name, Slow())), names))
    assert sorted(found.impl_id for found in registry.impls("silu_and_mul")) == names


def test_one_id_with_two_functions_is_an_error(registry: OpRegistry) -> None:
    registry.register_impl(impl("vendor.acme"))
    with pytest.raises(DuplicateError, match=r"silu_and_mul\[vendor.acme\] is registered twice"):
        registry.register_impl(impl("vendor.acme", lambda x: x))


def test_one_operator_with_two_contracts_is_an_error(registry: OpRegistry) -> None:
    registry.add_spec(SPECS[0])
    with pytest.raises(DuplicateError, match="specified twice"):
        registry.add_spec(OpSpec(SPECS[0].name, lambda x: x))


def test_an_unknown_operator_names_the_nearest(registry: OpRegistry) -> None:
    with pytest.raises(UnknownOp, match="unknown operator 'rms_nrom'; did you mean 'rms_norm'"):
        registry.spec("rms_nrom")


def test_implementations_under_a_name_nobody_has_are_kept_and_listed(registry: OpRegistry) -> None:
    registry.register_impl(impl("vendor.acme", op="rmsnorm"))
    assert [orphan.op_name for orphan in registry.orphans()] == ["rmsnorm"]


def test_a_vendor_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs vendor="):
        OpImpl("silu_and_mul", "vendor.x", BackendImplKind.VENDOR, lambda x: x)


def test_an_implementation_is_a_function_or_a_loader() -> None:
    with pytest.raises(ValueError, match=r"exactly one of fn= .* and load="):
        OpImpl("silu_and_mul", "reference.x", BackendImplKind.REFERENCE)


@pytest.mark.parametrize(
    ("field", "value"),
    [("fn", "acme.silu"), ("load", "acme:"), ("supports", 1), ("installed", "acme:installed")],
)
def test_what_is_called_is_a_function_or_its_place(field: str, value: Any) -> None:
    given = {"fn": lambda x: x, field: value} if field != "load" else {field: value}
    with pytest.raises(ValueError, match=f"{field}= must be a function"):
        OpImpl("silu_and_mul", "reference.x", BackendImplKind.REFERENCE, **given)


def test_stock_is_not_for_backends(registry: OpRegistry) -> None:
    with pytest.raises(ContractError, match="stands for vLLM's own layers"):
        registry.register_impl(OpImpl("silu_and_mul", "stock", BackendImplKind.STOCK))


def test_the_priority_follows_from_the_kind() -> None:
    assert impl("default.flagos").priority == BackendPriority.DEFAULT == 150
    assert impl("vendor.acme").priority == BackendPriority.VENDOR == 100
    assert impl("reference.torch").priority == BackendPriority.REFERENCE == 50


def rms_without_options(x: Any, weight: Any, epsilon: float) -> Any: ...
def rms_with_default(x: Any, weight: Any, epsilon: float, extra: int = 0) -> Any: ...
def rms_of_anything(*args: Any, **options: Any) -> Any: ...
def rms_too_short(x: Any, weight: Any) -> Any: ...
def rms_other_names(hidden: Any, gamma: Any, eps: float) -> Any: ...
def rms_needs_more(x: Any, weight: Any, epsilon: float, residual: Any) -> Any: ...


@pytest.mark.parametrize("fn", [rms_without_options, rms_with_default, rms_of_anything, max])
def test_functions_that_fit_the_contract(registry: OpRegistry, fn: Any) -> None:
    registry.register_impl(impl("vendor.acme", fn, op="rms_norm"))


@pytest.mark.parametrize("fn", [rms_too_short, rms_other_names, rms_needs_more])
def test_functions_that_do_not(registry: OpRegistry, fn: Any) -> None:
    with pytest.raises(ContractError, match="does not fit the contract of rms_norm"):
        registry.register_impl(impl("vendor.acme", fn, op="rms_norm"))


def test_only_donated_arguments_may_be_overwritten(registry: OpRegistry) -> None:
    with pytest.raises(ContractError, match=r"overwrites \['x'\]; .* lets it overwrite nothing"):
        registry.register_impl(impl("vendor.acme", mutates=("x",)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("available", Verdict.yes(), "available= must be a function, which is called later"),
        ("supports", "float32", "supports= must be a function"),
        ("mutates", "x", r"mutates= must be a tuple of names, such as \('x',\)"),
    ],
)
def test_a_field_of_a_wrong_kind_is_refused_where_it_is_written(
    field: str, value: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        impl("vendor.acme", **{field: value})


def test_a_load_that_returns_no_function_says_so(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme", load=lambda: None), impl("reference.torch"))
    assert manager.get_op("silu_and_mul")(torch.ones(2, 8)) == "reference.torch"
    (failure,) = manager.failures.all()
    assert "must be a function without arguments that returns the implementation" in failure.error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "vendor"),
        ("priority", "high"),
        ("max_numel", "10"),
        ("mutates", "x"),
        ("vendor", 3),
        ("impl_id", None),
    ],
)
def test_a_field_of_a_wrong_type_is_an_error_where_it_is_written(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{field}= must be"):
        replace(impl("vendor.acme"), **{field: value})


def test_no_backend_is_called_as_vllms_own_layers_are() -> None:
    with pytest.raises(ValueError, match="stands for vLLM's own layers"):
        replace(impl("vendor.acme"), impl_id="stock")


def test_only_what_overwrites_has_a_function_that_does_not() -> None:
    with pytest.raises(ValueError, match="load_functional= is for one that mutates="):
        impl("vendor.acme", load_functional=lambda: print)


def test_one_id_with_other_limits_is_an_error(registry: OpRegistry) -> None:
    first = impl("vendor.acme")
    registry.register_impl(first)
    with pytest.raises(DuplicateError, match=r"twice with different priority, max_numel: by"):
        registry.register_impl(replace(first, priority=7, max_numel=8))


def test_a_function_need_not_be_hashable(make_manager: Any) -> None:
    @dataclass
    class Kernel:
        scale: float = 2.0

        def __call__(self, x: Any) -> Any:
            return x * self.scale

    manager = make_manager(impl("vendor.acme", Kernel()))
    assert manager.get_op("silu_and_mul")(torch.ones(2, 4)).eq(2).all()


def test_an_answer_that_is_a_pair_is_no_yes(make_manager: Any) -> None:
    manager = make_manager(
        impl("vendor.acme", available=lambda: (False, "no device")), impl("reference.torch")
    )
    resolution = manager.resolve("silu_and_mul")
    assert resolution.selected.impl_id == "reference.torch"
    assert "neither a Verdict nor a boolean" in resolution.table()


def test_what_others_register_while_a_plugin_loads_stays(module: Any) -> None:
    module(
        "slow",
        """
        from vllm_fl_dispatch import BackendImplKind, OpImpl

        def register(registrar):
            own = OpImpl("silu_and_mul", "vendor.slow", BackendImplKind.VENDOR, print, "slow")
            registrar.add(own)
            manager.registry.register_impl(meanwhile)
            registrar.add(same_id)
        """,
    )
    import slow  # type: ignore[import-not-found]  # written above

    manager = slow.manager = OpManager(SelectionPolicy(), [source("slow")])
    slow.meanwhile, slow.same_id = impl("vendor.user"), impl("vendor.user")
    manager.ensure_built()
    found = {i.impl_id: i for i in manager.registry.impls("silu_and_mul")}
    assert set(found) == {"vendor.slow", "vendor.user"}
    assert found["vendor.user"] is slow.meanwhile
    (refusal,) = manager.registry.snapshot().refusals
    assert refusal.what == "silu_and_mul[vendor.user]"
