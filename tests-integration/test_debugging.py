"""Finding a wrong kernel in a real vLLM: one operator among all of a vendor is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vllm_fl_dispatch import report_reading

from .conftest import ENVIRONMENT, TOOLS, Run

Truth = Callable[[str], list[list[int]]]
EAGER = {"enforce_eager": True}
COMPILED: dict[str, Any] = {}


def wrong_vendor(op: str) -> dict[str, str]:
    """The environment in which a vendor serves everything, and this operator wrongly."""
    return {
        "VLLM_FL_PLUGIN_MODULES": "wrong_acme",
        "VLLM_FL_PREFER": "vendor",
        "TEST_WRONG_OP": op,
    }


def shadowed(
    run_vllm: Run, folder: Path, environ: dict[str, str], shadow: str = "*=reference", **mode: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What generate.py printed, and the shadow's rows of the report."""
    environ = {**environ, "VLLM_FL_SHADOW": shadow, "VLLM_FL_REPORT": str(folder)}
    result = run_vllm(environ=environ, **mode)
    return result, [row for report in report_reading.read(folder) for row in report["shadow"]]


def test_the_shadow_names_the_first_layer_of_the_wrong_operator(
    run_vllm: Run, truth: Truth, tmp_path: Path
) -> None:
    wrong = wrong_vendor("fused_add_rms_norm")
    result, rows = shadowed(run_vllm, tmp_path / "report", wrong, **EAGER)
    assert result["tokens"] != truth("qwen3"), "the fault is seen in the tokens"
    deviating = [row for row in rows if row["first"]]
    assert {row["op"] for row in deviating} == {"fused_add_rms_norm"}
    first = deviating[0]
    assert first["layer"] == "model.layers.0.post_attention_layernorm"
    assert (first["impl_id"], first["beside"]) == ("vendor.wrong", "reference.torch")
    assert [row["layer"] for row in deviating[1:4]] == [
        "model.layers.1.input_layernorm",
        "model.layers.1.post_attention_layernorm",
        "model.layers.2.input_layernorm",
    ], "the others follow in the order of the model"
    assert first["first"]["call"] == 1
    assert first["first"]["arguments"].startswith("x [")
    layers = {row["op"]: row["layer"] for row in rows if not row["first"]}
    assert "model.layers.0.self_attn.rotary_emb" in layers["rotary_embedding"]
    said = [
        line
        for line in result["stderr"].splitlines()
        if "shadow:" in line and line.startswith("WARNING")
    ]
    assert len(said) == 1
    assert "fused_add_rms_norm in model.layers.0.post_attention_layernorm" in said[0]


def test_in_compiled_code_the_layer_is_known_by_its_weight(run_vllm: Run, tmp_path: Path) -> None:
    wrong = wrong_vendor("rms_norm")
    wrong["VLLM_FL_PER_OP"] = "silu_and_mul=stock"
    result, rows = shadowed(run_vllm, tmp_path / "report", wrong, **COMPILED)
    assert (
        "silu_and_mul is traced into compiled code, where nothing is compared" in result["stderr"]
    )
    deviating = [row for row in rows if row["first"]]
    assert {(row["op"], row["mode"]) for row in deviating} == {("rms_norm", "opaque")}
    assert deviating[0]["layer"] == "model.layers.0.input_layernorm"


def test_stock_layers_can_be_compared_and_serve_as_shadow(
    run_vllm: Run, truth: Truth, tmp_path: Path
) -> None:
    """Both ways round the reference equals vLLM's own layers, and the model is not disturbed."""
    for number, (order, shadow, impl_id) in enumerate(
        [("stock", "reference", "stock"), ("reference", "stock", "reference.torch")]
    ):
        ops = ("silu_and_mul", "rms_norm", "rotary_embedding")
        environ = {"VLLM_FL_PER_OP": ";".join(f"{op}={order}" for op in ops)}
        folder = tmp_path / str(number)
        result, rows = shadowed(run_vllm, folder, environ, f"*={shadow}", **EAGER)
        assert result["tokens"] == truth("qwen3")
        assert {row["op"] for row in rows} == {*ops, "fused_add_rms_norm"}
        assert {row["impl_id"] for row in rows} == {impl_id}
        assert all(row["compared"] and not row["first"] for row in rows)


@pytest.mark.slow
def test_routers_and_experts_are_named_too(run_vllm: Run, tmp_path: Path) -> None:
    for number, op in enumerate(("topk_softmax", "fused_experts")):
        folder = tmp_path / str(number)
        _, rows = shadowed(run_vllm, folder, wrong_vendor(op), name="moe", **EAGER)
        deviating = [row for row in rows if row["first"]]
        assert {row["op"] for row in deviating} == {op}
        assert deviating[0]["layer"].startswith("model.layers.0.mlp.experts")


@pytest.mark.slow
def test_bisect_finds_the_wrong_operator(
    tiny: Callable[[str], Path], truth: Truth, tmp_path: Path
) -> None:
    expected = tmp_path / "tokens.json"
    expected.write_text(json.dumps(truth("qwen3")))
    options = json.dumps({"model": str(tiny("qwen3")), **EAGER})
    command = [sys.executable, str(TOOLS / "check_tokens.py"), str(expected), options]
    environ = {**os.environ, **ENVIRONMENT, **wrong_vendor("fused_add_rms_norm")}

    def bisect(environ: dict[str, str]) -> tuple[int, dict[str, Any]]:
        arguments = ["bisect", "--json", "--output", str(tmp_path / "output"), "--", *command]
        done = subprocess.run(
            [sys.executable, "-m", "vllm_fl_dispatch.cli", *arguments],
            env=environ, capture_output=True, text=True, timeout=1800, check=False,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    code, found = bisect(environ)
    assert code == 0, found
    assert found["culprits"] == [["fused_add_rms_norm"]]
    line = found["VLLM_FL_PER_OP"]
    assert line == "fused_add_rms_norm=reference"
    code, found = bisect({**environ, "VLLM_FL_PER_OP": line})
    assert (code, found["outcome"]) == (1, "passes"), "the line avoids the fault"
