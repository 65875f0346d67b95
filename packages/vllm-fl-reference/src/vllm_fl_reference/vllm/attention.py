"""Attention of vLLM's layers by the reference.

Serves both contracts of the KV cache: what vLLM asked for by `get_kv_cache_shape` before 0.29 is
what it hands out as a logical view since.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf

from vllm_fl_reference.impl import kv_cache as cache
from vllm_fl_reference.impl.attention import Attention
from vllm_fl_reference.impl.attention_plan import Piece
from vllm_fl_reference.vllm.metadata import ReferenceMetadata, ReferenceMetadataBuilder

UNCACHED = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class ReferenceAttentionBackend(AttentionBackend):  # type: ignore[misc]  # vLLM is untyped to us
    """Serves any head size, block size and layout."""

    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

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
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True


class ReferenceAttentionImpl(AttentionImpl[ReferenceMetadata]):  # type: ignore[misc]
    """One layer."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        self.num_heads = num_heads
        self.head_size = head_size
        self.num_kv_heads = num_kv_heads or num_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self._cached = attn_type not in UNCACHED
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._attention = Attention(
            float(scale), sliding_window, logits_soft_cap or 0.0, slopes, sinks
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

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: ReferenceMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("the reference attention does not quantize its output")
        if attn_metadata is None:  # a run that only measures memory
            return output.fill_(0)
        step, size = attn_metadata, self.head_size

        def cached(piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
            entries = cache.read(kv_cache, step.block_table, piece)
            return entries[..., :size], entries[..., size:]

        def uncached(piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
            return cache.read_batch(key, piece), cache.read_batch(value, piece)

        if self._cached:
            return self._attention(query, cached, step.plan, output, causal=step.causal)
        return self._attention(query, uncached, step.plan, output, causal=False)
