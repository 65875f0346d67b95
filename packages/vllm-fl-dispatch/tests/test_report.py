"""What ran, and that nothing counts unless asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from vllm_fl_dispatch import PolicyError, report_files, report_reading
from vllm_fl_dispatch.cli.commands import app

from .conftest import impl

X = torch.ones(2, 8)


def narrow_only(x: Any) -> str:
    if x.shape[-1] > 8:
        raise RuntimeError("too wide")
    return "vendor.acme"


def test_nothing_counts_unless_a_report_is_asked_for(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme"))
    manager.get_op("silu_and_mul")(X)
    assert manager.report.rows() == []


def test_calls_and_failures_are_counted_per_implementation(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme", narrow_only), impl("reference.torch"))
    manager.report.enabled = True
    manager.invalidate()
    op = manager.get_op("silu_and_mul")
    for width in (8, 8, 16, 16):
        op(torch.ones(1, width))
    rows = {row.impl_id: row for row in manager.report.rows()}
    assert rows["vendor.acme"].calls == 3
    assert rows["vendor.acme"].failures == 1
    assert rows["reference.torch"].calls == 2
    assert rows["reference.torch"].kind == "reference"


def test_a_file_says_what_ran_failed_and_was_set(make_manager: Any, tmp_path: Path) -> None:
    manager = make_manager(
        impl("vendor.acme", narrow_only),
        impl("reference.torch"),
        impl("vendor.acme", op="rmsnorm"),
    )
    report_files.start(manager, tmp_path / "reports")
    manager.get_op("silu_and_mul")(torch.ones(1, 16))
    (report,) = report_reading.read(tmp_path / "reports")
    assert report["pid"] == os.getpid()
    assert {row["impl_id"]: row["failures"] for row in report["rows"]}["vendor.acme"] == 1
    (failure,) = report["failures"]
    assert failure["error"] == "RuntimeError: too wide"
    assert report["unknown_operators"] == ["rmsnorm[vendor.acme]"]
    assert {"name": "prefer", "value": "flagos", "origin": "default"} in report["settings"]


def left(folder: Path, pid: int, started: str = "2026-01-01", **more: Any) -> None:
    """A report in a folder, as a process with this number leaves it."""
    row = {"op": f"op_{pid}", "impl_id": "vendor.acme", "mode": "eager", "layers": 1, "calls": 2,
           "failures": 0}  # fmt: skip
    report = {"host": "h", "pid": pid, "rank": None, "run": started, "started": started,
              "rows": [row], "failures": [], "shadow": [], "unknown_operators": []}  # fmt: skip
    (folder / f"vllm-fl-h-{pid}.json").write_text(json.dumps({**report, **more}))


def test_what_is_no_report_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    left(tmp_path, 3, rank=1)
    left(tmp_path, 4, rank=0)
    (tmp_path / "vllm-fl-h-1.json").write_text("")
    (tmp_path / "vllm-fl-h-2.json").write_text('{"rows": []}')
    (tmp_path / "vllm-fl-h-5.json").mkdir()
    left(tmp_path, 6, rows=[{}])
    left(tmp_path, 7, rows={"op": "rms_norm"})
    left(tmp_path, 8, rank="first")
    said: list[str] = []
    assert [report["pid"] for report in report_reading.read(tmp_path, said.append)] == [4, 3]
    assert len(said) == 6
    assert f"{tmp_path}/vllm-fl-h-2.json is no report: it has no 'host'" in said
    assert f"{tmp_path}/vllm-fl-h-6.json is no report: rows has no 'op'" in said
    shown = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "op_3" in shown.stdout
    assert shown.stderr.count("is no report") == 6


def test_starts_stand_apart_and_the_last_one_can_be_had_alone(tmp_path: Path) -> None:
    left(tmp_path, 1, "2026-02-02")
    left(tmp_path, 2, "2026-03-03")
    # A worker of the first start that came up late.
    left(tmp_path, 3, "2026-04-04", run="2026-02-02")
    text = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "200"}).output
    places = [text.index(word) for word in ("started 2026-02-02", "op_1", "op_3",
                                            "started 2026-03-03", "op_2")]  # fmt: skip
    assert places == sorted(places)
    last = CliRunner().invoke(app, ["report", str(tmp_path), "--last", "--json"]).stdout
    assert [report["pid"] for report in json.loads(last)] == [2]


def test_a_process_belongs_to_the_start_of_its_parent(tmp_path: Path) -> None:
    end = (
        "import subprocess\n"
        'code = "import vllm_fl_dispatch as fl; fl.get_default_manager().ensure_built()"\n'
        "subprocess.run([sys.executable, '-c', code], check=True)"
    )
    for _ in range(2):
        with program(end, tmp_path) as process:
            assert process.wait(60) == 0
    runs = report_reading.by_run(report_reading.read(tmp_path))
    assert [len(of) for of in runs.values()] == [2, 2]


@pytest.mark.parametrize(
    "command",
    ["ops", "explain silu_and_mul", "verify silu_and_mul --apart", "bench silu_and_mul --tokens 1"],
)
def test_our_own_commands_leave_no_report(tmp_path: Path, command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", *command.split()],
        env={**os.environ, "VLLM_FL_REPORT": str(tmp_path)}, capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named_at_the_start(
    make_manager: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        report_files.start(make_manager(), tmp_path)


def test_a_child_of_fork_starts_counting_anew(make_manager: Any, tmp_path: Path) -> None:
    manager = make_manager(impl("vendor.acme"))
    manager.report.enabled = True
    manager.invalidate()
    op = manager.get_op("silu_and_mul")
    op(X)
    pid = os.fork()
    if pid == 0:
        op(X)
        report_files.write(manager, tmp_path)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    (report,) = report_reading.read(tmp_path)
    assert report["pid"] == pid
    assert [row["calls"] for row in report["rows"]] == [1]


PROGRAM = """
import os, sys, time, torch
import vllm_fl_dispatch as fl
fl.get_default_manager().ensure_built()
fl.get_op("silu_and_mul")(torch.ones(1, 8))
print("ready", flush=True)
{end}
"""


def program(end: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM).format(end=end)],
        env={**os.environ, "VLLM_FL_REPORT": str(folder), "RANK": "3"},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("time.sleep(60)", -signal.SIGTERM),
        ("import multiprocessing as mp\nmp.get_context('fork').Process(target=int).start()", 0),
    ],
    ids=["end", "exit", "sigterm", "child"],
)
def test_it_survives_every_way_to_end(tmp_path: Path, end: str, code: int) -> None:
    with program(end, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if code < 0:
            time.sleep(0.1)
            process.terminate()
        assert process.wait(30) == code
    own = next(r for r in report_reading.read(tmp_path) if r["pid"] == process.pid)
    assert own["rank"] == 3
    assert [(row["op"], row["calls"]) for row in own["rows"]] == [("silu_and_mul", 1)]


def test_a_process_forked_by_multiprocessing_writes_its_own(tmp_path: Path) -> None:
    end = (
        "import multiprocessing as mp\n"
        "def work(): fl.get_op('silu_and_mul')(torch.ones(1, 8))\n"
        "child = mp.get_context('fork').Process(target=work)\n"
        "child.start(); child.join()"
    )
    with program(end, tmp_path) as process:
        assert process.wait(30) == 0
    reports = report_reading.read(tmp_path)
    assert len(reports) == 2
    assert [[row["calls"] for row in report["rows"]] for report in reports] == [[1], [1]]


def test_sigterm_ends_a_process_whose_report_cannot_be_made(tmp_path: Path) -> None:
    end = "fl.get_default_manager().report.rows = None; time.sleep(60)"
    with program(end, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        process.terminate()
        assert process.wait(30) == -signal.SIGTERM


def test_a_folder_that_cannot_be_made_keeps_nothing_from_starting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with program("pass", tmp_path / "file" / "reports") as process:
        assert process.wait(30) == 0


def test_the_command_shows_every_process(make_manager: Any, tmp_path: Path) -> None:
    manager = make_manager(impl("vendor.acme", narrow_only), impl("reference.torch"))
    report_files.start(manager, tmp_path)
    manager.get_op("silu_and_mul")(torch.ones(1, 16))
    runner = CliRunner()
    result = runner.invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for text in ("vendor.acme", "reference.torch", "silu_and_mul[vendor.acme] failed: Runtime"):
        assert text in result.output
    data = json.loads(runner.invoke(app, ["report", str(tmp_path), "--json"]).stdout)
    assert data[0]["pid"] == os.getpid()
    nothing = runner.invoke(app, ["report", str(tmp_path / "none")])
    assert isinstance(nothing.exception, PolicyError)
    assert f"{tmp_path / 'none'} is not there" in str(nothing.exception)
    (tmp_path / "none").touch()
    nothing = runner.invoke(app, ["report", str(tmp_path / "none")])
    assert f"{tmp_path / 'none'} is no folder" in str(nothing.exception)
    (tmp_path / "empty").mkdir()
    nothing = runner.invoke(app, ["report", str(tmp_path / "empty")])
    assert nothing.exit_code == 1
    assert f"no report in {tmp_path / 'empty'}" in nothing.stderr.replace("\n", "")


def test_reports_without_a_row_are_explained(make_manager: Any, tmp_path: Path) -> None:
    report_files.write(make_manager(impl("reference.torch")), tmp_path)
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 0
    assert "1 processes left a report and served no operator" in result.stderr


def test_a_rank_is_remembered_when_the_group_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_files, "_known", {})
    monkeypatch.delenv("RANK", raising=False)
    assert report_files.rank() is None
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 3)
    assert report_files.rank() == 3
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    assert report_files.rank() == 3
