"""What `supports` says about queries at and beyond the documented limits."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vllm_fl_ascend import plugin
from vllm_fl_dispatch import Query, Verdict

BF16, FP32 = torch.bfloat16, torch.float32


def supports(op_name: str) -> Callable[[Query], Verdict]:
    path = f"vllm_fl_ascend.impl.{plugin.OPERATORS[op_name]}:supports_{op_name}"
    found: Callable[[Query], Verdict] = pkgutil.resolve_name(path)
    return found


def ask(op_name: str, **facts: Any) -> str:
    """The reason of a refusal, or nothing."""
    return supports(op_name)(Query(op_name, facts)).reason


@pytest.mark.parametrize("op_name", plugin.OPERATORS)
def test_what_is_not_known_yet_is_no_reason(op_name: str) -> None:
    assert supports(op_name)(Query(op_name))


@pytest.mark.parametrize("op_name", plugin.OPERATORS)
def test_another_dtype_is_refused(op_name: str) -> None:
    assert "dtype torch.float64 is not one of" in ask(op_name, dtype=torch.float64)


@pytest.mark.parametrize(
    ("op_name", "facts", "reason"),
    [
        ("rms_norm", {"dtype": BF16, "weight_dtype": BF16}, ""),
        ("rms_norm", {"dtype": BF16, "weight_dtype": FP32}, ""),
        ("rms_norm", {"dtype": FP32, "weight_dtype": BF16}, "no kernel for an input of"),
        ("rms_norm", {"dtype": BF16, "weight_dtype": None}, "the kernel needs a weight"),
        ("fused_add_rms_norm", {"dtype": BF16, "residual_dtype": FP32}, ""),
        ("fused_add_rms_norm", {"dtype": FP32, "residual_dtype": BF16}, "residual_dtype"),
        ("fused_add_rms_norm", {"dtype": BF16, "weight_dtype": None}, "needs a weight"),
        ("rotary_embedding", {"rotary_dim": 894}, ""),
        ("rotary_embedding", {"rotary_dim": 896}, "rotary_dim 896 is more than 894"),
        ("topk_softmax", {"topk": 1024, "num_experts": 4096}, ""),
        ("topk_softmax", {"topk": 1025}, "topk 1025 is more than 1024"),
        ("topk_softmax", {"num_experts": 4096, "bias_dtype": FP32}, "more than 2048 when padded"),
        ("grouped_topk", {"num_experts": 256, "num_expert_group": 8}, ""),
        ("grouped_topk", {"num_experts": 16, "num_expert_group": 8}, "groups of more than two"),
        ("grouped_topk", {"num_experts": 256, "num_expert_group": 65}, "not equal groups"),
        # 66 groups of 3, each padded to 32.
        ("grouped_topk", {"num_experts": 198, "num_expert_group": 66}, "2048 when padded"),
        ("fused_experts", {"hidden_size": 65535, "intermediate_size": 32767}, ""),
        ("fused_experts", {"hidden_size": 65536}, "hidden_size 65536"),
        ("fused_experts", {"intermediate_size": 32768}, "intermediate_size 32768"),
        ("fused_experts", {"activation": "relu"}, "activation 'relu' is not one of silu"),
        ("dynamic_per_token_quant_int8", {"dtype": BF16}, ""),
        ("dynamic_per_token_quant_int8", {"dtype": FP32}, "dtype torch.float32"),
    ],
)
def test_limits(op_name: str, facts: dict[str, Any], reason: str) -> None:
    found = ask(op_name, **facts)
    assert reason in found
    assert bool(found) == bool(reason)
