"""Multi-head latent attention of vLLM's layers: prefill and projections are vLLM's, decoding and
the writing of the cache are ours."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionCGSupport
from vllm.v1.attention.backends.mla import triton_mla

from vllm_fl_flaggems.impl.mla import BLOCKS, RANK, ROTARY, LatentAttention
from vllm_fl_flaggems.kernels import kv_cache as cache
from vllm_fl_flaggems.vllm.metadata import check_cache_of


class MLAFLBackend(triton_mla.TritonMLABackend):  # type: ignore[misc]  # vLLM is untyped to us
    """Entries of 512 + 64 elements, float16 and bfloat16, compute capability 8 and 9."""

    supported_kv_cache_dtypes: ClassVar = ["auto", "float16", "bfloat16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [RANK + ROTARY]

    @staticmethod
    def get_impl_cls() -> type[MLAFLImpl]:
        return MLAFLImpl

    @staticmethod
    def get_builder_cls() -> type[MLAFLMetadataBuilder]:
        return MLAFLMetadataBuilder

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return capability is not None and capability.major in BLOCKS

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return False

    @classmethod
    def supports_non_causal(cls) -> bool:
        return False


class MLAFLMetadataBuilder(triton_mla.TritonMLAMetadataBuilder):  # type: ignore[misc]  # same
    """vLLM's, for one new token per request of a decode."""

    _cudagraph_support: ClassVar = AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    query_len_support: ClassVar = getattr(
        triton_mla.MLACommonMetadataBuilder, "query_len_support", None
    )

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        check_cache_of(kv_cache_spec, vllm_config)
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)


class MLAFLImpl(triton_mla.TritonMLAImpl):  # type: ignore[misc]  # same
    """One layer. Without the logarithms of the sums, which sharing a context over ranks needs."""

    can_return_lse_for_decode = False
    supports_dcp = False

    def __init__(self, *args: Any, **mla: Any) -> None:
        super().__init__(*args, **mla)
        self._latent = LatentAttention(self.scale)

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        **_: Any,
    ) -> None:
        if not kv_cache.numel():
            return
        entries = _entries(kv_cache).unsqueeze(2)
        rank = kv_c_normed.shape[-1]
        cache.write(
            entries[..., :rank],
            entries[..., rank:],
            kv_c_normed.unsqueeze(1),
            k_pe.reshape(k_pe.shape[0], 1, -1),
            slot_mapping.flatten(),
        )

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: Any,
        layer: Any,
    ) -> tuple[torch.Tensor, None]:
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        decode = attn_metadata.decode
        output = self._latent(
            query, _entries(kv_c_and_k_pe_cache), decode.block_table, decode.seq_lens
        )
        return output, None


def _entries(kv_cache: torch.Tensor) -> torch.Tensor:
    """[blocks, block size, entry]; since 0.29 vLLM's view has a dimension of one head more."""
    return kv_cache.squeeze(1) if kv_cache.dim() == 4 else kv_cache
