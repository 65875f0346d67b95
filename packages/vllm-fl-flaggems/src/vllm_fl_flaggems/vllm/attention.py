"""Attention of vLLM's layers by FlagGems. Serves both contracts of the KV cache: what vLLM asks for
by `get_kv_cache_shape` (before 0.29) is what it hands out as a logical view since."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import MultipleOf

from vllm_fl_dispatch.vllm.attention_layer import LayerAttention, LayerBackend
from vllm_fl_flaggems.impl.attention import MAX_HEAD_SIZE, Attention, views
from vllm_fl_flaggems.kernels import kv_cache as cache
from vllm_fl_flaggems.vllm.metadata import Metadata, MetadataBuilder


class AttentionFLBackend(LayerBackend):
    """Decoders: causal, with window, soft cap and ALiBi; float16 and bfloat16."""

    supported_dtypes: ClassVar = [torch.float16, torch.bfloat16]
    forward_includes_kv_cache_update = False

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


class AttentionFLImpl(LayerAttention):
    """One layer."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.attn_type != "decoder":
            raise NotImplementedError(
                f"attn_type {self.attn_type!r}: FlagGems serves decoders only"
            )
        if self.sinks is not None:
            raise NotImplementedError("FlagGems' attention has no sinks")
        self._attention = Attention(
            self.scale, self.sliding_window, self.soft_cap, self.alibi_slopes
        )

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

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        step: Metadata,
        output: torch.Tensor,
    ) -> None:
        tokens = step.num_actual_tokens
        rows = output[:tokens].view(tokens, self.num_heads, self.head_size)
        keys, values = views(kv_cache, self.head_size)
        self._attention(query[:tokens], keys, values, step.step, rows)
