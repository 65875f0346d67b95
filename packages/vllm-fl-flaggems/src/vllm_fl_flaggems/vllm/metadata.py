"""What all layers of a step share: where the tokens, the lengths and the blocks are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from vllm_fl_flaggems.impl.attention import Step
from vllm_fl_flaggems.impl.limits import check_cache


def check_cache_of(kv_cache_spec: Any, vllm_config: Any) -> None:
    """Refuse the cache of a layer before it is allocated.

    How many blocks it has is known only after the class was selected.

    Raises:
        OpNotSupported: it has more elements than the kernels index.
    """
    blocks = vllm_config.cache_config.num_gpu_blocks
    if blocks is not None:
        check_cache(blocks, kv_cache_spec.page_size_bytes // kv_cache_spec.dtype.itemsize)


@dataclass
class Metadata(AttentionMetadata):  # type: ignore[misc]  # vLLM is untyped to us
    """One step of the scheduler."""

    num_actual_tokens: int
    step: Step
    slot_mapping: torch.Tensor


class MetadataBuilder(AttentionMetadataBuilder[Metadata]):  # type: ignore[misc]  # same
    """Hands on what vLLM has, on the device: a captured graph reads the same tensors."""

    #: Batches of equally many new tokens. A graph of a mixed batch would launch programs for its
    #: largest number of new tokens in each of them.
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        check_cache_of(kv_cache_spec, vllm_config)
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        **_: Any,
    ) -> Metadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError(f"causal={common.causal!r}: FlagGems' attention is causal")
        step = Step(
            starts=common.query_start_loc,
            lengths=common.seq_lens,
            block_table=common.block_table_tensor,
            max_new=common.max_query_len,
            max_length=common.max_seq_len,
        )
        return Metadata(common.num_actual_tokens, step, common.slot_mapping)

    def build_for_cudagraph_capture(
        self, common_attn_metadata: CommonAttentionMetadata
    ) -> Metadata:
        metadata = self.build(0, common_attn_metadata)
        # vLLM captures with the largest lengths, over which each captured call would run.
        metadata.step.lengths.fill_(1)
        return metadata
