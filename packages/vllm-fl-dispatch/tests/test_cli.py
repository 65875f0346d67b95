"""The command line, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from vllm_fl_dispatch import PolicyError, SelectionPolicy, Verdict, get_default_manager
from vllm_fl_dispatch.cli import main
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.snapshot import Refusal

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


@pytest.mark.parametrize("width", ["40", "60"])
def test_a_narrow_table_loses_no_letter(width: str, default_manager: Any) -> None:
    reason = "the driver of acme is older than the one that its kernels were made for"
    default_manager(impl("vendor.acme", available=lambda: Verdict.no(reason)))
    text = RUNNER.invoke(app, ["explain", "silu_and_mul"], env={"COLUMNS": width}).output
    assert f"vendor.acme: {reason}" in " ".join(text.split())
    table = text[text.index("implementation") :]
    for word in ("vendor.acme", "unavailable", "stock", "selected"):
        assert word in table


def test_a_broken_plugin_has_its_error_below_a_narrow_table(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_fl_dispatch import OpManager, api

    from .conftest import source

    module("cli_broken_too", "import no_such_library_at_all\n")
    broken = OpManager(SelectionPolicy(), [source("cli_broken_too")])
    monkeypatch.setattr(api, "_default", broken)
    text = RUNNER.invoke(app, ["plugins"], env={"COLUMNS": "80"}).output
    assert "planted: ModuleNotFoundError: No module named 'no_such_library_at_all'" in (
        " ".join(text.split())
    )


CHATTY = """
import ctypes
from vllm_fl_dispatch import BackendImplKind, OpImpl

C = ctypes.CDLL(None)
print("imported")

def register(registrar):
    print("registered")
    C.puts(b"from C, buffered until the process ends")
"""


def test_what_a_plugin_prints_is_not_in_the_answer(module: Any) -> None:
    folder = module("chatty", CHATTY).parent
    done = subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", "ops", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
             "VLLM_FL_PLUGIN_MODULES": "chatty"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert json.loads(done.stdout)["ops"]
    for line in ("imported", "registered", "from C, buffered until the process ends"):
        assert line in done.stderr.splitlines()


def test_what_a_reader_that_left_does_not_get_goes_nowhere_else() -> None:
    there, here = os.pipe()
    os.close(there)
    done = subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", "ops", "--json"],
        stdout=here, stderr=subprocess.PIPE, text=True, timeout=120,
    )  # fmt: skip
    os.close(here)
    assert done.stderr == ""


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


@pytest.mark.parametrize("model", ["nowhere", "not/here/model", "empty"])
def test_a_demo_of_a_model_that_is_not_there_ends_before_vllm_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr("vllm_fl_dispatch.cli.demo._ask", lambda *_, **__: pytest.fail("it began"))
    result = RUNNER.invoke(app, ["demo", "--model", str(tmp_path / model)])
    assert isinstance(result.exception, PolicyError)
    assert f"--model: {tmp_path / model} " in str(result.exception)


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
    # What torch knows only where torch_npu is imported, and a device by its number.
    assert outcome("--dtype", "bfloat16", "--device", "npu")[0] == "unsupported"
    assert outcome("--dtype", "bfloat16", "--device", "cuda:1")[0] == "selected"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--dtype", "bf17"), "'bf17' is not a dtype"),
        (("--shape", "4,8"), "not of the form 16x4096"),
        (("--shape", "²x3"), "not of the form 16x4096"),
        (("--device", "foo"), "--device: "),
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


def run_main(monkeypatch: pytest.MonkeyPatch, *args: str) -> Any:
    """The exit code of `vllm-fl` with these arguments."""
    monkeypatch.setattr("sys.argv", ["vllm-fl", *args])
    with pytest.raises(SystemExit) as caught:
        main()
    return caught.value.code


@pytest.mark.parametrize(
    ("args", "missing"),
    [
        (("verify", "rms_norm"), "torch"),
        (("bench", "rms_norm"), "torch"),
        (("tune", "rms_norm"), "torch"),
        (("demo", "--model", "nowhere"), "vllm"),
    ],
)
def test_a_library_that_is_not_there_is_one_message(args: tuple[str, ...], missing: str) -> None:
    script = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from vllm_fl_dispatch.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *args], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert f"vllm-fl: this command needs {missing}, which {sys.executable} does not have" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "option", "message"),
    [
        (("tune", "silu_and_mul", "-o"), "nowhere/policy.yaml", "--output: {0}/nowhere is not"),
        (("tune", "silu_and_mul", "-o"), "", "--output: {0} is a folder"),
        (("bench", "silu_and_mul", "--plot"), "nowhere/a.png", "--plot: {0}/nowhere is not there"),
        (("bench", "silu_and_mul", "--plot"), "a.foo", "--plot: 'a.foo' is of no kind"),
        (("new-backend", "zork", "--parent"), "file/below", "--parent: "),
    ],
)
def test_a_file_that_cannot_be_written_is_an_error_before_the_work(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    args: tuple[str, ...],
    option: str,
    message: str,
) -> None:
    (tmp_path / "file").touch()
    # The work would not end.
    monkeypatch.setattr("vllm_fl_dispatch.cli.bench.chosen", lambda *_: pytest.fail("it began"))
    assert run_main(monkeypatch, *args, str(tmp_path / option)) == 2
    assert message.format(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "bench", "tune"])
@pytest.mark.parametrize("device", ["toaster", "cpu:7", "cuda"])
def test_a_device_that_is_not_there_is_an_error_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, device: str
) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("it is there")
    assert run_main(monkeypatch, command, "silu_and_mul", "--device", device) == 2
    assert "vllm-fl: --device: " in capsys.readouterr().err


def test_the_version_is_that_of_the_distribution() -> None:
    from importlib.metadata import version

    result = RUNNER.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, version("vllm-fl-dispatch") + "\n")


def test_paragraphs_of_the_help_are_filled_and_brackets_stay() -> None:
    text = RUNNER.invoke(app, ["bench", "--help"], env={"COLUMNS": "300"}).output
    assert "ratio: time by that of the implementation which" in text


def test_an_order_that_nothing_fits_says_what_vllm_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = get_default_manager()
    orders = SelectionPolicy().with_values("test", per_op_order={"silu_and_mul": ("impl:none",)})
    manager.set_policy(orders)
    result = RUNNER.invoke(app, ["explain", "silu_and_mul"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "vLLM's own code stays, with a warning" in result.output
    manager.set_policy(SelectionPolicy.from_dict(strict=True, deny_vendors=["acme"]))
    result = RUNNER.invoke(app, ["explain", "rms_norm", "--call"], env={"COLUMNS": "200"})
    assert "No candidate fits" not in result.output


def test_config_show_names_variables_beside_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    assert as_json("config", "show")["variables"] == {}
    monkeypatch.setenv("VLLM_FL_ENABLED", "0")
    monkeypatch.setenv("VLLM_FL_PREFER", "vendor")
    assert as_json("config", "show")["variables"] == {"VLLM_FL_ENABLED": "0"}
    text = RUNNER.invoke(app, ["config", "show"], env={"COLUMNS": "200"}).output
    assert "same as VLLM_FL_PREFER_ENABLED" in text


def test_a_log_level_that_is_none_is_a_warning_and_keeps_nothing_from_running() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", "config", "show", "--json"],
        env={**os.environ, "VLLM_FL_LOG_LEVEL": "LOUD"}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0
    assert json.loads(done.stdout)["variables"] == {"VLLM_FL_LOG_LEVEL": "LOUD"}
    assert "log level 'LOUD' is not accepted" in done.stderr


@pytest.mark.parametrize(
    ("prefer", "per_op", "expected"),
    [
        (None, None, {"rms_norm": "dispatched", "fused_add_rms_norm": "dispatched"}),
        (None, "rms_norm=stock", {"rms_norm": "stock", "fused_add_rms_norm": "stock",
                                  "silu_and_mul": "dispatched"}),
        ("reference", "silu_and_mul=stock", {"rms_norm": "reference", "silu_and_mul": "stock"}),
    ],
)  # fmt: skip
def test_options_of_the_demo_speak_of_what_they_name(
    prefer: str | None, per_op: str | None, expected: dict[str, str]
) -> None:
    from vllm_fl_dispatch.cli.demo import DISPATCHED, _policy
    from vllm_fl_dispatch.tokens import DEFAULT_ORDERS

    manager = get_default_manager()
    shipped = {"silu_and_mul": ("stock",)}
    manager.set_policy(
        SelectionPolicy().with_values("platform defaults a.yaml", per_op_order=shipped)
    )
    policy = _policy(prefer, per_op)
    orders = {"dispatched": DISPATCHED, "stock": ("stock",), **DEFAULT_ORDERS}
    for op, name in expected.items():
        spec = manager.registry.spec(op)
        assert policy.order_for(op, spec.group)[0] == orders[name], op


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("VLLM_FL_OOT_ENABLED", "0", "layers are left alone by environment VLLM_FL_OOT_ENABLED"),
        ("VLLM_FL_OOT_BLACKLIST", "silu_and_mul", "denied by environment VLLM_FL_OOT_BLACKLIST"),
        ("VLLM_FL_OOT_WHITELIST", "rms_norm", "not allowed by environment VLLM_FL_OOT_WHITELIST"),
        ("VLLM_FL_ENABLED", "0", "the plugin is switched off"),
    ],
)
def test_layers_that_are_left_to_vllm_are_shown_so(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "reference")
    get_default_manager().set_policy(None)
    layers = {op["op"]: op["layer"] for op in as_json("ops")["ops"]}
    assert layers["silu_and_mul"] == "reference.torch"
    monkeypatch.setenv(variable, value)
    get_default_manager().set_policy(None)
    (found,) = (op for op in as_json("ops")["ops"] if op["op"] == "silu_and_mul")
    assert (found["layer"], found["selected"]) == ("stock", "reference.torch")
    explained = as_json("explain", "silu_and_mul")
    assert explained["selected"] == "stock"
    reasons = {c["impl_id"]: c["reason"] for c in explained["candidates"]}
    assert reason in reasons["stock"]
    assert reason in reasons["reference.torch"]
    assert as_json("explain", "silu_and_mul", "--call")["selected"] == "reference.torch"
