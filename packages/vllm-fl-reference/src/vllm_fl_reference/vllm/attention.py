"""Attention of vLLM's layers by the reference.

Serves both contracts of the KV cache: what vLLM asked for by `get_kv_cache_shape` before 0.29 is
what it hands out as a logical view since.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionType, MultipleOf

from vllm_fl_dispatch.vllm.attention_layer import LayerAttention, LayerBackend
from vllm_fl_reference.impl import kv_cache as cache
from vllm_fl_reference.impl.attention import Attention
from vllm_fl_reference.impl.attention_plan import Piece
from vllm_fl_reference.vllm.metadata import ReferenceMetadata, ReferenceMetadataBuilder

UNCACHED = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class ReferenceAttentionBackend(LayerBackend):
    """Serves any head size, block size and layout."""

    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16, torch.float32]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_impl_cls() -> type[ReferenceAttentionImpl]:
        return ReferenceAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[ReferenceMetadataBuilder]:
        return ReferenceMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[MultipleOf]:
        return [MultipleOf(1)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any, **__: Any
    ) -> tuple[int, ...]:
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, *UNCACHED)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


class ReferenceAttentionImpl(LayerAttention):
    """One layer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._cached = self.attn_type not in UNCACHED
        self._attention = Attention(
            self.scale, self.sliding_window, self.soft_cap, self.alibi_slopes, self.sinks
        )

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if self._cached and kv_cache.numel():
            cache.write(kv_cache, key, value, slot_mapping)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        step: ReferenceMetadata,
        output: torch.Tensor,
    ) -> None:
        size = self.head_size

        def cached(piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
            entries = cache.read(kv_cache, step.block_table, piece)
            return entries[..., :size], entries[..., size:]

        def uncached(piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
            return cache.read_batch(key, piece), cache.read_batch(value, piece)

        if self._cached:
            self._attention(query, cached, step.plan, output, causal=step.causal)
        else:
            self._attention(query, uncached, step.plan, output, causal=False)
