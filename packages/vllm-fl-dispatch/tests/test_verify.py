"""`vllm-fl verify`, the conformance run, and the file of known failures."""

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
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.testing import Absent, Outcome, runs, subjects
from vllm_fl_dispatch.testing.apart import Apart
from vllm_fl_dispatch.testing.assertions import parameters
from vllm_fl_dispatch.testing.xfails import Xfail, read_xfails

from .conftest import impl
from .planted import ignores_row_stride, silu_and_mul

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def manager(default_manager: Any) -> Any:
    return default_manager(
        impl("vendor.right", silu_and_mul),
        impl("vendor.wrong", ignores_row_stride),
        impl("vendor.absent", silu_and_mul, available=lambda: Verdict.no("no such device")),
    )


def test_verify_counts_the_cases_of_each_implementation() -> None:
    result = RUNNER.invoke(app, ["verify", "silu_and_mul", "--here", "--json"])
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    rows = {row["impl_id"]: row for row in data["rows"]}
    assert set(rows) == {"vendor.right", "vendor.wrong"}
    assert rows["vendor.right"]["failed"] == 0
    assert rows["vendor.right"]["passed"] > 30
    assert 0 < rows["vendor.right"]["max_ulp"] < 6
    failed = {failure["case"] for failure in rows["vendor.wrong"]["failures"]}
    assert failed >= {"float32-row-stride", "bfloat16-row-stride"}
    assert rows["vendor.wrong"]["failed"] == len(failed)
    assert [each["reason"] for each in data["absent"]] == ["no such device"]


def test_verify_prints_the_smallest_failing_case_to_be_pasted() -> None:
    result = RUNNER.invoke(app, ["verify", "silu_and_mul", "--impl", "vendor.wrong", "--here"])
    assert result.exit_code == 1
    assert "silu_and_mul[vendor.wrong] fails the case float32-row-stride" in result.output
    assert "call = reproduce('silu_and_mul', 'float32-row-stride', 'vendor.wrong')" in result.output


def test_verify_explains_a_failure_where_pytest_is_not_installed(module: Any) -> None:
    folder = module("wrong_vendor", """
from vllm_fl_dispatch import BackendImplKind, OpImpl

def register(registrar):
    wrong = lambda x: x[..., : x.shape[-1] // 2] * 1.5
    vendor = BackendImplKind.VENDOR
    registrar.add(OpImpl("silu_and_mul", "vendor.wrong", vendor, wrong, "wrong"))
""").parent  # fmt: skip
    script = (
        "import sys; sys.modules['pytest'] = None\nfrom vllm_fl_dispatch.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "verify", "silu_and_mul", "--impl", "vendor.wrong"],
        env=environment(folder) | {"VLLM_FL_PLUGIN_MODULES": "wrong_vendor"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "silu_and_mul[vendor.wrong] fails the case" in done.stdout


def refuses_and_misses(x: torch.Tensor) -> torch.Tensor:
    """Two faults: it raises for vectors, and forgets the second half of the others."""
    if x.ndim == 1:
        raise RuntimeError("no vectors\n" + "x" * 10_000)
    return torch.nn.functional.silu(x.chunk(2, -1)[0]).contiguous()


def test_verify_prints_every_kind_of_failure_once(default_manager: Any) -> None:
    default_manager(impl("vendor.two", refuses_and_misses, empty_ok=True))
    output = RUNNER.invoke(app, ["verify", "silu_and_mul", "--here"]).output
    assert output.count("silu_and_mul[vendor.two] fails the case") == 2
    assert "fails the case float32-one-dimension: raised RuntimeError: no vectors\n" in output
    assert "other cases (raised RuntimeError: no vectors): float16-one-dimension" in output
    assert "other cases (result # is off by # ulp): " in output
    # What an error says is cut.
    assert "x" * 1000 not in output


def test_verify_says_what_an_implementation_leaves_to_others(default_manager: Any) -> None:
    default_manager(
        impl(
            "vendor.float",
            silu_and_mul,
            supports=lambda q: Verdict(q.dtype is torch.float32, "float32 only"),
        )
    )
    arguments = ["verify", "silu_and_mul", "--impl", "vendor.float", "--here"]
    output = RUNNER.invoke(app, arguments, env={"COLUMNS": "200"}).output
    cases = json.loads(RUNNER.invoke(app, [*arguments, "--json"]).stdout)["rows"][0]["unsupported"]
    assert cases > 20
    assert f"silu_and_mul[vendor.float], unsupported cases: {cases}: float32 only" in output


def test_verify_succeeds_and_says_when_there_is_nothing_to_test() -> None:
    assert RUNNER.invoke(app, ["verify", "--impl", "vendor.right", "--here"]).exit_code == 0
    nothing = RUNNER.invoke(app, ["verify", "--impl", "vendor.absent"])
    assert nothing.exit_code == 2
    assert "vendor.absent is not tested (1 operators): no such device" in nothing.output


def test_verify_runs_the_structural_checks_of_what_passes_its_cases(default_manager: Any) -> None:
    def wants_a_width(query: Any) -> bool:
        return bool(query.last_dim % 2 == 0)

    default_manager(impl("vendor.asks", silu_and_mul, supports=wants_a_width))
    result = RUNNER.invoke(app, ["verify", "silu_and_mul", "--here"])
    assert result.exit_code == 1
    assert "fails the check predicate_bears_what_is_not_known: silu_and_mul" in result.output
    assert "--op silu_and_mul --device cpu -k predicate_bears_what_is_not_known" in result.output
    default_manager(impl("vendor.wrong", ignores_row_stride))
    wrong = RUNNER.invoke(app, ["verify", "silu_and_mul", "--here"]).output
    assert "silu_and_mul[vendor.wrong]: its checks run when its cases pass" in wrong


def test_a_machine_without_a_compiler_skips_what_needs_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class InvalidCxxCompiler(RuntimeError):
        pass

    def compiles(subject: Any) -> None:
        raise RuntimeError("backend='inductor' raised") from InvalidCxxCompiler("none works")

    monkeypatch.setitem(runs._CHECKS, "views_compile_correctly", compiles)
    (tested,), _ = subjects(get_default_manager(), impl_id="vendor.right")
    result = runs.run(tested, runs.STRUCTURAL["views_compile_correctly"])
    assert (result.outcome, result.message) == (Outcome.SKIPPED, "there is no C++ compiler")


def test_what_cannot_be_loaded_is_no_absence(default_manager: Any) -> None:
    default_manager(
        impl("vendor.right", silu_and_mul),
        impl("vendor.half", load=lambda: 1 / 0),
        impl("vendor.absent", silu_and_mul, available=lambda: Verdict.no("no such device")),
        policy=SelectionPolicy(strict=True),
    )
    _, absent = subjects(get_default_manager())
    assert {each.impl.impl_id: each.broken for each in absent} == {
        "vendor.half": True,
        "vendor.absent": False,
    }
    result = RUNNER.invoke(app, ["verify", "--here"], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "silu_and_mul[vendor.half] cannot be loaded: ZeroDivisionError" in result.output
    data = json.loads(RUNNER.invoke(app, ["verify", "--here", "--json"]).stdout)
    assert [*data["broken"]] == ["silu_and_mul[vendor.half]"]
    assert len(data["absent"]) == 1


def test_what_only_this_process_knows_runs_here_beside_one_for_the_cases() -> None:
    found, _ = subjects(get_default_manager(), impl_id="vendor.wrong")
    cases = {case.name: case for case in found[0].cases()}
    with Apart() as elsewhere:
        assert elsewhere.run(found[0], cases["float32-one-row"]).outcome is Outcome.PASSED
        assert elsewhere.run(found[0], cases["float32-row-stride"]).outcome is Outcome.FAILED


def test_known_failures_are_read_with_their_reasons(tmp_path: Path) -> None:
    path = tmp_path / "xfails.txt"
    path.write_text("# a comment\n\nrms_norm[bfloat16-*-gemma]: adds 1 in bfloat16: issue 7\n")
    (known,) = read_xfails(path)
    assert known == Xfail("rms_norm", "bfloat16-*-gemma", "adds 1 in bfloat16: issue 7")
    assert known.matches("rms_norm", "bfloat16-3d-gemma")
    assert not known.matches("rms_norm", "float32-3d-gemma")
    assert not known.matches("fused_add_rms_norm", "bfloat16-3d-gemma")


def test_a_known_failure_that_is_no_case_is_an_error_where_its_operator_is_tested() -> None:
    present, _ = subjects(get_default_manager(), op="silu_and_mul", impl_id="vendor.right")
    line = Xfail("silu_and_mul", "float32-3e", "misspelt")
    with pytest.raises(PolicyError, match=r"no case matches silu_and_mul\[float32-3e\]"):
        parameters(present, [line])
    # Of an operator that is not here nothing is known.
    absent = Absent(impl("vendor.right", op="rms_norm"), "no device")
    elsewhere = Xfail("rms_norm", "float32-3d-weight", "on the device only")
    assert parameters(present, [elsewhere], [absent])
    with pytest.raises(PolicyError, match=r"no case matches rms_norm\[.*tested here: silu_and_mul"):
        parameters(present, [elsewhere])


@pytest.mark.parametrize("line", ["rms_norm", "rms_norm[x]", "rms_norm[x]:", "[x]: reason"])
def test_a_line_without_operator_pattern_or_reason_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "xfails.txt"
    path.write_text(f"\n{line}\n")
    with pytest.raises(PolicyError, match=r"xfails\.txt, line 2: .* is not of the form"):
        read_xfails(path)


PLUGIN = """
from vllm_fl_dispatch import BackendImplKind, OpImpl, Verdict, hookimpl
import torch

def silu_and_mul(x):
    gate, up = x.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype).contiguous()

@hookimpl
def vllm_fl_register_ops(registrar):
    registrar.add(OpImpl("silu_and_mul", "vendor.alone", BackendImplKind.VENDOR, silu_and_mul,
                         "alone", empty_ok=True))
    registrar.add(OpImpl("rms_norm", "vendor.alone", BackendImplKind.VENDOR, vendor="alone",
                         load=lambda: 1 / 0, installed=lambda: Verdict.no("a later release")))
    registrar.add(OpImpl("moe_sum", "vendor.gone", BackendImplKind.VENDOR, vendor="gone",
                         load=lambda: 1 / 0, installed=lambda: Verdict.no("sold out")))
"""


def conformance(
    folder: Path, *arguments: str, plugin: str = PLUGIN
) -> subprocess.CompletedProcess[str]:
    (folder / "alone.py").write_text(plugin)
    command = [sys.executable, "-m", "pytest", "-q", "--pyargs", "vllm_fl_dispatch.conformance"]
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment(folder), capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "VLLM_FL_PLUGIN_MODULES": "alone", "PYTHONPATH": path}


def test_one_command_tests_an_implementation(tmp_path: Path) -> None:
    selection = "float32 or structure or rms_norm"
    done = conformance(tmp_path, "--impl", "vendor.alone", "-rs", "-k", selection)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
    # An operator that it lacks here is skipped, with the reason.
    assert "a later release" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--impl is missing"),
        (["--impl", "vendor.gone"], "cannot be tested here:\nmoe_sum[vendor.gone]"),
        (["--impl", "vendor.alne"], "did you mean 'vendor.alone'"),
        (["--impl", "vendor.alone", "--device", "toaster"], "--device: Expected one of cpu"),
        (["--impl", "vendor.alone", "--device", "cpu:7"], "--device: 'cpu:7' is not there"),
        (["--impl", "vendor.alone", "--op", "silu"], "unknown operator 'silu'"),
        (["--impl", "vendor.alone", "--xfails", "gone.txt"], "gone.txt"),
        (["--impl", "vendor.alone", "--xfails", "idle.txt"], "no case matches silu_and_mul[x]"),
    ],
)
def test_a_wrong_question_is_answered_before_anything_runs(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "idle.txt").write_text("silu_and_mul[x]: no such case\n")
    done = conformance(tmp_path, *arguments)
    assert done.returncode == 4
    assert message in done.stderr


BROKEN = """
    registrar.add(OpImpl("gelu_and_mul", "vendor.alone", BackendImplKind.VENDOR, vendor="alone",
                         load=lambda: 1 / 0))
"""


def test_an_operator_that_cannot_be_loaded_fails(tmp_path: Path) -> None:
    done = conformance(tmp_path, "--impl", "vendor.alone", "-k", "gelu", plugin=PLUGIN + BROKEN)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "cannot be loaded: ZeroDivisionError: division by zero" in done.stdout
    assert "1 failed" in done.stdout


def verify(
    folder: Path, *arguments: str, modules: str = "alone"
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", "verify", "silu_and_mul",
         "--impl", "vendor.alone", "--json", *arguments],
        cwd=folder,
        env=environment(folder) | {"VLLM_FL_PLUGIN_MODULES": modules},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("does", "arguments", "message"),
    [
        ("os.abort()", [], "killed its process: signal 6 (SIGABRT)"),
        ("os._exit(0)", [], "killed its process: exit code 0"),
        ("sys.exit(0)", [], "raised SystemExit: 0"),
        ("time.sleep(1000)", ["--timeout", "9"], "did not return within 9 seconds"),
    ],
)
def test_a_kernel_that_takes_its_process_along_fails_alone(
    tmp_path: Path, does: str, arguments: list[str], message: str
) -> None:
    (tmp_path / "alone.py").write_text(
        PLUGIN.replace(
            "    gate, up",
            "    import os, sys, time\n"
            f"    if x.ndim == 3 and x.numel() and x.dtype is torch.float32: {does}\n"
            "    print('a word')\n    gate, up",
        )
    )
    done = verify(tmp_path, *arguments)
    assert done.returncode == 1, done.stderr
    # What the kernel prints is no part of it.
    (row,) = json.loads(done.stdout)["rows"]
    messages = {failure["case"]: failure["message"] for failure in row["failures"]}
    assert set(messages) == {"float32-3d"}
    assert {text.splitlines()[0] for text in messages.values()} == {message}
    assert row["passed"] > 30


def test_a_module_that_was_asked_for_and_is_broken_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(PLUGIN)
    (tmp_path / "torn.py").write_text("1 / 0")
    done = verify(tmp_path, modules="alone,torn")
    assert done.returncode == 1, done.stderr
    data = json.loads(done.stdout)
    assert data["rows"][0]["failed"] == 0
    assert data["broken"] == {
        "torn of VLLM_FL_PLUGIN_MODULES": "ZeroDivisionError: division by zero"
    }
