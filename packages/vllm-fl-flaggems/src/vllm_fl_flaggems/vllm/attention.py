"""Attention of vLLM's layers by FlagGems. Serves both contracts of the KV cache: what vLLM asks for
by `get_kv_cache_shape` (before 0.29) is what it hands out as a logical view since."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, MultipleOf

from vllm_fl_flaggems.impl import kv_cache as cache
from vllm_fl_flaggems.impl.attention import MAX_HEAD_SIZE, Attention, views
from vllm_fl_flaggems.vllm.metadata import Metadata, MetadataBuilder


class AttentionFLBackend(AttentionBackend):  # type: ignore[misc]  # vLLM is untyped to us
    """Decoders: causal, with window, soft cap and ALiBi; float16 and bfloat16."""

    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AttentionFLImpl]:
        return AttentionFLImpl

    @staticmethod
    def get_builder_cls() -> type[MetadataBuilder]:
        return MetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[MultipleOf]:
        return [MultipleOf(16)]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= MAX_HEAD_SIZE

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any, **__: Any
    ) -> tuple[int, ...]:
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """Before 0.29: in memory the tokens stand before the heads, and each layer by itself."""
        return (0, 2, 1, 3)

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """Since 0.29: the same."""
        from vllm.v1.kv_cache_interface import KVCacheLayout

        return (KVCacheLayout.LBNHC,)


class AttentionFLImpl(AttentionImpl[Metadata]):  # type: ignore[misc]  # vLLM is untyped to us
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
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
    ) -> None:
        if attn_type != "decoder":
            raise NotImplementedError(f"attn_type {attn_type!r}: FlagGems serves decoders only")
        self.num_heads, self.head_size = num_heads, head_size
        self.num_kv_heads = num_kv_heads or num_heads
        self.scale = float(scale)
        self.kv_cache_dtype = kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self._attention = Attention(self.scale, sliding_window, logits_soft_cap or 0.0, slopes)

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if kv_cache.numel():
            cache.write(*views(kv_cache, self.head_size), key, value, slot_mapping)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Metadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("FlagGems' attention does not quantize its output")
        if attn_metadata is None:  # a run that only measures memory
            return output.fill_(0)
        tokens = attn_metadata.num_actual_tokens
        rows = output[:tokens].view(tokens, self.num_heads, self.head_size)
        keys, values = views(kv_cache, self.head_size)
        self._attention(query[:tokens], keys, values, attn_metadata.step, rows)
        return output
