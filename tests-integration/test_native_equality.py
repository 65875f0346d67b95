"""The reference backend equals vLLM's native layers, in the installed release and an older one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from .conftest import ENVIRONMENT, TOOLS


@pytest.mark.parametrize("release", ["installed", "older"])
def test_bit_for_bit(release: str) -> None:
    environ = {**os.environ, **ENVIRONMENT}
    if release == "older":
        folder = os.environ.get("OLDER_VLLM")
        if folder is None:
            pytest.skip(
                "OLDER_VLLM names no folder with an older vLLM; the session integration does"
            )
        environ["PYTHONPATH"] = folder
    done = subprocess.run(
        [sys.executable, str(TOOLS / "native_equality.py")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["different"] == []
    assert found["compared"] > 100
    if release == "older":
        assert found["vllm"] in environ["PYTHONPATH"], "the older release is what was asked"
