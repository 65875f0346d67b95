"""Threads that resolve, switch scopes and register, with forks in between."""

from __future__ import annotations

import os
import random
import threading
import time
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import OpManager
from vllm_fl_dispatch.scopes import scoped

from .conftest import impl

X = torch.ones(2, 8)
THREADS = 32
EXPECTED = {"flagos": "default.flagos", "vendor": "vendor.acme", "reference": "reference.torch"}


def work(manager: OpManager, stop: threading.Event, seed: int, wrong: list[str]) -> None:
    """Call in and out of scopes, nested ones too, until told to stop; note wrong selections."""
    rng = random.Random(seed)
    op = manager.get_op("silu_and_mul")

    def check(expected: str) -> None:
        found = op(X)
        if found != EXPECTED[expected]:
            wrong.append(f"{found} instead of {EXPECTED[expected]}")

    number = 0
    while not stop.is_set():
        outer, inner = rng.choice(list(EXPECTED)), rng.choice(list(EXPECTED))
        with scoped(manager, prefer=outer):
            check(outer)
            with scoped(manager, prefer=inner):
                check(inner)
            check(outer)
        check("flagos")
        if rng.random() < 0.02:
            number += 1
            # A lower priority: it never changes what is selected.
            manager.registry.register_impl(impl(f"reference.{seed}-{number}", priority=1))
        manager.resolve("silu_and_mul")


def run(make_manager: Any, seconds: float) -> None:
    manager = make_manager(*(impl(each) for each in EXPECTED.values()))
    stop, wrong = threading.Event(), []  # type: ignore[var-annotated]  # list of str
    threads = [
        threading.Thread(target=work, args=(manager, stop, seed, wrong)) for seed in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    forks = 0
    try:
        # On a busy machine a fork takes long: some there must be.
        while time.monotonic() < deadline or forks < 5:
            # In the child only this thread lives; locks may be held by those that do not.
            before = manager.registry.size()
            pid = os.fork()
            if pid == 0:
                right = manager.get_op("silu_and_mul")(X) == "default.flagos"
                with scoped(manager, prefer="vendor"):
                    right &= manager.get_op("silu_and_mul")(X) == "vendor.acme"
                sizes = manager.registry.size() >= before and manager.registry.size() == len(
                    {i.impl_id for i in manager.registry.impls("silu_and_mul")}
                )
                os._exit(0 if right and sizes else 1)
            limit = time.monotonic() + 20
            while True:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    assert os.waitstatus_to_exitcode(status) == 0, "a child chose wrongly"
                    break
                if time.monotonic() > limit:
                    os.kill(pid, 9)
                    os.waitpid(pid, 0)
                    pytest.fail("a child hangs")
                time.sleep(0.005)
            forks += 1
            time.sleep(0.05)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    ids = [each.impl_id for each in manager.registry.impls("silu_and_mul")]
    assert len(ids) == len(set(ids))
    assert manager.public.open_scopes == []


def test_threads_scopes_registrations_and_forks(make_manager: Any) -> None:
    run(make_manager, 3)


@pytest.mark.slow
def test_the_same_for_twenty_seconds(make_manager: Any) -> None:
    run(make_manager, 20)
