"""`vllm-fl bisect`: the runs, the policies they get, and what a user is told."""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vllm_fl_dispatch import PolicyError, reset_default_manager
from vllm_fl_dispatch.cli.commands import app

#: A vendor with all operators. What serves is seen without tensors: each answers its name.
VENDOR = """
from vllm_fl_dispatch import BackendImplKind, OpImpl

def make(kind, impl_id, vendor):
    functions = {
        "silu_and_mul": lambda x: impl_id,
        "gelu_and_mul": lambda x, approximate="none": impl_id,
        "rms_norm": lambda x, weight, epsilon: impl_id,
        "fused_add_rms_norm": lambda x, residual, weight, epsilon: impl_id,
    }
    return [OpImpl(op, impl_id, kind, fn, vendor, empty_ok=True) for op, fn in functions.items()]

def register(registrar):
    registrar.add_many(make(BackendImplKind.VENDOR, "vendor.acme", "acme"))
    registrar.add_many(make(BackendImplKind.REFERENCE, "reference.plain", None))
"""

DEFAULT = "vendor|flagos|stock|reference"
OPERATORS = {"silu_and_mul", "gelu_and_mul", "rms_norm", "fused_add_rms_norm"}

#: Exits with 1 where the vendor serves all operators of one of the sets.
COMMAND = """
import subprocess, sys, time
from vllm_fl_dispatch import call_op

arguments = {"silu_and_mul": 1, "gelu_and_mul": 1, "rms_norm": 3, "fused_add_rms_norm": 4}
served = {op for op, n in arguments.items() if call_op(op, *[0] * n) == "vendor.acme"}
print("by the vendor:", sorted(served), flush=True)
if "leave" in sys.argv:
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("worker", worker.pid, flush=True)
words = ("hang", "leave", "hang-always", "flaky")
sets = [set(text.split("+")) for text in sys.argv[1:] if text not in words]
if "hang-always" in sys.argv:
    time.sleep(60)
if "flaky" in sys.argv:
    # Fails in the first and the third run.
    with open(__file__ + ".runs", "a+") as file:
        file.write("x")
        raise SystemExit(file.tell() in (1, 3))
if any(each <= served for each in sets):
    time.sleep(60 if "hang" in sys.argv else 0)
    raise SystemExit(1)
"""


@pytest.fixture
def bisect(
    module: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Bisects the command above; the set that fails is an argument of it."""
    folder = module("planted_vendor", VENDOR).parent
    script = tmp_path / "command.py"
    script.write_text(textwrap.dedent(COMMAND))
    for name, value in {
        "PYTHONPATH": str(folder),
        "VLLM_FL_PLUGIN_MODULES": "planted_vendor",
        "VLLM_FL_DISABLED_PLUGINS": "reference,cuda,ascend,flaggems",
        "VLLM_FL_PREFER": "vendor",
        "COLUMNS": "200",
    }.items():
        monkeypatch.setenv(name, value)

    def run(*arguments: str, options: tuple[str, ...] = ()) -> Any:
        reset_default_manager()
        command = (sys.executable, str(script), *arguments)
        where = ("--output", str(tmp_path / "output"))
        return CliRunner().invoke(app, ["bisect", *options, *where, "--", *command])

    yield run
    reset_default_manager()


def as_json(run: Any, *arguments: str, options: tuple[str, ...] = ()) -> Any:
    result = run(*arguments, options=("--json", *options))
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_culprit_is_named_with_a_line_that_avoids_it(bisect: Any, tmp_path: Path) -> None:
    result = bisect("gelu_and_mul")
    assert result.exit_code == 0, result.output
    assert "gelu_and_mul makes it fail" in result.output
    lines = result.output.splitlines()
    assert 'VLLM_FL_PER_OP="gelu_and_mul=reference"' in lines
    assert 'VLLM_FL_SHADOW="gelu_and_mul=reference"' in lines
    logs = sorted(path.name for path in (tmp_path / "output").iterdir())
    assert logs[0] == "run-001.log"
    first = (tmp_path / "output" / "run-001.log").read_text()
    assert "['fused_add_rms_norm', 'gelu_and_mul', 'rms_norm', 'silu_and_mul']" in first
    assert "by the vendor: []" in (tmp_path / "output" / "run-002.log").read_text()


def test_every_run_serves_exactly_what_it_says(bisect: Any) -> None:
    """Also a member of a group whose leader is elsewhere, and the other way round."""
    data = as_json(bisect, "rms_norm+silu_and_mul", "fused_add_rms_norm")
    for run in data["runs"]:
        printed = Path(run["output"]).read_text()
        by_the_vendor = sorted(set(run["on"]) & OPERATORS)
        assert f"by the vendor: {by_the_vendor}" in printed
        assert run["failed"] is (run["code"] == 1)
    assert sorted(map(sorted, data["culprits"])) == [
        ["fused_add_rms_norm"],
        ["rms_norm", "silu_and_mul"],
    ]
    # Once each; the runs that accuse are repeated at the end: two sets, and all but what to avoid.
    searched = [tuple(run["on"]) for run in data["runs"][:-3]]
    assert len(set(searched)) == len(searched)
    assert {tuple(run["on"]) for run in data["runs"][-3:]} <= set(searched)


def test_the_line_does_not_drag_a_group_along(bisect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FL_PER_OP", "silu_and_mul=vendor:acme")
    line = as_json(bisect, "rms_norm")["VLLM_FL_PER_OP"]
    assert line.split(";") == [
        "silu_and_mul=vendor:acme",
        "rms_norm=reference",
        f"fused_add_rms_norm={DEFAULT}",
    ]
    monkeypatch.setenv("VLLM_FL_PER_OP", line)
    assert bisect("rms_norm").exit_code == 1, "with the line the command passes"


def test_a_policy_file_stays_in_force_and_gets_the_lines(
    bisect: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("prefer: vendor\ncompiled:\n  prefer: vendor\n")
    monkeypatch.setenv("VLLM_FL_CONFIG", str(file))
    data = as_json(bisect, "silu_and_mul")
    assert data["op_backends"] == {"silu_and_mul": "reference"}
    assert data["compiled"] == {"op_backends": {"silu_and_mul": "reference"}}
    text = bisect("silu_and_mul").output
    assert f"in {file}:\nop_backends:\n  silu_and_mul: reference\ncompiled:" in text


def test_a_command_that_passes_has_nothing_to_find(bisect: Any) -> None:
    result = bisect()
    assert result.exit_code == 1
    assert "COMMAND passes under the present policy" in result.output


def test_a_command_that_fails_anyway_is_not_blamed_on_an_operator(bisect: Any) -> None:
    result = bisect("rms_norm", options=("--ops", "silu_and_mul,gelu_and_mul"))
    assert result.exit_code == 3
    assert "the cause is none of these operators" in " ".join(result.output.split())


def test_a_run_that_takes_too_long_counts_as_failed(bisect: Any) -> None:
    data = as_json(bisect, "silu_and_mul", "hang", options=("--timeout", "3", "--ops",
                   "silu_and_mul,gelu_and_mul"))  # fmt: skip
    assert data["culprits"] == [["silu_and_mul"]]
    assert data["runs"][0]["code"] is None


def test_a_reference_run_that_takes_too_long_says_nothing_about_operators(bisect: Any) -> None:
    result = bisect("hang-always", options=("--timeout", "0.5", "--ops", "silu_and_mul"))
    assert result.exit_code == 4
    text = " ".join(result.output.split())
    assert "took longer than the 0.5 s of --timeout" in text
    assert "the cause is none of these operators" not in text


def test_nobody_is_accused_where_a_repeated_run_says_otherwise(bisect: Any) -> None:
    result = bisect("flaky", options=("--ops", "silu_and_mul,gelu_and_mul"))
    assert result.exit_code == 4
    text = " ".join(result.output.split())
    assert "are of the same operators, and only one of the two fails" in text
    assert "makes it fail" not in text


def ended(pid: str) -> bool:
    """Has this process ended? Asks a little later each time: it may still be dying."""
    time.sleep(0.05)
    try:
        state = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def test_what_a_run_leaves_behind_ends_with_it(bisect: Any) -> None:
    """A worker would hold the device in the next run."""
    data = as_json(bisect, "silu_and_mul", "leave", options=("--ops", "silu_and_mul,gelu_and_mul"))
    for run in data["runs"]:
        pid = Path(run["output"]).read_text().rpartition("worker ")[2].split()[0]
        assert any(ended(pid) for _ in range(100))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--against", "refrence"), "--against: 'refrence' is not a token"),
        (("--ops", "silu_and_mull"), "did you mean 'silu_and_mul'?"),
        (("--against", DEFAULT), "none otherwise than the present policy"),
        # Nothing of FlagGems is there: its turn would be vLLM's own layers, which nobody asked for.
        (("--against", "flagos"), "flagos serves no operator here"),
        (("--timeout", "-1"), "--timeout: -1 is not accepted"),
        (("--timeout", "nan"), "--timeout: nan is not accepted"),
    ],
)
def test_wrong_usage_is_an_error(bisect: Any, options: tuple[str, ...], message: str) -> None:
    result = bisect("silu_and_mul", options=options)
    assert message in str(result.exception)


def test_a_folder_for_the_output_that_cannot_be_is_an_error_before_the_first_run(
    bisect: Any, tmp_path: Path
) -> None:
    (tmp_path / "output").touch()
    result = bisect("silu_and_mul")
    assert isinstance(result.exception, PolicyError)
    assert "--output: " in str(result.exception)
    assert "run 1" not in result.output


def test_a_file_of_the_output_that_cannot_be_is_an_error_as_well(
    bisect: Any, tmp_path: Path
) -> None:
    (tmp_path / "output" / "run-001.log").mkdir(parents=True)
    assert isinstance(bisect("silu_and_mul").exception, PolicyError)


def test_a_command_that_does_not_exist_is_an_error(bisect: Any) -> None:
    reset_default_manager()
    result = CliRunner().invoke(app, ["bisect", "--", "no-such-program"])
    assert "cannot run 'no-such-program'" in str(result.exception)
