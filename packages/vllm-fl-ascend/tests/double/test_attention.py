"""Attention in every state, against float64 attention over the whole sequences."""

from __future__ import annotations

import pytest
import torch
from batches import CONTRACTS, Served
from hypothesis import given, settings
from hypothesis import strategies as st
from npu_double import install

from vllm_fl_ascend.impl import attention
from vllm_fl_ascend.impl.attention import Shape
from vllm_fl_ascend.impl.attention_plan import AttentionState, make_plan
from vllm_fl_ascend.impl.kv_cache import Pages, split_cache

BF16, FP16 = torch.bfloat16, torch.float16


def shape(head_size: int, heads: int = 4, kv_heads: int = 2, window: int | None = None) -> Shape:
    return Shape(heads, kv_heads, head_size, head_size**-0.5, window)


#: name -> (dtype, what a layer computes, the kernel that must serve its decoding)
LAYERS = {
    "fused": (BF16, shape(128), "npu::npu_fused_infer_attention_score"),
    "fused-64": (BF16, shape(64, 4, 1), "npu::npu_fused_infer_attention_score"),
    "fused-window": (BF16, shape(64, window=7), "npu::npu_fused_infer_attention_score"),
    "fp16": (FP16, shape(128), "atb::_npu_paged_attention"),
    "fp16-window": (FP16, shape(64, window=7), "npu::npu_fusion_attention"),
    "odd-head": (BF16, shape(80), "atb::_npu_paged_attention"),
    "wide-head": (BF16, shape(256), "atb::_npu_paged_attention"),
    "widest-head": (BF16, shape(512, 2, 1), "npu::npu_fusion_attention"),
    "every-head-its-own": (FP16, shape(96, 3, 3), "atb::_npu_paged_attention"),
}
layers = pytest.mark.parametrize("layer", LAYERS)


@layers
@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_state(layer: str, contract: str) -> None:
    dtype, what, decoder = LAYERS[layer]
    served = Served([133, 12, 260], what, dtype, contract=contract)
    served.check([130, 3, 0])
    assert served.state is AttentionState.PREFILL_NO_CACHE
    served.check([1, 1, 255])
    assert served.state is AttentionState.CHUNKED_PREFILL
    served.check([0, 5, 2])
    assert served.state is AttentionState.PREFILL_CACHE_HIT
    with install.recording() as calls:
        served.check([1, 1, 1])
    assert served.state is AttentionState.DECODE
    assert calls[-1].name == decoder
    served.check([1, 2, 2], drafts=2)
    assert served.state is AttentionState.SPEC_DECODE


@layers
def test_padding_rows_and_requests_do_not_count(layer: str) -> None:
    dtype, what, _ = LAYERS[layer]
    served = Served([40, 9], what, dtype)
    served.check([37, 8], padding=3)
    served.check([1, 1], padding=2)
    served.check([1, 0], padding=1)


def test_a_block_table_whose_middle_row_has_no_token() -> None:
    served = Served([30, 30, 30], shape(64), BF16)
    served.check([20, 20, 20])
    served.check([1, 0, 1])
    assert served.state is AttentionState.DECODE


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(LAYERS)),
    st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_any_chunks_give_what_one_prefill_gives(
    layer: str, chunks: list[list[int]], seed: int
) -> None:
    dtype, what, _ = LAYERS[layer]
    lengths = [max(1, sum(column)) for column in zip(*chunks, strict=True)]
    served = Served(lengths, what, dtype, seed=seed)
    for new in chunks:
        if any(new):
            served.check(new)
    one_shot = Served(lengths, what, dtype, seed=seed)
    one_shot.check(lengths)


def test_attention_of_an_encoder_sees_all() -> None:
    for name in ("fused", "fp16"):
        dtype, what, _ = LAYERS[name]
        served = Served([5, 9], what, dtype)
        plan = make_plan([0, 5, 14], [5, 9])
        query, key, value = (
            torch.cat(rows) for rows in (served.queries, served.keys, served.values)
        )
        out = served.kernels.over_batch(query, key, value, plan, causal=False)
        q, k, v = (
            rows[:5].double().transpose(0, 1).repeat_interleave(4 // rows.shape[1], 0)
            for rows in (query, key, value)
        )
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=what.scale)
        unit = torch.finfo(dtype).eps
        torch.testing.assert_close(
            out[:5].double(), expected.transpose(0, 1), rtol=unit, atol=unit / 64
        )


def test_host_lists_and_dtypes_are_what_the_kernels_want() -> None:
    plan = make_plan([0, 2, 2, 3], [5, 0, 9])
    pages = Pages(plan, torch.zeros(3, 4, dtype=torch.int64), torch.arange(8))
    assert plan.requests == (0, 2)
    assert (pages.block_table.dtype, pages.block_table.shape) == (torch.int32, (2, 4))
    assert (pages.slots.dtype, pages.slots.tolist()) == (torch.int32, [0, 1, 2])
    assert (pages.context_lens.dtype, pages.context_lens.tolist()) == (torch.int32, [5, 9])
    assert all(type(length) is int for length in (*plan.query_ends, *plan.kv_lens))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (torch.zeros(4, 2, 128, 256), r"\(4, 2, 128, 256\) was found"),
        (torch.zeros(4, 2, 128, 128), "not contiguous"),
        (torch.zeros(4, 128, 2, 128), "was found"),
    ],
)
def test_a_cache_that_the_kernels_cannot_write_is_refused(made: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split_cache(made, 2, 64)


def test_limits_name_what_is_wrong() -> None:
    assert "float32" in str(attention.objection(torch.float32, 64))
    assert "769" in str(attention.objection(BF16, 769))
    assert attention.objection(FP16, 768) is None
    assert attention.block_sizes(BF16, 256) == [64, 32, 16]
    assert attention.block_sizes(FP16, 128) == [128, 64, 32, 16]
    assert attention.block_sizes(BF16, 128)[0] == 128
