"""The command line, as a user runs it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from vllm_fl_dispatch import PolicyError, SelectionPolicy, Verdict, get_default_manager
from vllm_fl_dispatch.cli import main
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.registry import Refusal

from .conftest import impl

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def manager(default_manager: Any) -> Any:
    policy = SelectionPolicy().with_values(
        "environment VLLM_FL_DENY_VENDORS", deny_vendors=frozenset({"zeta"})
    )
    return default_manager(
        impl("vendor.acme", available=lambda: Verdict.no("no acme device")),
        impl("vendor.zeta"),
        impl("reference.torch"),
        impl("vendor.acme", op="rmsnorm"),
        policy=policy,
    )


def as_json(*args: str) -> Any:
    result = RUNNER.invoke(app, [*args, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_ops_lists_every_operator_and_what_a_call_would_use() -> None:
    data = as_json("ops")
    selected = {op["op"]: op["selected"] for op in data["ops"]}
    assert selected["silu_and_mul"] == "reference.torch"
    assert selected["rms_norm"] is None
    assert data["orphans"] == ["rmsnorm[vendor.acme]"]
    layers = {op["op"]: op["layer"] for op in data["ops"]}
    assert layers["silu_and_mul"] == layers["rms_norm"] == "stock"


def test_ops_prints_a_row_per_operator_and_a_line_for_what_cannot_run() -> None:
    lines = RUNNER.invoke(app, ["ops"], env={"COLUMNS": "80"}).output.splitlines()
    rows = {words[0]: words[1:] for line in lines if (words := line.split())}
    assert rows["silu_and_mul"] == ["stock", "reference.torch"]
    assert rows["dynamic_per_token_quant_int8"] == ["stock", "(none)"]
    assert "vendor.acme unavailable (silu_and_mul): no acme device" in lines
    # Brackets are text.
    assert "registered, but no such operator: rmsnorm[vendor.acme]" in lines


def test_where_nobody_looks_at_the_width_a_row_is_one_line() -> None:
    text = RUNNER.invoke(app, ["explain", "silu_and_mul"], env={"COLUMNS": None}).output
    (row,) = (line for line in text.splitlines() if "vendor.zeta" in line)
    assert row.rstrip().endswith("by environment VLLM_FL_DENY_VENDORS")


def test_brackets_in_what_a_plugin_says_are_no_markup(default_manager: Any) -> None:
    manager = default_manager(impl("vendor.acme", available=lambda: Verdict.no("no list[int] [/]")))
    manager.registry.refuse(Refusal("silu_and_mul[vendor.acme]", "found [x]"))
    assert "no list[int] [/]" in RUNNER.invoke(app, ["ops"]).output
    output = RUNNER.invoke(app, ["plugins"]).output
    assert "refused silu_and_mul[vendor.acme] of None: found [x]" in output


def test_explain_shows_every_candidate_with_its_reason_and_every_setting_with_its_origin() -> None:
    data = as_json("explain", "silu_and_mul")
    reasons = {c["impl_id"]: (c["outcome"], c["reason"]) for c in data["candidates"]}
    assert reasons["vendor.acme"] == ("unavailable", "no acme device")
    assert reasons["vendor.zeta"][1].endswith("by environment VLLM_FL_DENY_VENDORS")
    assert data["selected"] == "stock"
    settings = {setting["name"]: setting for setting in data["settings"]}
    assert settings["deny_vendors"]["origin"] == "environment VLLM_FL_DENY_VENDORS"
    assert settings["prefer"]["origin"] == "default"


def test_explain_of_a_call_has_no_layer_to_leave_alone() -> None:
    data = as_json("explain", "silu_and_mul", "--call")
    assert data["selected"] == "reference.torch"
    assert "stock" not in {c["impl_id"] for c in data["candidates"]}


def test_explain_prints_a_table() -> None:
    result = RUNNER.invoke(app, ["explain", "silu_and_mul"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    for text in ("no acme device", "environment VLLM_FL_DENY_VENDORS", "flagos|vendor|stock"):
        assert text in result.output


def test_explain_exits_with_1_where_nothing_can_serve() -> None:
    assert RUNNER.invoke(app, ["explain", "rms_norm", "--call"]).exit_code == 1


def test_an_error_of_ours_is_one_message_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["vllm-fl", "explain", "rms_nrom"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    assert "did you mean 'rms_norm'" in capsys.readouterr().err


def test_plugins_shows_broken_ones_with_their_traceback(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_fl_dispatch import OpManager, api

    from .conftest import source

    module("cli_broken", "import no_such_library\n")
    broken = OpManager(SelectionPolicy(), [source("cli_broken")])
    monkeypatch.setattr(api, "_default", broken)
    (record,) = as_json("plugins")["plugins"]
    assert record["status"] == "broken"
    assert "no_such_library" in record["error"]
    assert "Traceback" in RUNNER.invoke(app, ["plugins", "--traceback"]).output


def test_a_demo_without_vllm_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    result = RUNNER.invoke(app, ["demo", "--model", "nowhere"])
    assert result.exit_code != 0
    assert "vllm" in str(result.exception)


def test_config_show_names_the_origin_of_every_value() -> None:
    settings = {s["name"]: s for s in as_json("config", "show")["settings"]}
    assert settings["deny_vendors"] == {
        "name": "deny_vendors",
        "value": "zeta",
        "origin": "environment VLLM_FL_DENY_VENDORS",
    }
    assert settings["prefer"]["origin"] == "default"


def test_config_check_tells_a_right_file_from_a_wrong_one(tmp_path: Any) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("op_backends: {silu_and_mul: vendor:acme|reference}\n")
    assert as_json("config", "check", str(path))["warnings"] == []
    path.write_text("op_backends: {silu_and_mull: flagos}\ncompiledd: {}\n")
    result = RUNNER.invoke(app, ["config", "check", str(path)], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "unknown key 'compiledd'" in result.output
    assert "did you mean 'silu_and_mul'" in result.output


def test_explain_of_a_hypothetical_call(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = get_default_manager()
    manager.registry.register_impl(
        impl(
            "default.picky",
            supports=lambda query: Verdict(
                query.dtype == torch.bfloat16 and query.device_type == "cuda", str(query)
            ),
            max_numel=100,
        )
    )

    def outcome(*args: str) -> tuple[str, str]:
        data = as_json("explain", "silu_and_mul", *args)
        return next(
            (c["outcome"], c["reason"])
            for c in data["candidates"]
            if c["impl_id"] == "default.picky"
        )

    right = ("--dtype", "bfloat16", "--device", "cuda")
    assert outcome()[0] == "selected"
    assert outcome(*right, "--shape", "2x16")[0] == "selected"
    assert outcome(*right, "--shape", "20x16") == ("unsupported", "serves at most 100 elements")
    assert outcome("--dtype", "float16", "--shape", "2x16") == (
        "unsupported",
        "silu_and_mul(dtype=torch.float16, last_dim=16)",
    )
    assert outcome("--fact", "last_dim=16")[0] == "unsupported"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--dtype", "bf17"), "'bf17' is not a dtype"),
        (("--shape", "4,8"), "not of the form 16x4096"),
        (("--fact", "last_dim"), "not of the form name=value"),
        (("--fact", "lastdim=4"), "did you mean 'last_dim'"),
        (("--fact", "last_dim=["), "--fact"),
    ],
)
def test_a_hypothetical_call_that_cannot_be(args: tuple[str, ...], message: str) -> None:
    result = RUNNER.invoke(app, ["explain", "silu_and_mul", *args])
    assert isinstance(result.exception, PolicyError)
    assert message in str(result.exception)


def test_explain_of_a_compiled_model_follows_the_compiled_section() -> None:
    manager = get_default_manager()
    manager.set_policy(
        SelectionPolicy().with_values(
            "file a.yaml", compiled={"per_op_order": {"silu_and_mul": ("reference",)}}
        )
    )
    assert as_json("explain", "silu_and_mul")["selected"] == "vendor.zeta"
    data = as_json("explain", "silu_and_mul", "--compiled")
    assert data["selected"] == "reference.torch"
    assert "compiled section of file a.yaml" in data["order_origin"]
