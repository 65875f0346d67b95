"""A whole vLLM on `PlatformFL`, operators and attention of this backend: Hugging Face's tokens.

In float16, where well separated logits give the tokens of float32: the cache takes no float32, and
bfloat16 is too coarse for that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import generate
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: nox -s ascend")
pytest.importorskip("vllm_fl_dispatch.selectors", reason="this core selects no attention")

TOOLS = Path(__file__).parents[4] / "tests-integration" / "tools"
sys.path.insert(0, str(TOOLS))

import tiny_models  # noqa: E402  # found on the path set above

#: What every model calls, and what only those with a window or experts do.
COMMON = {
    "atb::_npu_reshape_and_cache",
    "npu::npu_add_rms_norm",
    "npu::npu_fusion_attention",
    "npu::npu_rms_norm",
    "npu::npu_rotary_mul",
    "npu::npu_swiglu",
}
DECODING = {"atb::_npu_paged_attention"}
EXPERTS = {
    "npu::npu_grouped_matmul",
    "npu::npu_moe_finalize_routing",
    "npu::npu_moe_gating_top_k_softmax",
    "npu::npu_moe_init_routing_v2",
}


@pytest.mark.parametrize(
    ("name", "called", "options"),
    [
        ("qwen3", COMMON | DECODING, {"max_num_batched_tokens": 64}),
        pytest.param("window", COMMON, {}, marks=pytest.mark.slow),
        pytest.param("moe", COMMON | DECODING | EXPERTS, {}, marks=pytest.mark.slow),
    ],
)
def test_tokens(tmp_path: Path, name: str, called: set[str], options: dict[str, Any]) -> None:
    model = tmp_path / "model"
    tiny_models.make(name, model)
    arguments = json.dumps({"model": str(model), "dtype": "float16", **options})
    command = [sys.executable, generate.__file__, str(tmp_path), arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # vLLM may fail when it ends: what it wrote before counts.
    assert (tmp_path / "result.json").exists(), done.stderr[-3000:]
    result = json.loads((tmp_path / "result.json").read_text())
    truth = tiny_models.greedy_tokens(model, generate.PROMPTS, generate.MAX_TOKENS)
    assert result["tokens"] == truth
    assert (result["platform"], result["block_size"]) == ("PlatformFL", 128)
    assert called <= set(result["called"])
    assert result["failures"] == []
