"""vLLM's compile cache: a changed policy is never served by code that an earlier one compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Run

LOADED = "Directly load AOT compilation"


@pytest.mark.slow
@pytest.mark.parametrize("ours", [False, True], ids=["stock", "PlatformFL"])
def test_each_policy_has_its_own_code(
    run_vllm: Run, truth: Callable[[str], Any], empty_vllm: Any, ours: bool
) -> None:
    def run(order: str) -> dict[str, Any]:
        environ = {
            "VLLM_FL_PLUGIN_MODULES": "marked_silu,force_vllm_compile",
            "VLLM_FL_PER_OP": f"silu_and_mul={order}",
            "VLLM_LOGGING_LEVEL": "INFO",
        }
        return run_vllm(environ=environ, tree=empty_vllm if ours else None)

    first = run("stock")
    assert (first["platform"] == "PlatformFL") == ours
    assert first["tokens"] == truth("qwen3")
    assert LOADED not in first["stdout"]
    changed = run("vendor:marked")
    assert changed["tokens"] != truth("qwen3"), "the marked implementation serves"
    assert LOADED not in changed["stdout"]
    again = run("stock")
    assert again["tokens"] == truth("qwen3")
    assert LOADED in again["stdout"], "the same policy takes what was compiled before"


@pytest.mark.slow
def test_our_variables_are_known_to_vllm(run_vllm: Run, truth: Callable[[str], Any]) -> None:
    environ = {
        "VLLM_FL_PREFER": "reference",
        "VLLM_FL_RANK_TIMEOUT": "60",
        "VLLM_FL_LOG_LEVEL": "INFO",
    }
    result = run_vllm(environ=environ, enforce_eager=True, fail_on_environ_validation=True)
    assert result["tokens"] == truth("qwen3")
    assert "Unknown vLLM environment variable" not in result["stdout"] + result["stderr"]
