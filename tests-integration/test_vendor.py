"""A third-party vendor, three ways in; its marked result proves that it really serves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import Run, served

ORDER = {"VLLM_FL_PER_OP": "silu_and_mul=vendor:acme|reference", "TEST_REPORT": "1"}
INSTALLED = {**ORDER, "VLLM_FL_DISABLED_PLUGINS": ""}
Truth = Callable[[str], list[list[int]]]


@pytest.fixture(scope="module")
def marked() -> dict[str, list[list[int]]]:
    """The tokens of the marked model, from the first run that makes them."""
    return {}


def check(result: object, marked: dict[str, list[list[int]]], right: list[list[int]]) -> None:
    tokens = result["tokens"]  # type: ignore[index]  # a dictionary of JSON
    assert tokens != right, "the marked implementation did not serve"
    assert tokens == marked.setdefault("tokens", tokens)


def test_an_installed_distribution(run_vllm: Run, truth: Truth, marked: dict[str, object]) -> None:
    result = run_vllm(environ=INSTALLED, enforce_eager=True)
    check(result, marked, truth("qwen3"))
    impl_id, mode, calls = served(result)["silu_and_mul"]
    assert (impl_id, mode) == ("vendor.acme", "eager")
    assert calls > 0
    assert (
        "silu_and_mul is served by silu_and_mul[vendor.acme] of vllm-fl-acme 0.3.0"
        in (result["stderr"])
    )


@pytest.mark.parametrize("module", ["vllm_fl_acme.plugin", "legacy_acme"])
def test_the_same_code_named_as_a_module(
    run_vllm: Run, truth: Truth, marked: dict[str, object], module: str
) -> None:
    environ = {**ORDER, "VLLM_FL_PLUGIN_MODULES": module}
    result = run_vllm(environ=environ, enforce_eager=True)
    check(result, marked, truth("qwen3"))


@pytest.mark.parametrize(
    ("module", "mode"), [("vllm_fl_acme.plugin", "opaque"), ("traceable_acme", "inlined")]
)
def test_a_compiled_model(
    run_vllm: Run, truth: Truth, marked: dict[str, object], module: str, mode: str
) -> None:
    environ = {**ORDER, "VLLM_FL_PLUGIN_MODULES": module}
    result = run_vllm(environ=environ)
    check(result, marked, truth("qwen3"))
    assert served(result)["silu_and_mul"][:2] == ("vendor.acme", mode)
    calls = served(result)["silu_and_mul"][2]
    assert (calls > 0) == (mode == "opaque")
