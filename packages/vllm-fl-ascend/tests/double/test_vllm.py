"""The attention backend as vLLM uses it, with vLLM's own specifications, caches and batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from batches import CONTRACTS, Batch, Served, empty_cache

pytest.importorskip("vllm", reason="vLLM is not installed: nox -s ascend")

from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheTensor,
    compute_layout_strides,
    create_kv_cache_views,
)

from vllm_fl_ascend.impl.attention import Shape
from vllm_fl_ascend.vllm.attention import AscendAttentionBackend, AscendAttentionImpl
from vllm_fl_ascend.vllm.metadata import AscendMetadataBuilder

BF16, FP16 = torch.bfloat16, torch.float16
LAYERS = {
    "fused": (BF16, Shape(4, 2, 128, 128**-0.5)),
    "fused-window": (BF16, Shape(4, 1, 64, 0.125, 9)),
    "fp16": (FP16, Shape(4, 2, 64, 0.125)),
    "fp16-window": (FP16, Shape(4, 2, 64, 0.125, 9)),
    "wide-head": (BF16, Shape(2, 1, 256, 0.0625)),
}


def specification(dtype: torch.dtype, shape: Shape, block_size: int) -> Any:
    made = FullAttentionSpec(
        block_size=block_size, num_kv_heads=shape.kv_heads, head_size=shape.head_size, dtype=dtype
    )
    return AscendAttentionBackend.customize_spec(made)


def configuration(**scheduler: Any) -> Any:
    return SimpleNamespace(
        speculative_config=None,
        scheduler_config=SimpleNamespace(**{"max_num_seqs": 256, **scheduler}),
    )


def made_by_vllm(spec: Any, blocks: int) -> torch.Tensor:
    """A layer's cache in the layout that the backend asks for, between two other layers."""
    (layout,) = AscendAttentionBackend.supported_kv_cache_layouts()
    strides = compute_layout_strides(spec, blocks, 3, layout)
    size = spec.page_size_bytes * blocks * 3
    where = KVCacheTensor(size, ["a", "b", "c"], strides[0], strides[1])
    cache = create_kv_cache_views(torch.empty(size, dtype=torch.int8), spec, blocks, layout, where)[
        1
    ]
    return cache.fill_(float("nan"))


class ServedByVllm(Served):
    """The same requests, through builder and layer."""

    def __init__(self, lengths: list[int], dtype: torch.dtype, shape: Shape, contract: str) -> None:
        super().__init__(lengths, shape, dtype, contract=contract)
        spec = specification(dtype, shape, self.block_size)
        blocks = int(self.block_table[self.block_table < 2**30].max()) + 1
        if contract == "two planes":
            self.cache = made_by_vllm(spec, blocks)
        else:
            stated = AscendAttentionBackend.get_kv_cache_shape(
                blocks, self.block_size, shape.kv_heads, shape.head_size
            )
            self.cache = empty_cache(contract, *stated[1:], dtype)
            assert self.cache.shape == stated
        self.builder = AscendMetadataBuilder(spec, ["a"], configuration(), torch.device("cpu"))
        self.layer = AscendAttentionImpl(
            shape.heads, shape.head_size, shape.scale, shape.kv_heads, None, shape.window
        )

    def attend(self, batch: Batch, drafts: int) -> torch.Tensor:
        metadata = self.builder.build(0, common(batch))
        self.state = metadata.pages.plan.state
        output = torch.full_like(batch.query, 7.0)
        result = self.layer.forward(
            None, batch.query, batch.key, batch.value, self.cache, metadata, output
        )
        assert result is output
        tokens = batch.starts[-1]
        assert bool((output[tokens:] == 7.0).all())
        return output[:tokens]


def common(batch: Batch) -> CommonAttentionMetadata:
    starts, lengths = torch.tensor(batch.starts), torch.tensor(batch.kv_lens)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.full_like(lengths, -1),
        num_reqs=len(batch.kv_lens),
        num_actual_tokens=batch.query.shape[0],
        max_query_len=int(starts.diff().max()),
        max_seq_len=max(batch.kv_lens),
        block_table_tensor=batch.block_table,
        slot_mapping=batch.slots,
        seq_lens_cpu_upper_bound=lengths,
    )


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_prefill_chunks_and_decoding(layer: str, contract: str) -> None:
    served = ServedByVllm([150, 20, 31], *LAYERS[layer], contract)
    served.check([130, 0, 30])
    served.check([3, 18, 0], padding=2)
    served.check([1, 1, 1], padding=1)


def test_an_encoder_sees_all_and_a_decoder_must_be_causal() -> None:
    served = ServedByVllm([5, 9], *LAYERS["fp16"], "two planes")
    batch = served.batch([5, 9])
    metadata = served.builder.build(0, common(batch).replace(causal=False))
    shape = served.shape
    encoder = AscendAttentionImpl(
        shape.heads, shape.head_size, shape.scale, shape.kv_heads, attn_type="encoder_only"
    )
    rows = (None, batch.query, batch.key, batch.value)
    output = encoder.forward(*rows, torch.tensor([]), metadata, torch.empty_like(batch.query))
    query, key, value = (
        tensor[5:].double().transpose(0, 1).repeat_interleave(4 // tensor.shape[1], 0)
        for tensor in (batch.query, batch.key, batch.value)
    )
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=0.125)
    torch.testing.assert_close(output[5:].double(), expected.transpose(0, 1), rtol=2e-3, atol=1e-4)
    with pytest.raises(NotImplementedError, match="causal decoders only"):
        served.layer.forward(*rows, served.cache, metadata, output)


def test_a_memory_run_has_no_metadata() -> None:
    served = ServedByVllm([4], *LAYERS["fused"], "two planes")
    query = torch.full((4, 4, 128), 3.0, dtype=BF16)
    output = torch.full_like(query, 5.0)
    nothing = torch.tensor([])
    assert not served.layer.forward(None, query, query, query, nothing, None, output).any()


def test_lengths_are_exact_with_drafts_and_asynchronous_scheduling() -> None:
    dtype, shape = LAYERS["fused"]
    config = configuration(async_scheduling=True)
    config.speculative_config = SimpleNamespace(num_speculative_tokens=2)
    builder = AscendMetadataBuilder(
        specification(dtype, shape, 128), ["a"], config, torch.device("cpu")
    )
    batch = Served([9, 9], shape, dtype).batch([3, 3])
    described = common(batch).replace(seq_lens=torch.tensor([4, 5]))
    assert builder.build(0, described).pages.plan.kv_lens == [4, 5]
    plain = AscendMetadataBuilder(
        specification(dtype, shape, 128), ["a"], configuration(), torch.device("cpu")
    )
    assert plain.build(0, described).pages.plan.kv_lens == [3, 3]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"alibi_slopes": [1.0]}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, "a soft cap"),
        ({"sinks": torch.zeros(4)}, "sinks"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype=fp8"),
        ({"attn_type": "encoder_decoder"}, "attention of type encoder_decoder"),
    ],
)
def test_what_the_kernels_lack_is_refused_by_name(options: dict[str, Any], what: str) -> None:
    with pytest.raises(NotImplementedError, match=f"has no {what}"):
        AscendAttentionImpl(4, 64, 0.125, 2, **options)


def test_steps_are_not_captured() -> None:
    # A captured call would keep the lengths of the step that was captured: they are host numbers.
    support = AscendMetadataBuilder.get_cudagraph_support(configuration(), None)
    assert support is AttentionCGSupport.NEVER


def problems(**request: Any) -> list[str]:
    asked: dict[str, Any] = {
        "head_size": 128,
        "dtype": BF16,
        "kv_cache_dtype": "auto",
        "block_size": None,
        "use_mla": False,
        "has_sink": False,
        "use_sparse": False,
        "use_mm_prefix": False,
        "use_per_head_quant_scales": False,
        "device_capability": None,
        "attn_type": "decoder",
    }
    return AscendAttentionBackend.validate_configuration(**{**asked, **request})


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"head_size": 80, "block_size": 16},
        {"dtype": FP16, "block_size": 128},
        {"has_sliding_window": True},
        {"attn_type": "encoder_only"},
    ],
)
def test_vllm_accepts_it_for(request_: dict[str, Any]) -> None:
    assert problems(**request_) == []


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({"use_mla": True}, "MLA not supported"),
        ({"dtype": torch.float32}, "dtype not supported"),
        ({"head_size": 1024}, "head_size not supported"),
        ({"has_sink": True}, "attention sinks not supported"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype not supported"),
        ({"block_size": 16}, "block size 16 is not one of"),
    ],
)
def test_vllm_is_told_why_not(request_: dict[str, Any], reason: str) -> None:
    assert any(reason in problem for problem in problems(**request_))


def test_too_many_requests_for_the_kernels_are_refused_at_the_start() -> None:
    dtype, shape = LAYERS["fp16"]
    with pytest.raises(ValueError, match=r"--max-num-seqs 2000: .* take at most 1024"):
        AscendMetadataBuilder(
            specification(dtype, shape, 128), ["a"], configuration(max_num_seqs=2000),
            torch.device("cpu"),
        )  # fmt: skip
