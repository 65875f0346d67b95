"""Many releases of vLLM under one environment: do they give Hugging Face's tokens through us?

`RELEASES_TREES` is a folder with one folder per release, as the nox session `versions` makes them:
``0.28.0`` holds the Python files of that release, ``0.28.0-full`` its whole CPU build. What was run
is written to `RELEASES_RESULTS`, from which the page of versions is made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run

pytestmark = pytest.mark.slow

TREES = Path(os.environ.get("RELEASES_TREES", "no-such-folder"))
VERSIONS = sorted(path.name for path in TREES.glob("*.*") if (path / "complete").exists())
MODELS = ("qwen3", "moe", "window", "mla")

if not VERSIONS:
    pytest.skip(
        "RELEASES_TREES names no releases; the nox session makes them", allow_module_level=True
    )


def write(version: str, model: str, outcome: str) -> None:
    path = os.environ.get("RELEASES_RESULTS")
    if path is None:
        return
    known = json.loads(Path(path).read_text()) if Path(path).exists() else {}
    known.setdefault(version, {})[model] = outcome
    Path(path).write_text(json.dumps(known, indent=2))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_release_gives_the_true_tokens(
    run_vllm: Run, truth: Callable[[str], Any], version: str, model: str
) -> None:
    full = version.endswith("-full")
    if full and model != "qwen3":
        pytest.skip("of a whole build the dense model is run")
    if model == "mla" and tuple(map(int, version.split(".")[:2])) < (0, 32):
        pytest.skip("this release of vLLM has no prefill of MLA models in torch, which every layer "
                    "of such a model holds, used or not")  # fmt: skip
    environ = {"VLLM_FL_PREFER": "reference", "TEST_REPORT": "1"}
    outcome = "failed"
    try:
        result = run_vllm(model, tree=TREES / version, environ=environ, enforce_eager=True)
        outcome = "equal" if result["tokens"] == truth(model) else "different"
    finally:
        write(version, model, outcome)
    assert outcome == "equal"
    assert (result["platform"] == "PlatformFL") != full
    served = {row["op"]: row["impl_id"] for row in result["report"] if row["layers"]}
    assert served["rms_norm"] == "reference.torch"
