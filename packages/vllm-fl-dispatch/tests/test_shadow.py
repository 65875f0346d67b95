"""A second implementation beside the selected one: what is compared, and what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from vllm_fl_dispatch import (
    OpManager,
    PolicyError,
    SelectionPolicy,
    api,
    report_files,
    report_reading,
)
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.shadow import names
from vllm_fl_dispatch.shadow.records import Sampling
from vllm_fl_dispatch.torch_ops import opaque

from .conftest import impl

X = torch.linspace(-3, 3, 32).reshape(2, 16)


def silu_and_mul(x: Any) -> Any:
    d = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :d]) * x[..., d:]


def wrong_from_third_row(x: Any) -> Any:
    """Right for two rows; the more rows, the more wrong."""
    right = silu_and_mul(x)
    right[2:] *= 1 + 0.05 * len(x)
    return right


def add_norm(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
    total = x + residual
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + epsilon) * weight
    return normed, total


def add_norm_in_place(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
    normed, total = add_norm(x, residual, weight, epsilon)
    return x.copy_(normed), residual.copy_(total)


@pytest.fixture
def shadowed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A manager with these implementations, as VLLM_FL_SHADOW sets it up."""
    monkeypatch.setattr("vllm_fl_dispatch.logger_manager._said", set())

    def make(
        *impls: OpImpl, shadow: str = "*=reference", sample: str = "", **policy: Any
    ) -> OpManager:
        monkeypatch.setenv("VLLM_FL_SHADOW", shadow)
        monkeypatch.setenv("VLLM_FL_SHADOW_SAMPLE", sample)
        manager = OpManager(SelectionPolicy(prefer="vendor", **policy), sources=())
        manager.ensure_built()
        manager.registry.register_many(impls)
        return manager

    return make


def pair(fn: Any, right: Any = silu_and_mul, op: str = "silu_and_mul", **more: Any) -> Any:
    return impl("vendor.acme", fn, op=op, **more), impl("reference.torch", right, op=op)


def test_without_the_variable_the_implementation_itself_stands_in_the_slot(
    make_manager: Any,
) -> None:
    manager = make_manager(*pair(silu_and_mul))
    assert manager.shadow is None
    assert manager.slot("silu_and_mul").current is not None
    manager.set_policy(SelectionPolicy(prefer="vendor"))
    assert manager.slot("silu_and_mul").current is silu_and_mul


def test_the_first_and_the_largest_deviation_are_kept(shadowed: Any) -> None:
    manager = shadowed(*pair(wrong_from_third_row))
    op = manager.get_op("silu_and_mul")
    for rows in (1, 2, 3, 8, 4):
        x = torch.ones(rows, 16, dtype=torch.bfloat16)
        assert torch.equal(op(x), wrong_from_third_row(x)), "the model sees the selected one"
    (row,) = manager.shadow.rows()
    assert (row.op, row.impl_id, row.beside) == ("silu_and_mul", "vendor.acme", "reference.torch")
    assert (row.compared, row.layer, row.mode) == (5, "", "eager")
    assert row.first.call == 3
    assert row.first.arguments == "x [3, 16] bfloat16"
    limit = manager.registry.spec("silu_and_mul").max_ulp["bfloat16"]
    assert row.first.tolerance == 2 * limit
    assert row.largest.call == 4
    assert row.largest.ulp > row.first.ulp > 3.0


def test_the_error_is_counted_in_units_of_the_last_place(shadowed: Any) -> None:
    def off(x: Any) -> Any:
        return torch.full((1, 8), 1 + 128 * 2**-23)

    manager = shadowed(*pair(off, lambda x: torch.ones(1, 8)))
    manager.get_op("silu_and_mul")(torch.ones(1, 16))
    (row,) = manager.shadow.rows()
    assert row.first.ulp == 128.0


def test_what_keeps_the_contract_is_within_the_tolerance(shadowed: Any) -> None:
    manager = shadowed(*pair(lambda x: silu_and_mul(x.double()).to(x.dtype)))
    op = manager.get_op("silu_and_mul")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        op(3 * torch.randn(64, 256).to(dtype))
    (row,) = manager.shadow.rows()
    assert row.first is None
    assert row.largest.ulp > 0, "they do differ in the last place"


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        (lambda x: silu_and_mul(x)[:, :4], "shape"),
        (lambda x: silu_and_mul(x).double(), "dtype"),
        (lambda x: silu_and_mul(x).index_fill(0, torch.tensor(0), torch.nan), ""),
    ],
)
def test_other_shapes_dtypes_and_nan_are_infinitely_far(
    shadowed: Any, answer: Any, note: str
) -> None:
    manager = shadowed(*pair(answer))
    manager.get_op("silu_and_mul")(X)
    (row,) = manager.shadow.rows()
    assert row.first.ulp == float("inf")
    assert note in row.first.note
    assert json.loads(json.dumps(row.as_dict(), allow_nan=False))["first"]["ulp"] == "inf"


def test_another_number_of_results_is_a_deviation_and_no_error(shadowed: Any) -> None:
    manager = shadowed(*pair(lambda x: (silu_and_mul(x), silu_and_mul(x))))
    assert len(manager.get_op("silu_and_mul")(X)) == 2
    (row,) = manager.shadow.rows()
    assert row.first.note.startswith("incomparable")


def test_what_the_contract_leaves_open_is_no_deviation(shadowed: Any) -> None:
    """The order of a token's experts; a wrong expert is one."""

    def top(scores: Any, topk: int, flip: bool = False, shift: int = 0) -> Any:
        weights, ids = scores.softmax(-1).topk(topk)
        ids = (ids + shift).int()
        return (weights.flip(-1), ids.flip(-1)) if flip else (weights, ids)

    def candidate(**more: Any) -> Any:
        def grouped_topk(
            gating_output: Any, topk: int, renormalize: bool, num_expert_group: int,
            topk_group: int, scoring_func: str = "softmax",
        ) -> Any:  # fmt: skip
            return top(gating_output, topk, **more)

        return grouped_topk

    for change, deviates in (({"flip": True}, False), ({"shift": 1}, True)):
        manager = shadowed(*pair(candidate(**change), candidate(), op="grouped_topk"))
        manager.get_op("grouped_topk")(torch.randn(4, 8), 2, False, 2, 1)
        (row,) = manager.shadow.rows()
        assert (row.first is not None) is deviates


def test_an_implementation_that_overwrites_its_arguments_is_compared_with_what_they_were(
    shadowed: Any,
) -> None:
    op = "fused_add_rms_norm"
    acme, reference = pair(add_norm_in_place, add_norm, op=op, mutates=("x", "residual"))
    manager = shadowed(acme, reference)
    for _ in range(3):  # the first call runs on copies, the others in place
        x, residual = torch.randn(4, 8), torch.randn(4, 8)
        expected = add_norm(x, residual, torch.ones(8), 1e-6)
        found = manager.get_op(op)(x, residual, torch.ones(8), 1e-6)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    (row,) = manager.shadow.rows()
    assert (row.compared, row.first) == (3, None)


def test_a_shadow_that_overwrites_its_arguments_leaves_the_models_alone(shadowed: Any) -> None:
    op = "fused_add_rms_norm"
    acme, reference = pair(add_norm, add_norm_in_place, op=op)
    manager = shadowed(acme, reference)
    x, residual = torch.randn(4, 8), torch.randn(4, 8)
    expected = add_norm(x, residual, torch.ones(8), 1e-6)
    found = manager.get_op(op)(x, residual, torch.ones(8), 1e-6)
    assert torch.equal(found[0], expected[0])
    assert manager.shadow.rows()[0].first is None


def test_a_shadow_that_raises_does_not_disturb_the_model(shadowed: Any) -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("no")

    manager = shadowed(*pair(silu_and_mul, broken))
    assert torch.equal(manager.get_op("silu_and_mul")(X), silu_and_mul(X))
    assert manager.shadow.rows() == []
    assert manager.failures.all() == ()


def test_an_implementation_that_raises_falls_back_as_without_a_shadow(shadowed: Any) -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("no")

    manager = shadowed(*pair(broken))
    assert torch.equal(manager.get_op("silu_and_mul")(X), silu_and_mul(X))
    assert [failure.impl_id for failure in manager.failures.all()] == ["vendor.acme"]


def test_one_warning_names_the_first_layer_of_an_operator(
    shadowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "vllm_fl_dispatch.shadow.logger.warning", lambda text, *args: said.append(text % args)
    )
    manager = shadowed(*pair(lambda x: silu_and_mul(x) * 1.5))
    op = manager.get_op("silu_and_mul")
    op(X)
    op(X)
    opaque(manager, manager.registry.spec("silu_and_mul"))(X)
    assert len(said) == 1
    assert "silu_and_mul" in said[0]
    assert "vendor.acme and reference.torch" in said[0]
    assert "call 1: x [2, 16] float32" in said[0]
    assert [row.mode for row in manager.shadow.rows()] == ["eager", "opaque"]


def test_it_runs_inside_opaque_operators_and_names_the_layer_by_its_weight(shadowed: Any) -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(8))

    def norm(x: Any, weight: Any, epsilon: float) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight

    manager = shadowed(*pair(lambda *a: 2 * norm(*a), norm, op="rms_norm"))
    first, second = Norm(), Norm()
    for layer in (first, second):
        manager.shadow.watch(layer)
    model = torch.nn.Sequential(first, torch.nn.ModuleDict({"norm": second}))
    call = opaque(manager, manager.registry.spec("rms_norm"))
    compiled = torch.compile(lambda x, w: call(x, w, 1e-6) + 1, backend="eager", fullgraph=True)
    compiled(torch.randn(2, 8), second.weight.data)
    compiled(torch.randn(2, 8), first.weight.data)
    assert [(row.mode, row.layer) for row in manager.shadow.rows()] == [
        ("opaque", "1.norm"),
        ("opaque", "0"),
    ]
    assert names.name_of(model) == ""


def test_nothing_is_compared_while_a_compiler_traces(shadowed: Any) -> None:
    manager = shadowed(*pair(silu_and_mul))
    op = manager.get_op("silu_and_mul")
    op(X)
    compiled = torch.compile(lambda x: op(x) + 1, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), silu_and_mul(X) + 1)
    assert [row.compared for row in manager.shadow.rows()] == [1]


@pytest.mark.parametrize("kind", ["meta", "fake", "capturing", "empty"])
def test_calls_without_data_are_not_compared(
    shadowed: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    manager = shadowed(*pair(silu_and_mul))
    op = manager.get_op("silu_and_mul")
    if kind == "meta":
        op(X.to("meta"))
    elif kind == "empty":
        op(X[:0])
    elif kind == "fake":
        with FakeTensorMode() as mode:
            op(mode.from_tensor(X))
    else:
        monkeypatch.setattr("vllm_fl_dispatch.shadow.comparing.capturing", lambda: True)
        op(X)
    assert manager.shadow.rows() == []


def test_sampling_takes_the_first_calls_and_every_nth_after(shadowed: Any) -> None:
    compared: list[int] = []
    number = 0

    def reference(x: Any) -> Any:
        compared.append(number)
        return silu_and_mul(x)

    manager = shadowed(*pair(silu_and_mul, reference), sample="first=2; every=5")
    op = manager.get_op("silu_and_mul")
    for number in range(1, 12):  # noqa: B007  # the reference reads it
        op(X)
    assert compared == [1, 2, 5, 10]
    assert [n for n in range(1, 300) if Sampling(0, 0).due(n)] == []


def test_a_layer_that_is_the_shadow_itself_is_not_compared(shadowed: Any) -> None:
    manager = shadowed(impl("reference.torch", silu_and_mul))
    manager.get_op("silu_and_mul")(X)
    assert manager.shadow.rows() == []


def test_an_order_names_the_first_that_can(shadowed: Any) -> None:
    unable = impl("vendor.zeta", silu_and_mul, supports=lambda query: False)
    manager = shadowed(
        *pair(silu_and_mul), unable, shadow="silu_and_mul=vendor:zeta|impl:reference.torch"
    )
    manager.get_op("silu_and_mul")(X)
    assert [row.beside for row in manager.shadow.rows()] == ["reference.torch"]


def test_only_the_operators_that_are_named_are_compared(shadowed: Any) -> None:
    manager = shadowed(*pair(silu_and_mul), shadow="rms_norm=reference")
    manager.get_op("silu_and_mul")(X)
    assert manager.shadow.rows() == []
    assert manager.slot("silu_and_mul").current is silu_and_mul


@pytest.mark.parametrize(
    "text", ["rms_norm", "rms_norm=refrence", "rms_norm=stock;rms_norm=vendor"]
)
def test_a_wrong_value_is_an_error(shadowed: Any, text: str) -> None:
    with pytest.raises(PolicyError, match="VLLM_FL_SHADOW"):
        shadowed(shadow=text)


@pytest.mark.parametrize("text", ["first", "first=-1", "last=3", "every=2;every=3"])
def test_a_wrong_sampling_is_an_error(shadowed: Any, text: str) -> None:
    with pytest.raises(PolicyError, match="VLLM_FL_SHADOW_SAMPLE"):
        shadowed(sample=text)


def test_an_unknown_operator_is_a_warning_and_an_error_when_strict(
    shadowed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(
        "vllm_fl_dispatch.startup.logger.warning", lambda text, *args: said.append(text % args)
    )
    shadowed(shadow="rms_nrom=reference")
    assert len(said) == 1
    assert said[0].startswith(
        "VLLM_FL_SHADOW: unknown operator 'rms_nrom'; did you mean 'rms_norm'"
    )
    with pytest.raises(PolicyError, match="VLLM_FL_SHADOW: unknown operator 'rms_nrom'"):
        shadowed(shadow="rms_nrom=reference", strict=True)


class Router:
    """Not a module."""


def test_the_name_of_a_layer_is_where_it_stands_in_the_model() -> None:
    shared, gone, own = (torch.nn.Linear(1, 1) for _ in range(3))
    names.watch(own)

    def block() -> torch.nn.Module:
        made = torch.nn.Module()
        made.rotary = shared
        made.norm = gone
        return made

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList([block(), block()])
    model.layers[0].norm = own
    model.layers[1].norm = torch.nn.Identity()
    router = Router()
    names.watch(router)
    model.layers[1].router = router
    assert names.name_of(own) == "layers.0.norm"
    assert names.name_of(router) == "layers.1.router", "no module, but an attribute of one"
    assert names.name_of(shared) == "layers.0.rotary (and 1 more places)"
    assert names.name_of(gone) == ""


def test_reports_and_the_command_show_what_deviates(
    shadowed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(x: Any) -> Any:
        return silu_and_mul(x) * 1.5

    def right(x: Any, approximate: str = "none") -> Any:
        return silu_and_mul(x)

    manager = shadowed(*pair(wrong), *pair(right, right, op="gelu_and_mul"))
    monkeypatch.setattr(api, "_default", manager)
    report_files.start(manager, tmp_path)
    manager.get_op("gelu_and_mul")(X)
    manager.get_op("silu_and_mul")(X)
    (report,) = report_reading.read(tmp_path)
    assert [row["op"] for row in report["shadow"]] == ["silu_and_mul", "gelu_and_mul"], (
        "written at the first deviation, which comes first"
    )
    assert report["shadow"][0]["first"]["call"] == 1
    result = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "250"})
    assert result.exit_code == 0, result.output
    limit = manager.registry.spec("silu_and_mul").max_ulp["float32"]
    for text in ("call 1: ", f"{2 * limit:g} ulp", "x [2, 16] float32", "(unknown, eager)",
                 "gelu_and_mul by vendor.acme keeps to reference.torch"):  # fmt: skip
        assert text in result.output
    title = f"silu_and_mul by vendor.acme deviates from reference.torch by more than {2 * limit:g}"
    assert title in result.output
    narrow = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "80"}).output
    assert title in narrow, "nothing is folded where it need not be"
    assert "(unknown, eager)" in narrow
    (heads,) = (line.split() for line in narrow.splitlines() if line.strip().startswith("process"))
    assert heads == ["process", "operator", "implementation", "mode", "layers", "calls"]


def test_a_shadow_that_cannot_be_loaded_fails_no_model(shadowed: Any) -> None:
    manager = shadowed(
        impl("vendor.broken", load="no_such_library:make"),
        impl("reference.torch", lambda x: x[..., ::2]),
        shadow="silu_and_mul=impl:vendor.broken",
    )
    order = {"silu_and_mul": ("reference",)}
    manager.set_policy(SelectionPolicy(strict=True, per_op_order=order))
    assert manager.get_op("silu_and_mul")(torch.ones(2, 4)).shape == (2, 2)
