"""What all layers of a step share: the plan, and where the cache of each request is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import (
    AttentionMetadata,
    AttentionMetadataBuilder,
    CommonAttentionMetadata,
)

from vllm_fl_reference.impl.attention_plan import Piece, make_plan


@dataclass
class ReferenceMetadata(AttentionMetadata):  # type: ignore[misc]  # vLLM is untyped to us
    """One step of the scheduler.

    The second half is what vLLM's MLA layer asks for: it hands tokens either to a prefill of
    materialised keys or, those of `decode`, to attention over the latent cache. The reference
    takes the latter for all tokens.
    """

    num_actual_tokens: int
    plan: tuple[Piece, ...]
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool | torch.Tensor
    num_decodes: int = 0
    num_decode_tokens: int = 0
    num_prefills: int = 0
    prefill: None = None

    @property
    def decode(self) -> ReferenceMetadata:
        return self


class ReferenceMetadataBuilder(AttentionMetadataBuilder[ReferenceMetadata]):  # type: ignore[misc]
    """Makes the plan once per step, on the host: shapes depend on lengths."""

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        fast_build: bool = False,
        **_: Any,
    ) -> ReferenceMetadata:
        common, requests = common_attn_metadata, common_attn_metadata.num_reqs
        starts = common.query_start_loc_cpu[: requests + 1].tolist()
        lengths = common.seq_lens[:requests].tolist()
        return ReferenceMetadata(
            num_actual_tokens=common.num_actual_tokens,
            plan=make_plan(starts, lengths, self.device),
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
            num_decodes=requests,
            num_decode_tokens=common.num_actual_tokens,
        )
