"""The command line, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vllm_fl_dispatch import SelectionPolicy, Verdict
from vllm_fl_dispatch.cli import config, demo, explain, main, ops, plugins  # noqa: F401  # they register
from vllm_fl_dispatch.cli.app import app

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
    text = RUNNER.invoke(app, ["ops"]).output
    assert "registered, but no such operator: rmsnorm" in text


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


def test_the_published_schema_is_the_one_of_the_code() -> None:
    published = Path(__file__).parents[3] / "docs" / "policy.schema.json"
    printed = RUNNER.invoke(app, ["config", "schema"]).stdout
    assert json.loads(printed) == json.loads(published.read_text()), (
        "run: vllm-fl config schema > docs/policy.schema.json"
    )
