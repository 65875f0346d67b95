"""What the implementations decline, told without FlagGems."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_flaggems.impl import activation, experts, limits, normalization, rotary, routing

HALF, FULL = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("module", "op", "facts"),
    [
        (activation, "silu_and_mul", {"dtype": HALF, "device": "cuda"}),
        (activation, "silu_and_mul", {"dtype": FULL, "device": "cuda"}),
        (activation, "gelu_and_mul", {"dtype": FULL, "device": "cuda"}),
        (normalization, "rms_norm", {"dtype": HALF, "last_dim": 65536, "weight_dtype": FULL}),
        (normalization, "fused_add_rms_norm", {"dtype": HALF, "residual_dtype": HALF}),
        (rotary, "rotary_embedding", {"dtype": HALF, "cache_dtype": HALF}),
        (routing, "topk_softmax", {"dtype": HALF, "num_experts": 1024, "topk": 32}),
        (routing, "moe_align_block_size", {"dtype": torch.int64}),
        (experts, "fused_experts", {"dtype": HALF}),
        (experts, "moe_sum", {"dtype": FULL}),
    ],
)
def test_what_is_served(module: Any, op: str, facts: dict[str, Any]) -> None:
    assert module.supports(Query(op, facts)) == Verdict.yes()
    assert module.supports(Query(op, {})) == Verdict.yes(), "what is not known is no objection"


@pytest.mark.parametrize(
    ("module", "op", "facts", "reason"),
    [
        (activation, "gelu_and_mul", {"dtype": torch.float64}, "dtype torch.float64"),
        (normalization, "fused_add_rms_norm", {"dtype": HALF, "residual_dtype": FULL}, "residual"),
        (normalization, "fused_add_rms_norm", {"last_dim": 65536}, "at most 32768"),
        (rotary, "rotary_embedding", {"dtype": HALF, "cache_dtype": FULL}, "cos_sin_cache is"),
        (routing, "topk_softmax", {"num_experts": 2048}, "experts 2048, at most 1024"),
        (routing, "topk_softmax", {"topk": 64}, "topk 64, at most 32"),
        (experts, "fused_experts", {"dtype": FULL}, "TF32"),
        *(
            (module, op, {"device": "cpu"}, "the call is on cpu")
            for module, op in (
                (activation, "silu_and_mul"),
                (normalization, "rms_norm"),
                (experts, "moe_sum"),
                (rotary, "rotary_embedding"),
                (routing, "moe_align_block_size"),
            )
        ),
    ],
)
def test_what_is_declined_says_why(
    module: Any, op: str, facts: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert reason in module.supports(Query(op, facts)).reason


@pytest.mark.parametrize(
    "shape_and_strides", [((2**16, 2**16), (2**16, 1)), ((3, 8), (2**30, 1))], ids=str
)
def test_what_32_bits_do_not_reach_is_declined(shape_and_strides: Any) -> None:
    far = torch.empty(1, device="meta").as_strided(*shape_and_strides)
    with pytest.raises(OpNotSupported, match="beyond the 2"):
        limits.check_extent(far)
    limits.check_extent(far[:1, :8])
