"""vLLM without compiled kernels: `PlatformFL` and the reference give Hugging Face's tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import Run

Truth = Callable[[str], list[list[int]]]
EAGER: dict[str, Any] = {"enforce_eager": True}
COMPILED: dict[str, Any] = {}
#: Prompts are longer than that, so they are cut, and later parts attend to earlier ones.
CHUNKED = {"max_num_batched_tokens": 64, **EAGER}
PIECEWISE = {"VLLM_FL_PLUGIN_MODULES": "force_vllm_compile"}


def check(result: dict[str, Any], tokens: list[list[int]]) -> None:
    assert result["platform"] == "PlatformFL"
    assert result["tokens"] == tokens
    assert "attention_backend is served by attention_backend[reference.torch]" in result["stderr"]


def test_the_tree_has_no_compiled_module(empty_vllm: Path) -> None:
    assert (empty_vllm / "vllm" / "platforms" / "cpu.py").exists()
    assert not [file for file in empty_vllm.rglob("*") if ".so" in file.name]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("qwen3", COMPILED, id="dense-compiled"),
        pytest.param("window", CHUNKED, id="window-chunked"),
        pytest.param("mla", CHUNKED, id="mla-chunked"),
        pytest.param("moe", EAGER, id="experts"),
        pytest.param("moe", COMPILED, id="experts-compiled", marks=pytest.mark.slow),
        pytest.param("qwen3", EAGER, id="dense", marks=pytest.mark.slow),
        pytest.param("window", COMPILED, id="window-compiled", marks=pytest.mark.slow),
        pytest.param("mla", COMPILED, id="mla-compiled", marks=pytest.mark.slow),
    ],
)
def test_it_gives_the_true_tokens(
    run_vllm: Run, truth: Truth, empty_vllm: Path, name: str, options: dict[str, Any]
) -> None:
    result = run_vllm(name, tree=empty_vllm, **options)
    check(result, truth(name))
    assert result["chunked"], "chunks and prefix hits are served as well, MLA included"


@pytest.mark.slow
def test_vllms_piecewise_compilation(run_vllm: Run, truth: Truth, empty_vllm: Path) -> None:
    check(run_vllm(tree=empty_vllm, environ=PIECEWISE, **COMPILED), truth("qwen3"))


@pytest.mark.slow
def test_the_reference_serves_every_layer_too(
    run_vllm: Run, truth: Truth, empty_vllm: Path
) -> None:
    environ = {"VLLM_FL_PREFER": "reference", "TEST_REPORT": "1"}
    result = run_vllm(tree=empty_vllm, environ=environ, **EAGER)
    check(result, truth("qwen3"))
    assert {row["impl_id"] for row in result["report"] if row["layers"]} == {"reference.torch"}


@pytest.mark.slow
def test_a_stock_build_runs_on_it_where_asked(run_vllm: Run, truth: Truth) -> None:
    check(run_vllm(environ={"VLLM_FL_PLATFORM": "cpu"}, **EAGER), truth("qwen3"))


@pytest.mark.slow
def test_switched_off_a_vllm_without_kernels_has_no_platform(
    run_vllm: Run, empty_vllm: Path
) -> None:
    off = {"VLLM_FL_PREFER_ENABLED": "0"}
    result = run_vllm(tree=empty_vllm, environ=off, fails=True, **EAGER)
    said = result["stderr"] + result["stdout"]
    # vLLM's own words: "Failed to infer device type", or "Device string must not be empty".
    assert "evice" in said
    assert "PlatformFL" not in said
