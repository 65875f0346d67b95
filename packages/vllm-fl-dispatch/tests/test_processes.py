"""Import cost, forks, threads at start-up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vllm_fl_dispatch as fl
from vllm_fl_dispatch import OpManager, PolicyError, SelectionPolicy, Verdict, discovery, locks
from vllm_fl_dispatch.locks import ForkLock

from .conftest import impl, source

X = torch.ones(2, 8)


def run(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_imports_no_torch_and_discovers_nothing() -> None:
    out = run(
        "import sys, vllm_fl_dispatch as fl\n"
        "fl.get_op('rms_norm')\n"
        "heavy = {'torch', 'vllm', 'pydantic', 'rich', 'typer', 'importlib_metadata'}\n"
        "print(sorted(heavy & set(sys.modules)), fl.get_discovered_plugins())"
    )
    assert out.strip() == "[] ()"


def test_installed_distributions_are_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib_metadata

    scans = []
    real = importlib_metadata.distributions

    def counting(**kwargs: Any) -> Any:
        scans.append(1)
        return real(**kwargs)

    monkeypatch.setattr(importlib_metadata, "distributions", counting)
    discovery.installed.cache_clear()
    for _ in range(2):
        manager = OpManager(SelectionPolicy())
        manager.ensure_built()
        for op in manager.registry.op_names():
            manager.resolve(op)
    assert len(scans) == 1


def in_child(body: Callable[[], bool], seconds: float = 20) -> None:
    """Fork; the child must return True in time."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if body() else 1)
        except BaseException:  # noqa: BLE001  # a child of fork must not unwind into pytest
            os._exit(2)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


def test_a_child_of_fork_works_as_its_parent_did(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme"), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert op(X) == "vendor.acme"
    size = manager.registry.size()
    in_child(lambda: op(X) == "vendor.acme" and manager.registry.size() == size)


def test_a_fork_while_another_thread_holds_the_lock(make_manager: Any) -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow() -> Verdict:
        inside.set()
        leave.wait(30)
        return Verdict.yes()

    manager = make_manager(impl("vendor.slow", available=slow), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    holder = threading.Thread(target=op, args=(X,))
    holder.start()
    assert inside.wait(10)

    def child() -> bool:
        leave.set()
        return bool(op(X) == "vendor.slow")

    in_child(child)
    leave.set()
    holder.join()


def test_a_fork_in_the_middle_of_discovery_starts_anew(module: Any) -> None:
    module(
        "slow_plugin",
        """
        import threading, time
        from vllm_fl_dispatch import BackendImplKind, OpImpl
        inside, leave = threading.Event(), threading.Event()

        def register(registry):
            registry.register_many([OpImpl(
                "silu_and_mul", "vendor.slow", BackendImplKind.VENDOR, lambda x: "slow", "slow")])
            inside.set()
            leave.wait(30)
        """,
    )
    import slow_plugin  # type: ignore[import-not-found]  # written above

    manager = OpManager(SelectionPolicy(), [source("slow_plugin")])
    builder = threading.Thread(target=manager.ensure_built)
    builder.start()
    assert slow_plugin.inside.wait(10)

    def child() -> bool:
        slow_plugin.leave = threading.Event()
        slow_plugin.leave.set()
        return bool(manager.get_op("silu_and_mul")(X) == "slow" and manager.registry.size() == 1)

    in_child(child)
    slow_plugin.leave.set()
    builder.join()
    assert manager.registry.size() == 1


def test_threads_that_start_together_see_one_complete_registry(module: Any) -> None:
    module(
        "counted_plugin",
        """
        import time
        from vllm_fl_dispatch import BackendImplKind, OpImpl
        runs = []

        def register(registry):
            runs.append(1)
            time.sleep(0.1)
            registry.register_many([OpImpl(
                "silu_and_mul", "vendor.c", BackendImplKind.VENDOR, lambda x: "c", "c")])
        """,
    )
    manager = OpManager(SelectionPolicy(), [source("counted_plugin")])
    barrier = threading.Barrier(16)
    results: list[Any] = []

    def call() -> None:
        barrier.wait()
        results.append(manager.get_op("silu_and_mul")(X))

    threads = [threading.Thread(target=call) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == ["c"] * 16
    import counted_plugin  # type: ignore[import-not-found]  # written above

    assert counted_plugin.runs == [1]


def test_a_hook_that_calls_back_neither_hangs_nor_doubles(module: Any) -> None:
    module(
        "calls_back",
        """
        from vllm_fl_dispatch import BackendImplKind, OpImpl
        manager = None

        def register(registry):
            manager.ensure_built()
            manager.resolve("rms_norm")
            registry.register_many([OpImpl(
                "silu_and_mul", "vendor.c", BackendImplKind.VENDOR, lambda x: "c", "c")])
        """,
    )
    import calls_back  # type: ignore[import-not-found]  # written above

    manager = calls_back.manager = OpManager(SelectionPolicy(), [source("calls_back")])
    assert manager.get_op("silu_and_mul")(X) == "c"
    assert [record.status for record in manager.records] == ["loaded"]


def test_a_failed_start_can_be_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "vendro")
    manager = OpManager(sources=())
    for _ in range(2):
        with pytest.raises(ValueError, match="vendro"):
            manager.ensure_built()
    monkeypatch.setenv("VLLM_FL_PREFER", "vendor")
    manager.ensure_built()
    assert manager.policy.prefer == "vendor"
    assert "rms_norm" in manager.registry.op_names()


def test_plugins_load_again_when_a_failed_start_is_retried(
    monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    module(
        "retried",
        """
        from vllm_fl_dispatch import BackendImplKind, OpImpl, hookimpl

        @hookimpl
        def vllm_fl_register_ops(registrar):
            registrar.add(OpImpl("silu_and_mul", "vendor.acme", BackendImplKind.VENDOR,
                                 lambda x: "a", "acme", empty_ok=True))
        """,
    )
    monkeypatch.setenv("VLLM_FL_PREFER", "vendro")
    manager = OpManager(sources=[source("retried")])
    with pytest.raises(ValueError, match="vendro"):
        manager.ensure_built()
    monkeypatch.delenv("VLLM_FL_PREFER")
    manager.ensure_built()
    assert [(r.status, r.impl_count) for r in manager.records] == [("loaded", 1)]
    assert manager.get_op("silu_and_mul")(X) == "a"


def test_what_code_registered_before_the_start_survives_a_fork() -> None:
    manager = OpManager(SelectionPolicy(), sources=())
    manager.registry.register_impl(impl("vendor.acme"))
    pid = os.fork()
    if pid == 0:
        os._exit(manager.get_op("silu_and_mul")(X) != "vendor.acme")
    assert os.waitpid(pid, 0)[1] == 0


WORKER = """
import multiprocessing as mp
import vllm_fl_dispatch as fl

def work(queue):
    policy = fl.get_policy()
    queue.put((policy, policy.origin_of("per_op_order.rms_norm")))

def ask():
    queue = mp.get_context("spawn").Queue()
    process = mp.get_context("spawn").Process(target=work, args=(queue,))
    process.start()
    answer = queue.get(timeout=60)
    process.join()
    return answer
"""


def test_a_policy_set_in_code_reaches_spawned_workers(
    module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module("policy_worker", WORKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("VLLM_FL_PREFER", "reference")
    import policy_worker  # type: ignore[import-not-found]  # written above

    policy = SelectionPolicy.from_dict(
        prefer="vendor", per_op_order={"rms_norm": "flagos|stock"}, deny_vendors=["zeta"]
    ).with_values("code", compiled={"per_op_order": {"rms_norm": ("reference",)}})
    fl.set_global_policy(policy)
    try:
        found, origin = policy_worker.ask()
        assert found == policy
        assert origin == "code of the parent process (code)"
    finally:
        fl.reset_global_policy()
    found, _ = policy_worker.ask()
    assert found.prefer == "reference"
    assert found.per_op_order == {}


def test_a_handle_bound_in_a_start_that_failed_is_bound_anew(module: Any) -> None:
    module(
        "early",
        """
        def register(registrar):
            registrar.add(kernel)
            manager.get_op("silu_and_mul")(x)
        """,
    )
    import early  # type: ignore[import-not-found]  # written above

    policy = SelectionPolicy(strict=True, per_op_order={"silu_and_mull": ("vendor",)})
    manager = early.manager = OpManager(policy, [source("early")])
    early.kernel, early.x = impl("vendor.acme"), X
    op = manager.get_op("silu_and_mul")
    for _ in range(2):
        with pytest.raises(PolicyError, match="silu_and_mull"):
            op(X)


def test_a_module_of_kernels_may_ask_for_a_handle_while_it_is_imported(module: Any) -> None:
    module(
        "kernels",
        """
        import time
        import world

        world.importing.set()
        time.sleep(0.3)
        norm = world.manager.get_op("rms_norm")

        def silu(x):
            return "kernels"
        """,
    )
    module("world", "")
    import world  # type: ignore[import-not-found]  # written above

    world.importing = threading.Event()
    manager = world.manager = OpManager(SelectionPolicy(), sources=())
    manager.registry.register_impl(impl("vendor.acme", "kernels:silu"))
    manager.ensure_built()
    answers: list[Any] = []

    def call() -> None:
        world.importing.wait(10)
        answers.append(manager.get_op("silu_and_mul")(X))

    threads = [
        threading.Thread(target=__import__, args=("kernels",), daemon=True),
        threading.Thread(target=call, daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == ["kernels"]


def test_no_lock_of_ours_is_held_for_ever_in_a_forked_child() -> None:
    held, leave = threading.Barrier(2), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in list(locks._locks):
                stack.enter_context(lock)
            held.wait()
            leave.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        with contextlib.ExitStack() as stack:
            for lock in list(locks._locks):
                stack.enter_context(lock)
            os._exit(0)
    leave.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0


def test_a_block_that_forks_under_a_lock_ends_in_both_processes() -> None:
    lock = ForkLock()
    with lock:
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
