"""Tokens, not only tensors: float32 greedy tokens equal Hugging Face's, whoever serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Run, served

OFF = {"VLLM_FL_PREFER_ENABLED": "0"}
REFERENCE = {"VLLM_FL_PREFER": "reference", "TEST_REPORT": "1"}
EAGER = {"enforce_eager": True}
COMPILED: dict[str, Any] = {}
Truth = Callable[[str], list[list[int]]]


@pytest.mark.parametrize("mode", [EAGER, COMPILED], ids=["eager", "compiled"])
def test_with_the_plugin_off_vllm_is_untouched(run_vllm: Run, truth: Truth, mode: Any) -> None:
    result = run_vllm(environ=OFF, **mode)
    assert result["tokens"] == truth("qwen3")
    assert result["out_of_tree"] == []
    assert result["built"] == 0, "nothing was even discovered"


@pytest.mark.parametrize("name", ["qwen3", "gemma"])
def test_the_reference_serves_an_eager_model(run_vllm: Run, truth: Truth, name: str) -> None:
    result = run_vllm(name, environ=REFERENCE, **EAGER)
    assert result["tokens"] == truth(name)
    rows = served(result)
    activation = {"qwen3": "silu_and_mul", "gemma": "gelu_and_mul"}[name]
    assert set(rows) == {activation, "rms_norm", "fused_add_rms_norm", "rotary_embedding"}
    for impl_id, mode, calls in rows.values():
        assert (impl_id, mode) == ("reference.torch", "eager")
        assert calls > 0


def test_the_reference_serves_a_compiled_model(run_vllm: Run, truth: Truth) -> None:
    result = run_vllm(environ=REFERENCE, **COMPILED)
    assert result["tokens"] == truth("qwen3")
    assert {row[:2] for row in served(result).values()} == {("reference.torch", "inlined")}


@pytest.mark.slow
def test_the_reference_serves_a_compiled_gemma(run_vllm: Run, truth: Truth) -> None:
    assert run_vllm("gemma", environ=REFERENCE, **COMPILED)["tokens"] == truth("gemma")


def test_by_default_a_stock_platform_keeps_its_layers(run_vllm: Run, truth: Truth) -> None:
    result = run_vllm(**EAGER)
    assert result["tokens"] == truth("qwen3")
    assert result["out_of_tree"] == []
    assert result["built"] > 0
