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

from vllm_fl_dispatch import PolicyError, Verdict, get_default_manager
from vllm_fl_dispatch.cli.commands import app
from vllm_fl_dispatch.testing import Absent, subjects
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
    result = RUNNER.invoke(app, ["verify", "silu_and_mul", "--json"])
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
    result = RUNNER.invoke(app, ["verify", "silu_and_mul", "--impl", "vendor.wrong"])
    assert result.exit_code == 1
    assert "silu_and_mul[vendor.wrong] fails the case float32-row-stride" in result.output
    assert "call = reproduce('silu_and_mul', 'float32-row-stride', 'vendor.wrong')" in result.output


def refuses_and_misses(x: torch.Tensor) -> torch.Tensor:
    """Two faults: it raises for vectors, and forgets the second half of the others."""
    if x.ndim == 1:
        raise RuntimeError("no vectors\n" + "x" * 10_000)
    return torch.nn.functional.silu(x.chunk(2, -1)[0]).contiguous()


def test_verify_prints_every_kind_of_failure_once(default_manager: Any) -> None:
    default_manager(impl("vendor.two", refuses_and_misses, empty_ok=True))
    output = RUNNER.invoke(app, ["verify", "silu_and_mul"]).output
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
    arguments = ["verify", "silu_and_mul", "--impl", "vendor.float"]
    output = RUNNER.invoke(app, arguments, env={"COLUMNS": "200"}).output
    cases = json.loads(RUNNER.invoke(app, [*arguments, "--json"]).stdout)["rows"][0]["unsupported"]
    assert cases > 20
    assert f"silu_and_mul[vendor.float], unsupported cases: {cases}: float32 only" in output


def test_verify_succeeds_and_says_when_there_is_nothing_to_test() -> None:
    assert RUNNER.invoke(app, ["verify", "--impl", "vendor.right"]).exit_code == 0
    nothing = RUNNER.invoke(app, ["verify", "--impl", "vendor.absent"])
    assert nothing.exit_code == 2
    assert "vendor.absent is not tested (1 operators): no such device" in nothing.output


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


def conformance(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "alone.py").write_text(PLUGIN)
    command = [sys.executable, "-m", "pytest", "-q", "--pyargs", "vllm_fl_dispatch.conformance"]
    return subprocess.run(
        [*command, *arguments], cwd=folder, env=environment(folder), capture_output=True,
        text=True, check=False,
    )  # fmt: skip


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "VLLM_FL_PLUGIN_MODULES": "alone", "PYTHONPATH": str(folder)}


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


KILLS = PLUGIN.replace(
    "    gate, up", "    import os\n    if x.ndim == 3 and x.numel(): os.abort()\n    gate, up"
)


def test_a_kernel_that_kills_its_process_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "alone.py").write_text(KILLS)
    done = subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", "verify", "silu_and_mul",
         "--impl", "vendor.alone", "--apart", "--json"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    messages = {failure["case"]: failure["message"] for failure in row["failures"]}
    assert set(messages) == {"float32-3d", "float16-3d", "bfloat16-3d"}
    assert set(messages.values()) == {"killed its process: signal 6 (SIGABRT)"}
    assert row["passed"] > 30
