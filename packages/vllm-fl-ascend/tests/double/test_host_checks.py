"""Every call of the backend passes the checks of the real torch_npu and reaches its kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import replay
from scenes import kinds_of_calls

#: operator -> the function of CANN that torch_npu 2.13 chooses for our calls
KERNELS = {
    "npu::npu_swiglu": "aclnnSwiGlu",
    "npu::npu_geglu": "aclnnGeGluV3",
    "npu::npu_clipped_swiglu": "aclnnClippedSwiglu",
    "npu::npu_rms_norm": "aclnnRmsNorm",
    "npu::npu_add_rms_norm": "aclnnAddRmsNorm",
    "npu::npu_rotary_mul": "aclnnRotaryPositionEmbeddingV2",
    "npu::npu_moe_gating_top_k_softmax": "aclnnMoeGatingTopKSoftmax",
    "npu::npu_moe_gating_top_k": "aclnnMoeGatingTopK",
    "npu::npu_moe_init_routing_v2": "aclnnMoeInitRoutingV3",
    "npu::npu_moe_finalize_routing": "aclnnMoeFinalizeRoutingV4",
    "npu::npu_grouped_matmul": "aclnnGroupedMatmulV5",
    "npu::npu_dynamic_quant": "aclnnDynamicQuantV2",
    "npu::npu_fused_infer_attention_score": "aclnnFusedInferAttentionScoreV2",
    "npu::npu_fusion_attention": "aclnnFlashAttentionVarLenScore",
    "atb::_npu_reshape_and_cache": "ReshapeCacheOperation",
    "atb::_npu_paged_attention": "PagedAttentionOperation",
}


def _tensor(*shape: int, dtype: str = "float16") -> dict[str, Any]:
    stride = [1]
    for size in reversed(shape[1:]):
        stride.insert(0, stride[0] * size)
    return {"shape": list(shape), "stride": stride, "dtype": dtype}


#: Calls that torch_npu itself refuses, and with which words.
WRONG = {
    "The k should be in [0, 64]": {
        "name": "npu::npu_moe_gating_top_k_softmax",
        "arguments": {"x": _tensor(4, 64), "k": 65},
    },
    "The x should be 2D": {
        "name": "npu::npu_moe_gating_top_k",
        "arguments": {"x": _tensor(4, 64, 2), "k": 4},
    },
    "Invalid value of split_item [9]": {
        "name": "npu::npu_grouped_matmul",
        "arguments": {
            "x": [_tensor(8, 64)],
            "weight": [_tensor(2, 64, 32)],
            "group_list": _tensor(2, dtype="int64"),
            "split_item": 9,
            "group_type": 0,
        },
    },
    "layout only support": {
        "name": "npu::npu_fused_infer_attention_score",
        "arguments": {
            "query": _tensor(5, 4, 64),
            "key": _tensor(8, 128, 256),
            "value": _tensor(8, 128, 256),
            "num_heads": 4,
            "input_layout": "XYZ",
        },
    },
}


def _replayed(calls: list[dict[str, Any]], folder: Path) -> list[dict[str, str]]:
    (folder / "calls.json").write_text(json.dumps(calls))
    command = [sys.executable, replay.__file__, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    answers: list[dict[str, str]] = json.loads((folder / "answers.json").read_text())
    return answers


def test_every_call_reaches_the_expected_kernel(tmp_path: Path) -> None:
    answers = _replayed([replay.describe(call) for call in kinds_of_calls()], tmp_path)
    refused = [answer for answer in answers if "refused" in answer]
    assert refused == []
    reached = {(answer["name"], answer["reached"]) for answer in answers}
    assert sorted(reached) == sorted(KERNELS.items())


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    for answer, message in zip(_replayed(list(WRONG.values()), tmp_path), WRONG, strict=True):
        assert message in answer["refused"]
