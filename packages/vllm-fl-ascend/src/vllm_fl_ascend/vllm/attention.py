"""Attention of vLLM's layers on NPUs. Serves both contracts of the KV cache: before vLLM 0.29 a
backend states the shape, since then it customizes the specification and names layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionType

from vllm_fl_ascend.impl import attention
from vllm_fl_ascend.impl.attention import Fused, Separate, Shape
from vllm_fl_ascend.impl.attention_plan import AttentionState
from vllm_fl_ascend.impl.kv_cache import split_cache
from vllm_fl_ascend.library import import_library
from vllm_fl_ascend.vllm.metadata import AscendMetadata, AscendMetadataBuilder
from vllm_fl_dispatch.vllm.attention_layer import LayerAttention, LayerBackend

BLOCK_SIZES = (*attention.FUSED_BLOCK_SIZES, 64, 32, 16)


class AscendAttentionBackend(LayerBackend):
    """Decoders with grouped heads, and encoders. Neither MLA nor sinks, ALiBi or soft caps."""

    supported_dtypes: ClassVar = list(attention.DTYPES)
    accept_output_buffer = True  # releases that may pass no output ask for this
    forward_includes_kv_cache_update = True

    @staticmethod
    def get_impl_cls() -> type[AscendAttentionImpl]:
        return AscendAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[AscendMetadataBuilder]:
        return AscendMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any, **__: Any
    ) -> tuple[int, ...]:
        """Before 0.29."""
        return (2, num_blocks, block_size, num_kv_heads, head_size)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Since 0.29: keys and values in planes of their own, each a contiguous page."""
        if spec.state_content_bytes is not None:
            return spec
        if spec.head_size != getattr(spec, "head_size_v", spec.head_size):
            raise ValueError(
                f"keys of {spec.head_size} and values of {spec.head_size_v} channels were found; "
                "accepted: one head size"
            )
        itemsize = torch.empty(0, dtype=spec.dtype).element_size()
        return replace(
            spec,
            num_head_slots=2,
            state_content_bytes=spec.num_kv_heads * spec.head_size * itemsize,
        )

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...]:
        """Since 0.29: the planes outermost, so that each is contiguous."""
        from vllm.v1.kv_cache_layout import KVCacheLayout

        return (KVCacheLayout.LHBNC,)

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        if kv_cache_spec is None:
            return list(BLOCK_SIZES)
        return attention.block_sizes(kv_cache_spec.dtype, kv_cache_spec.head_size)

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        from vllm.config import get_current_vllm_config

        model = get_current_vllm_config().model_config
        if model is None:
            return BLOCK_SIZES[0]
        sizes = attention.block_sizes(model.dtype, model.get_head_size())
        return default_block_size if default_block_size in sizes else sizes[0]

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size <= attention.MAX_HEAD_SIZE

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any, block_size: int | None,
        *_: Any, **__: Any,
    ) -> str | None:  # fmt: skip
        sizes = attention.block_sizes(dtype, head_size)
        if block_size is None or any(block_size % size == 0 for size in sizes):
            return None
        return f"block size {block_size} is not one of {sizes} (for {dtype}, head size {head_size})"

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_ONLY)


class AscendAttentionImpl(LayerAttention):
    """One layer.

    Raises:
        NotImplementedError: the layer needs what the kernels do not have; says what.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        backend, kind = AscendAttentionBackend, self.attn_type
        missing = {
            "ALiBi": self.alibi_slopes is not None,
            "a soft cap": bool(self.soft_cap),
            "sinks": self.sinks is not None,
            f"kv_cache_dtype={self.kv_cache_dtype}": self.kv_cache_dtype
            not in backend.supported_kv_cache_dtypes,
            f"attention of type {kind}": not backend.supports_attn_type(kind),
        }
        if any(missing.values()):
            asked = ", ".join(what for what, wanted in missing.items() if wanted)
            raise NotImplementedError(f"the attention of vllm-fl-ascend has no {asked}")
        import_library()
        self._cached = kind == AttentionType.DECODER
        self._shape = Shape(
            self.num_heads, self.num_kv_heads, self.head_size, self.scale, self.sliding_window
        )
        self._kernels: dict[tuple[torch.dtype, int | None], Fused | Separate] = {}

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        step: AscendMetadata,
        output: torch.Tensor,
    ) -> None:
        """Store the new keys and values, and attend; rows of padding stay as they are."""
        tokens = step.pages.plan.tokens
        if tokens:
            found = self._attend(query[:tokens], key, value, kv_cache, step)
            output[:tokens].view(found.shape).copy_(found)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        step: AscendMetadata,
    ) -> torch.Tensor:
        plan, tokens = step.pages.plan, query.shape[0]
        if not self._cached:
            kernels = self._family(query.dtype, None)
            return kernels.over_batch(query, key[:tokens], value[:tokens], plan, causal=False)
        if not step.causal:
            raise NotImplementedError("the attention of vllm-fl-ascend has causal decoders only")
        keys, values = split_cache(kv_cache, self.num_kv_heads, self.head_size)
        kernels = self._family(query.dtype, keys.shape[1])
        # A layer that shares the cache of another has no keys of its own.
        own = self.kv_sharing_target_layer_name is None
        if own:
            attention.write_cache(key, value, keys, values, step.pages)
        if own and plan.state is AttentionState.PREFILL_NO_CACHE:
            return kernels.over_batch(query, key[:tokens], value[:tokens], plan)
        return kernels.over_cache(query, keys, values, step.pages)

    def _family(self, dtype: torch.dtype, block_size: int | None) -> Fused | Separate:
        """The kernels for this layer; the block size is known when the cache is."""
        kernels = self._kernels.get((dtype, block_size))
        if kernels is None:
            fused = attention.is_fused(dtype, self.head_size, self.num_kv_heads, block_size)
            kernels = (Fused if fused else Separate)(self._shape)
            self._kernels[dtype, block_size] = kernels
        return kernels
