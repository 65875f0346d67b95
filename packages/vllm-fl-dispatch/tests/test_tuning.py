"""`vllm-fl tune`: only what is right, the fastest first, and a file that says why."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from vllm_fl_dispatch import PolicyError
from vllm_fl_dispatch.benching.figures import Figure
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.config import measured
from vllm_fl_dispatch.config.effective import policy_from_file
from vllm_fl_dispatch.tuning import choice
from vllm_fl_dispatch.tuning.choice import Choice, choose
from vllm_fl_dispatch.tuning.document import Tuned, document

from .conftest import impl

IMPLS = [impl("default.gems"), impl("vendor.acme"), impl("reference.torch")]
ALL = {each.impl_id for each in IMPLS}


def figure(impl_id: str, mode: str, tokens: int, time: float, host: float = 0.0) -> Figure:
    label = impl_id if mode in ("eager", "stock") else f"{impl_id} {mode}"
    return Figure("silu_and_mul", label, impl_id, mode, tokens, time=time, host=host, device=time)


def order(costs: dict[str, dict[int, float]], right: set[str] = ALL, margin: float = 0.1) -> Any:
    return choose(costs, IMPLS, right, margin=margin).order


def test_the_fastest_comes_first_and_the_reference_last() -> None:
    costs = {"vendor.acme": {1: 5.0}, "default.gems": {1: 3.0}, "stock": {1: 4.0}}
    assert order(costs) == ("flagos", "stock", "vendor:acme", "reference")


def test_what_is_wrong_is_not_named_however_fast() -> None:
    costs = {"default.gems": {1: 0.1}, "vendor.acme": {1: 5.0}, "stock": {1: 6.0}}
    right = ALL - {"default.gems"}
    assert order(costs, right) == ("vendor:acme", "stock", "reference")
    assert choose(costs, IMPLS, right, margin=0.1).costs["vendor.acme"] == 1.0


def test_vllms_own_layer_yields_only_to_what_is_faster_by_the_margin() -> None:
    costs = {"vendor.acme": {1: 95.0}, "stock": {1: 100.0}}
    assert order(costs)[:2] == ("stock", "vendor:acme")
    assert order(costs, margin=0.03)[:2] == ("vendor:acme", "stock")


def test_where_stock_was_not_measured_it_stands_before_the_reference() -> None:
    assert order({"reference.torch": {1: 1.0}, "vendor.acme": {1: 2.0}}) == (
        "stock", "reference", "vendor:acme",
    )  # fmt: skip
    assert order({"vendor.acme": {1: 2.0}}) == ("vendor:acme", "stock", "reference")
    assert order({}, right=set()) == ("stock",)


def test_one_that_cannot_serve_a_size_is_not_chosen_for_all() -> None:
    costs = {"vendor.acme": {1: 1.0}, "default.gems": {1: 3.0, 16: 3.0}, "stock": {1: 4, 16: 4}}
    assert order(costs) == ("flagos", "stock", "reference")


def test_two_of_a_vendor_are_named_one_by_one() -> None:
    second = impl("vendor.acme2")
    second = type(second)("silu_and_mul", "vendor.acme2", second.kind, second.fn, "acme")
    impls = [*IMPLS, second]
    assert choice.token_of("vendor.acme", impls) == "impl:vendor.acme"
    assert choice.token_of("default.gems", impls) == "flagos"


def test_an_eager_call_costs_the_host_and_compiled_code_the_device() -> None:
    figures = [
        figure("vendor.acme", "eager", 1, time=2.0, host=9.0),
        figure("stock", "stock", 1, time=4.0, host=5.0),
        figure("vendor.acme", "opaque", 1, time=3.0, host=20.0),
        figure("reference.torch", "compiled", 1, time=6.0, host=40.0),
        figure("reference.torch", "opaque", 1, time=1.0),
    ]
    assert choice.eager_costs(figures) == {"vendor.acme": {1: 9.0}, "stock": {1: 5.0}}
    assert choice.compiled_costs(figures) == {"vendor.acme": {1: 3.0}, "stock": {1: 6.0}}, (
        "the reference is inlined, as vLLM's own layer is, and never opaque"
    )


cost = st.dictionaries(
    st.sampled_from(["stock", *sorted(ALL)]),
    st.fixed_dictionaries({1: st.floats(0.1, 1e4), 16: st.floats(0.1, 1e4)}),
)


@given(cost, st.sets(st.sampled_from(sorted(ALL))))
def test_every_order_is_one_that_a_policy_accepts(
    costs: dict[str, dict[int, float]], right: set[str]
) -> None:
    found = choose(costs, IMPLS, right, margin=0.05)
    named = {"flagos": "default.gems", "vendor:acme": "vendor.acme", "reference": "reference.torch"}
    assert len(set(found.order)) == len(found.order)
    assert {named[token] for token in found.order if token != "stock"} <= right
    assert "stock" in found.order
    first = found.order[0]
    if first != "stock" and "stock" in costs:
        assert found.costs[named[first]] < found.costs["stock"], "never slower than vLLM's own"


def test_the_file_is_a_policy_with_the_figures_as_comments(tmp_path: Path) -> None:
    figures = [
        figure("vendor.acme", "eager", 1, 2.5, 9.0),
        figure("vendor.acme", "eager", 4096, 111.25, 8.0),
        figure("stock", "stock", 1, 4.0, 5.0),
        figure("reference.torch", "compiled", 1, 6.125),
    ]
    tuned = [
        Tuned("silu_and_mul", figures, {"vendor.acme": "38 passed"},
              Choice(("vendor:acme", "stock"), {"vendor.acme": 1.0, "stock": 1.5}),
              Choice(("stock", "reference"), {"stock": 1.0})),
        Tuned("rms_norm", note="the budget was spent before its turn"),
    ]  # fmt: skip
    file = tmp_path / "tuned.yaml"
    file.write_text(document(["A head."], {"torch": str(torch.__version__)}, tuned))
    text = file.read_text()
    assert text.startswith("# A head.\n")
    assert "# tokens          1    4096  host  cost" in text
    assert "# vendor.acme  2.50  111.25  8.00  1.00  38 passed" in text
    assert "# rms_norm: the budget was spent before its turn" in text
    found = policy_from_file(file)
    assert found.warnings == ()
    assert found.policy.per_op_order == {"silu_and_mul": ("vendor:acme", "stock")}
    compiled = found.policy.for_mode(compiled=True)
    assert compiled.per_op_order == {"silu_and_mul": ("stock", "reference")}


def test_a_file_tuned_elsewhere_applies_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text(
        "strict: true\nprefer: vendor\nmeasured_on: {torch: 1.0.0, no-such-package: '1'}\n"
    )
    found = policy_from_file(file)
    assert found.policy.prefer == "vendor"
    (warning,) = found.warnings
    assert f"{file} was tuned elsewhere: torch was 1.0.0 and is 2" in warning
    assert "no-such-package" not in warning
    file.write_text("measured_on: [torch]\n")
    with pytest.raises(PolicyError, match="measured_on"):
        policy_from_file(file)


def test_driver_and_device_are_read_without_opening_a_device(tmp_path: Path) -> None:
    assert (measured.driver(tmp_path), measured.device(tmp_path)) == (None, None)
    gpu = tmp_path / "gpus" / "0000:19:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t\t 290\n")
    for line in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\nGCC version: 11.4",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
    ):
        (tmp_path / "version").write_text(line)
        assert measured.driver(tmp_path) == "570.86.15"
    assert measured.device(tmp_path) == "NVIDIA H200"
    here = {"device": "NVIDIA H20", "driver": "570.86.15"}.get
    then = {"device": "NVIDIA H200", "driver": "570.86.15", "vllm": "0.26.0"}
    assert list(measured.differences(then, here)) == ["device was NVIDIA H200 and is NVIDIA H20"]


def gated(x: Any) -> Any:
    d = x.shape[-1] // 2
    return (torch.nn.functional.silu(x[..., :d]) * x[..., d:]).contiguous()


def slow(x: Any) -> Any:
    for _ in range(20):
        gated(x)
    return gated(x)


def wrong(x: Any) -> Any:
    return x.new_zeros((*x.shape[:-1], x.shape[-1] // 2))


@pytest.fixture
def command(default_manager: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tunes one operator, whose stock layer takes as long as three calls."""
    default_manager(
        impl("default.wrong", wrong),
        impl("vendor.acme", gated),
        impl("vendor.slow", slow),
        impl("reference.torch", gated, traceable=True),
    )
    stock = types.ModuleType("stock")

    def stock_call(op: str, args: Any) -> Any:
        return lambda: [gated(args[0]) for _ in range(4)][-1]

    stock.stock_call = stock_call  # type: ignore[attr-defined]  # it has none yet
    monkeypatch.setitem(sys.modules, "vllm_fl_dispatch.vllm.stock", stock)
    config = tmp_path / "config.json"
    config.write_text('{"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 2048}')

    def run(*arguments: str) -> Any:
        options = ("--model", str(config), "--tokens", "1,16", "--rounds", "3", "--device", "cpu")
        return CliRunner().invoke(app, ["tune", *arguments, *options])

    return run


def test_the_command_leaves_out_what_is_wrong_and_ranks_the_rest(
    command: Any, tmp_path: Path
) -> None:
    file = tmp_path / "tuned.yaml"
    result = command("silu_and_mul", "--output", str(file))
    assert result.exit_code == 0, result.output
    text = file.read_text()
    eager = yaml.safe_load(text)["op_backends"]["silu_and_mul"]
    assert set(eager[:2]) == {"vendor:acme", "reference"}
    assert eager[2:] == ["stock", "vendor:slow"]
    assert "flagos" not in text.replace("default.wrong", "")
    (line,) = [line for line in text.splitlines() if "# default.wrong  " in line]
    assert "failed; first " in line
    assert f"torch: {torch.__version__}" in text
    assert policy_from_file(file).warnings == ()


def test_an_operator_that_the_budget_has_no_time_for_is_not_tuned(
    command: Any, tmp_path: Path
) -> None:
    result = command("silu_and_mul", "--budget", "-1")
    assert result.exit_code == 1
    assert "# silu_and_mul: the budget was spent before its turn" in result.stdout
    file = tmp_path / "printed.yaml"
    file.write_text(result.stdout)
    assert policy_from_file(file).policy.per_op_order == {}, "what is printed is a policy too"


def test_a_good_file_stays_where_nothing_was_chosen(command: Any, tmp_path: Path) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text("prefer: vendor\n")
    result = command("silu_and_mul", "--budget", "-1", "--output", str(file))
    assert result.exit_code == 1
    assert file.read_text() == "prefer: vendor\n"
    assert "is left as it was" in " ".join(result.stderr.split())


def test_a_name_given_twice_is_one_key_and_the_file_is_there_at_once(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tuned.yaml"
    file.write_text("prefer: vendor\n")
    before = file.stat().st_ino
    assert command("silu_and_mul", "silu_and_mul", "-o", str(file)).exit_code == 0
    assert list(policy_from_file(file).policy.per_op_order) == ["silu_and_mul"]
    assert file.stat().st_ino != before, "renamed into place"
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_what_could_not_be_measured_is_named_in_one_line_each(tmp_path: Path) -> None:
    lines = "cannot be loaded: OSError: no \x1b[1mlibrary\u2028here\n  at all: [{"
    figures = [Figure("silu_and_mul", "vendor.acme", "vendor.acme", "", 0, note=lines),
               replace(figure("vendor.acme", "eager", 1, 2.5), note=lines)]  # fmt: skip
    file = tmp_path / "tuned.yaml"
    tuned = [Tuned("silu_and_mul", figures, note=lines),
             Tuned("rms_norm", figures, {"vendor.acme": lines}, Choice(("stock",)))]  # fmt: skip
    file.write_text(document(["A\nhead."], {}, tuned))
    assert "# vendor.acme of silu_and_mul: cannot be loaded: OSError" in file.read_text()
    assert policy_from_file(file).policy.per_op_order == {"rms_norm": ("stock",)}
