"""Ranks that compare what they chose. Threads stand for ranks; the store is torch's own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from vllm_fl_dispatch import OpManager, PolicyError
from vllm_fl_dispatch.report import Row
from vllm_fl_dispatch.vllm import compat_ranks, ranks
from vllm_fl_dispatch.vllm.compat_ranks import Group
from vllm_fl_dispatch.vllm.summary import NOTHING, summary

from .conftest import impl


def together(managers: list[OpManager | None], seconds: float = 30.0) -> list[Exception | None]:
    """Let one rank per manager compare; None is a rank that says nothing."""
    import torch.distributed

    store = torch.distributed.HashStore()
    errors: list[Exception | None] = [None] * len(managers)

    def run(rank: int, manager: OpManager) -> None:
        try:
            ranks.compare(manager, Group("tp:0", rank, len(managers), store), "start/1", seconds)
        except Exception as error:  # noqa: BLE001  # handed to the test
            errors[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank, manager))
        for rank, manager in enumerate(managers)
        if manager is not None
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_ranks_that_chose_the_same_go_on(make_manager: Callable[..., OpManager]) -> None:
    assert together([make_manager(impl("vendor.acme")) for _ in range(3)]) == [None] * 3


def test_a_difference_names_rank_operator_and_both_choices(
    make_manager: Callable[..., OpManager],
) -> None:
    same, other = impl("vendor.acme"), impl("reference.torch")
    errors = together([make_manager(same), make_manager(same), make_manager(other)])
    for error in errors:
        assert isinstance(error, ranks.RankError)
        lines = [line for line in str(error).splitlines() if "silu_and_mul:" in line]
        (line,) = lines
        assert "vendor.acme" in line.partition("by rank 0")[0]
        assert "reference.torch" in line
        assert "by rank 2 on " in line


def test_a_rank_that_says_nothing_is_named(make_manager: Callable[..., OpManager]) -> None:
    errors = together([make_manager(), None, make_manager()], seconds=0.3)
    assert errors[1] is None
    for error in (errors[0], errors[2]):
        assert isinstance(error, ranks.RankError)
        assert "rank 1 of group tp:0" in str(error)
        assert "Is vllm-fl installed there" in str(error)


def test_groups_that_vllm_calls_the_same_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed

    store = torch.distributed.HashStore()
    state: Any = ModuleType("vllm.distributed.parallel_state")
    for name in ("vllm", "vllm.distributed"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, state.__name__, state)
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    names = set()
    # What vLLM says in each process of two pipeline stages of two ranks.
    for members, rank in (([0, 1], 0), ([0, 1], 1), ([2, 3], 0), ([2, 3], 1)):
        group = SimpleNamespace(unique_name="tp:0", ranks=members, rank_in_group=rank, world_size=2)
        state.get_tp_group = lambda group=group: group
        found = compat_ranks.tensor_parallel_group()
        assert found.store is store
        names.add(found.name)
    assert names == {"tp:0 (ranks 0,1)", "tp:0 (ranks 2,3)"}


def test_what_layers_were_bound_to_counts(make_manager: Callable[..., OpManager]) -> None:
    first, second = make_manager(impl("vendor.acme")), make_manager(impl("vendor.acme"))
    chosen = impl("vendor.acme")
    first.report.layer(chosen, "eager")
    second.report.layer(chosen, "opaque")
    error = together([first, second])[0]
    assert "silu_and_mul in layers: vendor.acme eager by rank 0" in str(error)


def test_every_stage_of_a_worker_is_checked_and_the_report_is_written(
    make_manager: Callable[..., OpManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    class Worker:
        def init_device(self) -> None:
            calls.append("device")

        def load_model(self) -> None:
            calls.append("load")

        def compile_or_warm_up_model(self) -> str:
            calls.append("warm up")
            return "times"

    class Wrapper:
        worker: Any

        def init_worker(self) -> None:
            # As in vLLM, where this method is what loads the plugins.
            ranks.watch(manager)
            ranks.watch(manager)
            self.worker = Worker()

        def init_device(self) -> None:
            self.worker.init_device()

    manager = make_manager()
    manager.report.on_news = lambda: calls.append("written")
    group = Group("tp:0", 0, 2, None)
    monkeypatch.setattr(ranks.compat_ranks, "worker_wrapper", lambda: Wrapper)
    monkeypatch.setattr(ranks.compat_ranks, "tensor_parallel_group", lambda: group)
    monkeypatch.setattr(ranks, "compare", lambda *call: calls.append(call[2:]))
    monkeypatch.setattr(ranks.logger, "info", lambda _, text: calls.append(text))
    wrapper = Wrapper()
    wrapper.init_worker()
    wrapper.init_device()
    wrapper.worker.load_model()
    assert wrapper.worker.compile_or_warm_up_model() == "times"
    wrapper.worker.load_model()
    assert calls == [
        *("device", "written", ("init_device/1", 60.0)),
        *("load", "written", NOTHING, ("load_model/1", 1800.0)),
        *("warm up", "written", ("compile_or_warm_up_model/1", 1800.0)),
        *("load", "written", NOTHING, ("load_model/2", 1800.0)),
    ]
    calls.clear()
    group = Group("tp:0", 1, 2, None)
    wrapper.worker.load_model()
    assert calls == ["load", "written", ("load_model/3", 1800.0)]


def row(op: str, impl_id: str, layers: int) -> Row:
    return Row(op, impl_id, "vendor", "eager", layers)


def test_one_line_says_what_serves_what() -> None:
    rows = [
        row("fused_add_rms_norm", "vendor.acme", 4),
        row("moe_sum", "stock", 2),
        row("rms_norm", "vendor.acme", 8),
        row("rms_norm", "reference.torch", 3),
        row("rms_norm", "stock", 1),
        row("silu_and_mul", "reference.torch", 4),
        row("topk_softmax", "vendor.acme", 0),
    ]
    announced = [("attention_backend", "vendor.acme"), ("rms_norm", "vendor.acme")]
    assert summary(rows, announced) == (
        "vendor.acme serves attention_backend, fused_add_rms_norm, rms_norm (8 of 12 layers); "
        "reference.torch serves rms_norm (3 of 12 layers), silu_and_mul; "
        "everything else in this model is vLLM's own"
    )
    assert summary([], []) == summary([row("rms_norm", "stock", 4)], []) == NOTHING


def test_layers_that_alternate_are_announced_once(
    make_manager: Callable[..., OpManager], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = impl("vendor.acme"), impl("reference.torch")
    manager = make_manager(first, second)
    spec, resolution = manager.registry.spec(first.op_name), manager.resolve(first.op_name)
    with caplog.at_level("INFO", logger="vllm_fl"):
        for each in (first, second) * 4:
            manager.announce(spec, resolution, each)
    assert sum(" is served by " in text for text in caplog.messages) == 2
    assert manager.announced == [(each.op_name, each.impl_id) for each in (first, second)]


@pytest.mark.parametrize("text", ["0", "-1", "inf", "soon"])
def test_a_wrong_timeout_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("VLLM_FL_RANK_TIMEOUT", text)
    with pytest.raises(PolicyError, match="seconds, such as 60"):
        ranks.timeout()
    monkeypatch.setenv("VLLM_FL_RANK_TIMEOUT", "2.5")
    assert ranks.timeout() == 2.5
