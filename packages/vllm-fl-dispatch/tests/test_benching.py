"""Speed of implementations: sizes of models, statistics, and measurements that can be predicted."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from vllm_fl_dispatch import OpNotSupported, OpSpec, PolicyError, SelectionPolicy, Verdict
from vllm_fl_dispatch.benching import inputs, timing
from vllm_fl_dispatch.benching.bench import Setting, bench
from vllm_fl_dispatch.benching.figures import (
    Figure,
    Sample,
    not_measured,
    ratio,
    relative_costs,
    summary,
)
from vllm_fl_dispatch.benching.shapes import ModelShape, read_shape, shape_of
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.ops import SPECS

from .conftest import impl

SMALL = ModelShape(hidden=64, intermediate=96, heads=4, kv_heads=2, head_size=16, rotary=16,
                   experts=8, top_k=2, expert_intermediate=32)  # fmt: skip

DENSE = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}


def setting(*tokens: int, **more: Any) -> Setting:
    return Setting(SMALL, tokens or (3,), torch.float32, "cpu", **{"rounds": 3, **more})


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (DENSE, {"hidden": 896, "kv_heads": 2, "head_size": 64, "rotary": 64, "experts": 0}),
        ({**DENSE, "head_dim": 128}, {"head_size": 128, "rotary": 128}),
        ({**DENSE, "partial_rotary_factor": 0.5}, {"head_size": 64, "rotary": 32}),
        ({**DENSE, "rope_parameters": {"partial_rotary_factor": 0.25}}, {"rotary": 16}),
        ({"n_embd": 768, "n_head": 12}, {"hidden": 768, "intermediate": 3072, "kv_heads": 12}),
        ({"text_config": DENSE, "hidden_size": 1}, {"hidden": 896}),
        (
            {**DENSE, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
            {"experts": 128, "top_k": 8, "expert_intermediate": 768, "expert_groups": 0},
        ),
        (
            {**DENSE, "num_local_experts": 8, "num_experts_per_tok": 2},
            {"experts": 8, "expert_intermediate": 4864},
        ),
        (
            {**DENSE, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_group": 8,
             "topk_group": 4, "qk_rope_head_dim": 64},
            {"experts": 256, "expert_groups": 8, "top_groups": 4, "head_size": 64, "rotary": 64},
        ),
    ],
)  # fmt: skip
def test_the_sizes_of_a_model(config: dict[str, Any], sizes: dict[str, int]) -> None:
    found = shape_of(config)
    assert {name: getattr(found, name) for name in sizes} == sizes


def test_a_config_is_read_from_a_file_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DENSE))
    assert read_shape(tmp_path) == read_shape(tmp_path / "config.json") == shape_of(DENSE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "states no hidden size; known names: hidden_size"),
        ("[]", "holds no object"),
        ("no", "cannot read"),
        (None, "cannot read"),
    ],
)
def test_a_config_without_sizes_is_an_error(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(PolicyError, match=message):
        read_shape(tmp_path)


def test_every_operator_has_arguments_that_its_contract_takes() -> None:
    maker = inputs.Maker(SMALL, 3, torch.float32, "cpu")
    for spec in SPECS:
        args, options = inputs.make(spec, maker)
        assert spec.fake is not None
        assert spec.facts is not None
        spec.facts(*args, **options)
        spec.fake(*args, **options)


def test_bytes_are_those_of_what_is_read_and_written() -> None:
    x, weight = torch.ones(3, 8), torch.ones(8)
    assert inputs.moved_bytes("rms_norm", (x, weight, 1e-6), x) == 4 * (24 + 8 + 24)
    rotary = (torch.arange(3), x, None, 8, torch.ones(8192, 8), True)
    moved = inputs.moved_bytes("rotary_embedding", rotary, (x, None))
    assert moved == 3 * 8 + 4 * (24 + 3 * 8 + 24), "of the table only the rows that are used"


def test_operators_without_arguments_say_why() -> None:
    dense = shape_of(DENSE)
    specs = {spec.name: spec for spec in SPECS}
    assert inputs.objection(specs["moe_sum"], dense) == "the model has no experts"
    mine = inputs.objection(OpSpec("mine", gated), dense)
    assert mine == "its arguments in a model are not known: its OpSpec has no bench_inputs"
    ungrouped = replace(SMALL, expert_groups=0)
    reason = inputs.objection(specs["grouped_topk"], ungrouped)
    assert reason == "the model does not route by groups"
    assert [op for op in inputs.TABLE if inputs.objection(specs[op], SMALL)] == []
    assert inputs.objection(specs["rms_norm"], dense) is None


def test_the_median_is_of_the_rounds_and_the_ratio_of_the_same_round() -> None:
    """A slow phase of the machine meets both."""
    fast = [Sample(10), Sample(100), Sample(11)]
    slow = [Sample(20), Sample(200), Sample(22)]
    assert summary(fast)["time"] == 11
    assert ratio(slow, fast) == 2
    assert summary([Sample(1, device=5)]) == {
        "time": 5, "host": 1, "device": 5, "low": 5, "high": 5
    }  # fmt: skip


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
def test_percentiles_lie_within_what_was_measured(times: list[int]) -> None:
    found = summary([Sample(time) for time in times])
    low, middle, high = (found[name] for name in ("low", "time", "high"))
    assert low is not None
    assert middle is not None
    assert high is not None
    assert min(times) <= low <= middle <= high <= max(times)


def test_bandwidth_and_the_cost_of_an_eager_call() -> None:
    figure = Figure("op", "a", "a", "eager", 1, time=10.0, host=25.0, device=10.0, bytes=40_000)
    assert figure.bandwidth == 4.0
    assert figure.eager == 25.0
    assert Figure("op", "a", "a", "eager", 1).bandwidth is None


def test_costs_are_relative_to_the_best_at_each_size() -> None:
    costs = {"a": {1: 1.0, 16: 4.0}, "b": {1: 2.0, 16: 2.0}, "partial": {1: 0.1}}
    assert relative_costs(costs) == pytest.approx({"a": math.sqrt(2), "b": math.sqrt(2)})
    assert relative_costs({}) == {}


times = st.lists(st.integers(1, 10_000), min_size=2, max_size=2)


@given(st.dictionaries(st.sampled_from("abc"), times, min_size=1))
def test_one_that_is_best_everywhere_costs_1(costs: dict[str, list[float]]) -> None:
    found = relative_costs({name: dict(enumerate(values)) for name, values in costs.items()})
    assert min(found.values()) >= 1 - 1e-9
    least = [min(column) for column in zip(*costs.values(), strict=True)]
    for name, values in costs.items():
        assert (found[name] == pytest.approx(1)) is (values == least)


def test_every_variant_is_timed_in_every_round() -> None:
    class Counted:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self) -> Sample:
            seen.append(self.name)
            return Sample(1.0)

    seen: list[str] = []
    entered: list[str] = []
    batches = {name: Counted(name) for name in "abc"}
    samples = timing.measure(batches, 4, before=entered.append)
    assert {name: len(each) for name, each in samples.items()} == dict.fromkeys("abc", 4)
    assert entered == seen
    for start in range(0, 12, 3):
        assert sorted(seen[start : start + 3]) == ["a", "b", "c"]


def test_host_time_is_per_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=1_000_000)
    calls: list[int] = []
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(clock))
    batch = timing.HostBatch(lambda: calls.append(1))
    assert batch.run().host == pytest.approx(1000 / 20), "20 calls of 1 ms make a batch of 20 ms"
    assert len(calls) == timing.WARM_UP + 1 + 20


class Device:
    """A device whose clock advances by 5 us with each call and 100 us with each graph."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.captured: list[int] = []

    def synchronize(self) -> None:
        """Nothing runs behind our back."""

    def Event(self, enable_timing: bool) -> Any:  # noqa: N802  # torch's name
        device = self

        class Event:
            def record(self) -> None:
                self.at = device.clock

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) / 1e3

        assert enable_timing
        return Event()


def test_device_time_without_a_graph_is_that_of_calls_between_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    monkeypatch.setattr(torch, "toaster", device, raising=False)

    def call() -> None:
        device.clock += 5

    batch = timing.DeviceBatch(call, "toaster")
    assert not batch.captured
    assert batch.run().device == pytest.approx(5.0)


@pytest.mark.parametrize("captures", [True, False])
def test_device_time_on_cuda_is_that_of_a_replayed_graph(
    monkeypatch: pytest.MonkeyPatch, captures: bool
) -> None:
    device = Device()

    class Graph:
        def replay(self) -> None:
            device.clock += 100

    @contextlib.contextmanager
    def capture(graph: Graph) -> Any:
        before = device.clock
        yield
        device.captured.append(round((device.clock - before) / 5))
        device.clock = before
        if not captures:
            raise RuntimeError("operation not permitted when stream is capturing")

    for name, value in {"Event": device.Event, "synchronize": device.synchronize,
                        "CUDAGraph": Graph, "graph": capture}.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)

    def call() -> None:
        device.clock += 5

    batch = timing.DeviceBatch(call, "cuda")
    assert batch.captured is captures
    assert device.captured == [timing.MOST_CALLS]
    expected = 100 / timing.MOST_CALLS if captures else 5.0
    # What the host loop does is not in it.
    assert batch.run().device == pytest.approx(expected)


def gated(x: Any) -> Any:
    d = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :d]) * x[..., d:]


def five_times(x: Any) -> Any:
    for _ in range(5):
        gated(x)
    return gated(x)


def test_each_implementation_is_measured_at_each_size(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme", five_times), impl("reference.torch", gated))
    figures = bench(manager, "silu_and_mul", setting(2, 5), tell=lambda text: None)
    assert [(f.tokens, f.variant) for f in figures] == [
        (2, "vendor.acme"), (2, "reference.torch"), (5, "vendor.acme"), (5, "reference.torch"),
    ]  # fmt: skip
    for figure in figures:
        assert figure.time is not None
        assert figure.low is not None
        assert figure.low <= figure.time
        assert figure.bytes == 4 * figure.tokens * 3 * SMALL.intermediate
    assert figures[0].ratio == 1.0, "the baseline is what the policy selects"


def test_what_cannot_be_measured_says_why_and_the_others_are(make_manager: Any) -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("boom")

    def picky(x: Any) -> Any:
        raise OpNotSupported("not this")

    manager = make_manager(
        impl("vendor.absent", available=lambda: Verdict.no("no device")),
        impl("vendor.narrow", gated, supports=lambda query: Verdict.no("too wide")),
        impl("vendor.broken", broken),
        impl("vendor.picky", picky),
        impl("reference.torch", gated),
    )
    figures = bench(manager, "silu_and_mul", setting(), tell=lambda text: None)
    notes = {f.impl_id: f.note for f in figures if f.time is None}
    assert notes == {
        "vendor.absent": "unavailable: no device",
        "vendor.narrow": "unsupported: too wide",
        "vendor.broken": "RuntimeError: boom",
        "vendor.picky": "not this",
    }
    assert [f.impl_id for f in figures if f.time is not None] == ["reference.torch"]


def test_without_a_time_of_the_selected_one_there_is_no_ratio(make_manager: Any) -> None:
    limit = 3 * 2 * SMALL.intermediate
    manager = make_manager(
        impl("vendor.acme", gated, max_numel=limit), impl("reference.torch", gated)
    )
    figures = bench(manager, "silu_and_mul", setting(3, 4, 5), tell=lambda text: None)
    ratios = {(f.tokens, f.impl_id): f.ratio for f in figures}
    assert ratios[3, "vendor.acme"] == 1.0
    assert ratios[3, "reference.torch"] is not None
    assert ratios[4, "reference.torch"] is ratios[5, "reference.torch"] is None
    (line,) = not_measured(figures)
    assert line == (f"vendor.acme of silu_and_mul (4, 5 tokens): serves at most {limit} elements")


def test_the_baseline_is_the_selected_one_also_in_a_mode_that_it_lacks(make_manager: Any) -> None:
    manager = make_manager(
        impl("vendor.acme", gated), impl("reference.torch", gated, traceable=True)
    )
    modes = setting(3, modes=("compiled", "eager"))
    figures = bench(manager, "silu_and_mul", modes, tell=lambda text: None)
    assert {f.variant for f in figures if f.ratio == 1.0} == {"vendor.acme"}


def test_what_cannot_be_loaded_is_named_whatever_the_policy(make_manager: Any) -> None:
    policy = SelectionPolicy(prefer="vendor", strict=True)
    manager = make_manager(
        impl("vendor.lazy", load="no_such_module:fn"), impl("reference.torch", gated), policy=policy
    )
    figures = bench(manager, "silu_and_mul", setting(), tell=lambda text: None)
    (lazy,) = (f for f in figures if f.impl_id == "vendor.lazy")
    assert lazy.note.startswith("cannot be loaded: ModuleNotFoundError")
    assert not_measured(figures)


def test_an_operator_of_ones_own_brings_its_arguments(make_manager: Any) -> None:
    def doubled(x: Any) -> Any:
        return 2 * x

    manager = make_manager(impl("vendor.mine", doubled, op="doubled"))
    spec = OpSpec("doubled", doubled, bench_inputs=lambda m: ((m.rows(m.shape.hidden),), {}))
    manager.registry.add_spec(spec)
    (figure,) = bench(manager, "doubled", setting(), tell=lambda text: None)
    assert figure.time is not None
    assert figure.bytes == 2 * 4 * 3 * SMALL.hidden


def test_opaque_calls_reach_the_implementation_they_are_measured_for(
    make_manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def named(name: str) -> Any:
        def fn(x: Any) -> Any:
            called.append(name)
            return gated(x)

        return fn

    class Batch:
        """Takes 1 us if the vendor is called, and 2 us otherwise."""

        def __init__(self, call: Any, device: str) -> None:
            self.call = call
            self.prepared_for = self.served()

        def served(self) -> str:
            called.clear()
            self.call()
            return called[-1]

        def run(self) -> Sample:
            served = self.served()
            assert served == self.prepared_for
            return Sample(1.0 if served == "vendor" else 2.0)

    monkeypatch.setattr(timing, "prepare", Batch)
    policy = SelectionPolicy(prefer="reference")
    manager = make_manager(
        impl("vendor.acme", named("vendor")),
        impl("reference.torch", named("reference")),
        policy=policy,
    )
    figures = bench(manager, "silu_and_mul", setting(modes=("opaque",)), tell=lambda text: None)
    times = {figure.variant: figure.time for figure in figures}
    assert times == {"reference.torch opaque": 2.0, "vendor.acme opaque": 1.0}
    assert manager.policy is policy, "what was in force is in force again"
    manager.get_op("silu_and_mul")(torch.ones(1, 8))
    assert called[-1] == "reference"


def test_traceable_implementations_are_compiled_alone(make_manager: Any) -> None:
    manager = make_manager(
        impl("vendor.acme", five_times), impl("reference.torch", gated, traceable=True)
    )
    modes = ("eager", "compiled")
    figures = bench(manager, "silu_and_mul", setting(1, 4, modes=modes), tell=lambda text: None)
    labels = {f.variant for f in figures}
    assert labels == {"vendor.acme", "reference.torch", "reference.torch compiled"}
    assert all(f.time for f in figures)


def test_an_implementation_that_overwrites_its_arguments_spoils_no_others(
    make_manager: Any,
) -> None:
    def add_in_place(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
        return x.fill_(torch.nan), residual.fill_(torch.nan)

    seen: list[bool] = []

    def add(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
        seen.append(bool(x.isnan().any() or residual.isnan().any()))
        return x + residual, residual

    op = "fused_add_rms_norm"
    manager = make_manager(
        impl("vendor.acme", add_in_place, op=op, mutates=("x", "residual")),
        impl("reference.torch", add, op=op),
    )
    bench(manager, op, setting(), tell=lambda text: None)
    assert seen
    assert not any(seen)


@pytest.fixture
def command(default_manager: Any, tmp_path: Path) -> Any:
    default_manager(
        impl("vendor.acme", five_times),
        impl("reference.torch", gated),
        impl("vendor.far", op="silu_and_mul", available=lambda: Verdict.no("far away")),
    )
    (tmp_path / "config.json").write_text(json.dumps(DENSE))

    def run(*arguments: str) -> Any:
        options = ("--model", str(tmp_path), "--tokens", "1,4", "--rounds", "2", "--device", "cpu")
        return CliRunner().invoke(app, ["bench", *options, *arguments], env={"COLUMNS": "200"})

    return run


def test_the_command_prints_a_table_or_json(command: Any) -> None:
    result = command("silu_and_mul")
    assert result.exit_code == 0, result.output
    for text in (
        "vendor.acme",
        "a copy moves",
        "vendor.far of silu_and_mul: unavailable: far away",
    ):
        assert text in result.output
    data = json.loads(command("silu_and_mul", "--json").stdout)
    assert data["shape"]["hidden"] == 896
    assert data["copy_gb_per_s"] > 0
    measured = [f for f in data["figures"] if f["time"] is not None]
    assert [f["tokens"] for f in measured] == [1, 1, 4, 4]
    assert data["versions"]["torch"].startswith(torch.__version__.split("+")[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("silu_and_mull",), "did you mean 'silu_and_mul'"),
        (("--modes", "fast"), "accepted: eager, opaque, compiled, stock"),
        (("--dtype", "float7"), "is not a dtype"),
        (("--device", "toaster"), "--device: "),
        (("--tokens", "1,many"), "is not a comma list of numbers"),
    ],
)
def test_wrong_usage_of_the_command(command: Any, arguments: tuple[str, ...], message: str) -> None:
    assert message in str(command(*arguments).exception)


def test_a_narrow_table_keeps_who_and_how_fast(command: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    wide = command("silu_and_mul", "--modes", "eager,opaque").output
    options = ("--tokens", "1", "--rounds", "2", "--device", "cpu", "--modes", "eager,opaque")
    narrow = CliRunner().invoke(app, ["bench", "silu_and_mul", *options], env={"COLUMNS": "60"})
    for text, columns in ((wide, ("p10..p90", "GB/s")), (narrow.output, ())):
        for word in ("tokens", "time µs", "ratio", "reference.torch opaque", *columns):
            assert word in text
    assert "p10..p90" not in narrow.output


def test_nothing_to_measure_is_exit_code_1(command: Any) -> None:
    assert command("rms_norm").exit_code == 1


def test_the_picture_shows_every_operator(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from vllm_fl_dispatch.benching.plot import plot

    def figure(op: str, variant: str, tokens: int, time: float) -> Figure:
        return Figure(op, variant, variant, "eager", tokens, time=time, host=time,
                      low=0.9 * time, high=1.1 * time, bytes=tokens * 1000)  # fmt: skip

    figures = [
        figure(op, variant, tokens, tokens * scale)
        for op in ("rms_norm", "silu_and_mul", "rotary_embedding", "moe_sum")
        for variant, scale in (("vendor.acme", 1.0), ("reference.torch", 3.0))
        for tokens in (1, 16)
    ]
    file = tmp_path / "out.svg"
    plot(figures, 100.0, "A device", file)
    text = file.read_text()
    for word in ("rms_norm", "moe_sum", "vendor.acme", "a copy of as many bytes"):
        assert f"<!-- {word} -->" in text
    with pytest.raises(PolicyError, match="--plot"):
        plot(figures, 100.0, "A device", tmp_path / "out.nothing")
    with pytest.raises(PolicyError, match="nothing was measured"):
        plot([], 100.0, "A device", file)


def test_without_matplotlib_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from vllm_fl_dispatch.benching.plot import plot

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PolicyError, match=r"pip install 'vllm-fl-dispatch\[plot\]'"):
        plot([], 1.0, "", tmp_path / "out.png")
