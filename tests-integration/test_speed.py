"""vLLM's own layers as they are measured beside implementations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from vllm_fl_dispatch.benching.inputs import TABLE, Maker
from vllm_fl_dispatch.benching.shapes import ModelShape
from vllm_fl_dispatch.config.effective import policy_from_file
from vllm_fl_dispatch.errors import OpNotSupported
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.vllm import stock

from .conftest import ENVIRONMENT, Run, served

SHAPE = ModelShape(hidden=128, intermediate=96, heads=4, kv_heads=2, head_size=64, rotary=32)
SPEC = {spec.name: spec for spec in SPECS}


@pytest.mark.parametrize("op", stock._TABLE)
def test_the_stock_call_computes_the_operator(op: str) -> None:
    spec = SPEC[op]
    args = TABLE[op](Maker(SHAPE, 5, torch.float32, "cpu"))
    assert spec.oracle is not None
    expected = spec.oracle(*args)
    with torch.inference_mode():
        # Some of vLLM's layers overwrite their arguments, after the oracle has read them.
        call = stock.stock_call(op, args)
        if op == "rotary_embedding":
            # The layer makes a table of its own; its angles are those of its positions.
            assert [t.shape for t in call()] == [t.shape for t in expected]
            return
        found = call()
    pairs: Any = zip(*((r,) if torch.is_tensor(r) else r for r in (found, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-5)


def test_an_operator_that_is_no_layer_of_its_own_is_not_measured() -> None:
    with pytest.raises(OpNotSupported, match="no layer that is just this operator"):
        stock.stock_call("moe_sum", ())


def tune(folder: Path, *ops: str, **config: int) -> Path:
    """Tune for a model of these sizes, at few tokens; returns the file."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, **config}
    (folder / "config.json").write_text(json.dumps(sizes))
    file = folder / "tuned.yaml"
    options = ["--model", str(folder), "--rounds", "2", "--tokens", "1,8", "-o", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "vllm_fl_dispatch.cli", "tune", *ops, *options],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return file


def test_tune_measures_vllms_own_layers_beside_the_others(tmp_path: Path) -> None:
    file = tune(tmp_path, "silu_and_mul", "rotary_embedding")
    text = file.read_text()
    assert text.count("  # stock ") == 2, "measured, with figures"
    assert "# stock            -" not in text
    found = policy_from_file(file)
    assert found.warnings == ()
    assert found.policy.per_op_order.keys() == {"silu_and_mul", "rotary_embedding"}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_vllm_runs_as_the_tuned_file_says(
    run_vllm: Run, truth: Callable[[str], list[list[int]]], tmp_path: Path, compiled: bool
) -> None:
    ops = ("silu_and_mul", "rms_norm", "fused_add_rms_norm", "rotary_embedding")
    file = tune(tmp_path, *ops, hidden_size=256, intermediate_size=512)
    environ = {"VLLM_FL_CONFIG": str(file), "TEST_REPORT": "1"}
    result = run_vllm(environ=environ, enforce_eager=not compiled)
    assert result["tokens"] == truth("qwen3")
    policy = policy_from_file(file).policy.for_mode(compiled)
    first = {"stock": "stock", "reference": "reference.torch"}
    wanted = {op: first[policy.per_op_order[op][0]] for op in ops}
    assert {op: row[0] for op, row in served(result).items()} == wanted
