"""Multi-head latent attention of vLLM's layers by the reference."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.attention.backend import MLAAttentionImpl

from vllm_fl_reference.impl import kv_cache as cache
from vllm_fl_reference.impl.mla import latent_attention
from vllm_fl_reference.vllm.attention import ReferenceAttentionBackend
from vllm_fl_reference.vllm.metadata import ReferenceMetadata


class ReferenceMLABackend(ReferenceAttentionBackend):
    """Serves any rank; prefill, chunks and prefix hits alike go over the latent cache."""

    @staticmethod
    def get_impl_cls() -> type[ReferenceMLAImpl]:
        return ReferenceMLAImpl

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, *_: Any, **__: Any
    ) -> tuple[int, ...]:
        return (num_blocks, block_size, head_size)

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return False

    @classmethod
    def supports_sink(cls) -> bool:
        return False

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type == "decoder"


class ReferenceMLAImpl(MLAAttentionImpl[ReferenceMetadata]):  # type: ignore[misc]
    """One layer. The projections around it are vLLM's."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla: Any,
    ) -> None:
        given = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
            "kv_sharing_target_layer_name": kv_sharing_target_layer_name,
        }
        for name, value in given.items():
            if value:
                raise NotImplementedError(f"the reference MLA has no {name}, found {value!r}")
        self.num_heads, self.head_size, self.num_kv_heads = num_heads, head_size, num_kv_heads
        self.scale = float(scale)
        self.kv_cache_dtype = kv_cache_dtype
        # vLLM's layer reads these of every implementation.
        for name, value in mla.items():
            setattr(self, name, value)
        self.supports_quant_query_input = False
        self.dcp_world_size = 1

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        *_: Any,  # later releases append arguments about quantized caches
        **__: Any,
    ) -> None:
        if kv_cache.numel():
            paged = kv_cache.unsqueeze(1) if kv_cache.dim() == 3 else kv_cache
            latent, rotated = kv_c_normed.unsqueeze(1), k_pe.reshape(len(k_pe), 1, -1)
            cache.write(paged, latent, rotated, slot_mapping.flatten())

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: ReferenceMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, None]:
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        step, rank = attn_metadata, self.kv_lora_rank
        output = latent_attention(
            query,
            kv_c_and_k_pe_cache,
            step.block_table,
            step.plan,
            self.scale,
            rank,
            causal=step.causal,
        )
        return output, None
