"""Policies for a block of code; other threads and tasks never see them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import vllm_fl_dispatch as fl
from vllm_fl_dispatch import SelectionPolicy

from .conftest import impl

X = torch.ones(2, 8)


@pytest.fixture
def op(default_manager: Any) -> Iterator[Any]:
    default_manager(impl("default.flagos"), impl("vendor.acme"), impl("reference.torch"))
    return fl.get_op("silu_and_mul")


def test_a_scope_acts_inside_and_ends(op: Any) -> None:
    with fl.with_preference("reference") as policy:
        assert policy.prefer == "reference"
        assert fl.get_policy() is policy
        assert op(X) == "reference.torch"
        assert fl.call_op("silu_and_mul", X) == "reference.torch"
        assert fl.resolve_op("silu_and_mul")(X) == "reference.torch"
    assert op(X) == "default.flagos"
    assert fl.resolve_op("silu_and_mul")(X) == "default.flagos"


def test_scopes_nest_and_add_up(op: Any) -> None:
    with fl.with_preference("vendor"):
        assert op(X) == "vendor.acme"
        with fl.with_denied_vendors("acme"):
            assert op(X) == "default.flagos"
            with fl.with_strict_mode():
                assert fl.get_policy().strict
                assert fl.get_policy().prefer == "vendor"
        assert op(X) == "vendor.acme"
        with fl.policy_context(SelectionPolicy(prefer="reference")):
            assert op(X) == "reference.torch"
    assert op(X) == "default.flagos"


def test_allowed_vendors(op: Any) -> None:
    with fl.with_preference("vendor"), fl.with_allowed_vendors("other"):
        assert op(X) == "default.flagos"


def test_an_error_inside_closes_the_scope(op: Any) -> None:
    with pytest.raises(RuntimeError), fl.with_preference("reference"):
        raise RuntimeError
    assert op(X) == "default.flagos"


def test_a_scope_can_be_used_again_but_not_while_open(op: Any) -> None:
    scope = fl.with_preference("reference")
    for _ in range(2):
        with scope:
            assert op(X) == "reference.torch"
            with pytest.raises(RuntimeError, match="already open"):
                scope.__enter__()


def test_a_scope_of_one_thread_never_changes_anothers_result(op: Any) -> None:
    opened, checked = threading.Event(), threading.Event()
    seen = []

    def other() -> None:
        opened.wait(10)
        seen.extend(op(X) for _ in range(100))
        checked.set()

    thread = threading.Thread(target=other)
    thread.start()
    with fl.with_preference("reference"):
        opened.set()
        assert checked.wait(10)
        assert op(X) == "reference.torch"
    thread.join()
    assert set(seen) == {"default.flagos"}


def test_a_thread_started_inside_a_scope_starts_without_it(op: Any) -> None:
    seen = []
    with fl.with_preference("reference"):
        thread = threading.Thread(target=lambda: seen.append(op(X)))
        thread.start()
        thread.join()
    assert seen == ["default.flagos"]


def test_a_task_keeps_the_scope_it_was_created_in(op: Any) -> None:
    async def call() -> str:
        await asyncio.sleep(0)
        return str(op(X))

    async def main() -> list[str]:
        plain = asyncio.create_task(call())
        with fl.with_preference("reference"):
            scoped = asyncio.create_task(call())
            threaded = await asyncio.to_thread(op, X)
            return [await plain, await scoped, threaded]

    assert asyncio.run(main()) == ["default.flagos", "reference.torch", "reference.torch"]


def test_a_task_that_outlives_its_scope_falls_back_to_what_is_around_it(op: Any) -> None:
    async def main() -> str:
        gate = asyncio.Event()

        async def late() -> str:
            await gate.wait()
            return str(op(X))

        with fl.with_preference("reference"):
            task = asyncio.create_task(late())
        gate.set()
        return await task

    assert asyncio.run(main()) == "default.flagos"


def test_an_async_generator_closed_elsewhere_leaves_no_scope_behind(op: Any) -> None:
    async def generator() -> Any:
        with fl.with_preference("reference"):
            yield op(X)

    async def main() -> None:
        agen = generator()
        assert await asyncio.create_task(agen.__anext__()) == "reference.torch"
        await asyncio.create_task(agen.aclose())

    asyncio.run(main())
    assert op(X) == "default.flagos"


def test_a_scope_that_was_left_elsewhere_can_be_used_again(op: Any) -> None:
    scope = fl.with_preference("reference")
    scope.__enter__()
    contextvars.copy_context().run(scope.__exit__, None, None, None)
    with scope:
        assert op(X) == "reference.torch"
    assert op(X) == "default.flagos"
    assert fl.get_policy().prefer == "flagos"


def test_a_scope_survives_a_late_registration(op: Any) -> None:
    with fl.with_preference("reference"):
        assert op(X) == "reference.torch"
        fl.get_default_manager().registry.register_impl(impl("reference.zebra", priority=60))
        assert op(X) == "reference.zebra"


def test_an_open_scope_does_not_disturb_a_compilation_in_another_thread(op: Any) -> None:
    manager = fl.get_default_manager()
    manager.registry.register_impl(impl("default.zz", lambda x: x * 2))
    op(X)  # a handle is traced as what it was bound to
    compiled = torch.compile(lambda x: op(x) + 1, fullgraph=True, backend="eager")
    result = []

    def compile_it() -> None:
        result.append(compiled(X))

    with fl.with_preference("reference"):
        thread = threading.Thread(target=compile_it)
        thread.start()
        thread.join()
    assert result[0].eq(3).all()


def test_a_name_that_a_scope_brings_is_checked(
    default_manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    manager = default_manager(impl("vendor.acme"))
    with caplog.at_level(logging.WARNING), fl.with_denied_vendors("acmee"):
        assert "scope: unknown vendor 'acmee'" in caplog.text
    strict = SelectionPolicy(strict=True, per_op_order={"silu_and_mull": ("reference",)})
    with pytest.raises(fl.PolicyError, match="silu_and_mull"), fl.policy_context(strict):
        pass
    assert manager.get_op("silu_and_mul")(torch.ones(2, 8)) == "vendor.acme"


def test_vendors_that_were_denied_before_keep_their_origin(default_manager: Any) -> None:
    policy = SelectionPolicy().with_values("environment", deny_vendors=frozenset({"acme"}))
    default_manager(impl("vendor.acme"), impl("vendor.zeta"), policy=policy)
    with fl.with_denied_vendors("zeta"):
        found = fl.get_policy()
    assert found.deny_vendors == {"acme", "zeta"}
    assert found.origin_of("deny_vendors.acme") == "environment"
    assert found.origin_of("deny_vendors.zeta") == "scope"
