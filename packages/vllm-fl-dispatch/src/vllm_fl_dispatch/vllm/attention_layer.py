"""What every attention backend tells vLLM in the same words. A backend adds what it computes.

Imports vLLM, so a backend imports it in the module whose path its `attention_backend` answers.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType


class LayerBackend(AttentionBackend):  # type: ignore[misc]  # vLLM is untyped to us
    """A backend whose cache has the model's dtype."""

    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        # The member of vLLM's enumeration that stands for classes from outside.
        return "CUSTOM"

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


class LayerAttention(AttentionImpl[Any]):  # type: ignore[misc]  # same
    """One layer. Refuses, in `forward`, what no kernel behind it was ever asked for.

    Args:
        scale: of the products of query and key.
        alibi_slopes: one per head: how much a product falls per position of distance; None: not.
        sliding_window: a token attends to keys less than this many positions away; None: to all.
        logits_soft_cap: products are limited by ``cap * tanh(product / cap)``; None or 0: not.
        kv_sharing_target_layer_name: the layer whose cache this one reads; None: its own.
        sinks: [heads], floating point: logits that take part in the softmax without a value.
    """

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
        self.num_heads, self.head_size = num_heads, head_size
        self.num_kv_heads = num_kv_heads or num_heads
        self.scale = float(scale)
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes).float()
        self.sliding_window = sliding_window
        self.kv_cache_dtype = kv_cache_dtype
        self.soft_cap = logits_soft_cap or 0.0
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(f"{type(self).__name__} does not quantize its output")
        if attn_metadata is None:  # a run that only measures memory
            return output.fill_(0)
        self.attend(query, key, value, kv_cache, attn_metadata, output)
        return output

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        step: Any,
        output: torch.Tensor,
    ) -> None:
        """Attend, into `output`; rows behind the tokens of the step are padding.

        Args:
            query: [tokens or more, heads, head size], of the model's dtype.
            key, value: like query, with the key heads.
            kv_cache: of this layer, in the shape and layout that the backend asked for.
            step: the metadata that the backend's builder made.
            output: like query.
        """
