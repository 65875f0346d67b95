"""The demo: a real language model answers through dispatched operators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ENVIRONMENT

MODEL = os.environ.get("DEMO_MODEL")


@pytest.mark.skipif(not MODEL, reason="DEMO_MODEL names no model; the nox session makes one")
@pytest.mark.parametrize(
    "empty", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["stock", "no kernels"]
)
def test_a_real_model_answers_and_the_report_says_what_served_it(
    empty: bool, empty_vllm: Path
) -> None:
    path = os.pathsep.join([str(empty_vllm)] * empty + [ENVIRONMENT["PYTHONPATH"]])
    command = [sys.executable, "-m", "vllm_fl_dispatch.cli", "demo", "--model", str(MODEL),
               "--dtype", "float32", "--json"]  # fmt: skip
    done = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    data = json.loads(done.stdout)
    assert "Paris" in data["answers"][0]
    counted = {row["op"] for row in data["report"] if row["calls"] > 0}
    assert counted == {"silu_and_mul", "rms_norm", "fused_add_rms_norm", "rotary_embedding"}
    assert {row["impl_id"] for row in data["report"]} == {"reference.torch"}
