"""From vLLM's description of a batch to the lengths and tensors that the kernels want."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.attention.backend import AttentionMetadataBuilder

from vllm_fl_ascend.impl.attention import FUSED_MAX_REQUESTS, SEPARATE_MAX_REQUESTS, is_fused
from vllm_fl_ascend.impl.attention_mask import compressed_mask
from vllm_fl_ascend.impl.attention_plan import make_plan
from vllm_fl_ascend.impl.kv_cache import Pages


@dataclass
class AscendMetadata:
    """One step of the scheduler; the same for all layers of a cache group.

    Attributes:
        causal: False for encoders.
    """

    pages: Pages
    causal: bool = True


class AscendMetadataBuilder(AttentionMetadataBuilder[AscendMetadata]):  # type: ignore[misc]  # vLLM is untyped to us
    """Builds the metadata of one cache group.

    Raises:
        ValueError: the server may batch more requests than the kernels take.
    """

    def __init__(
        self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device
    ) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        speculative = getattr(vllm_config, "speculative_config", None)
        self._drafts = int(getattr(speculative, "num_speculative_tokens", None) or 0)
        scheduler = vllm_config.scheduler_config
        # With drafts and asynchronous scheduling the host's lengths count drafts that may be
        # refused.
        self._exact = not (self._drafts and getattr(scheduler, "async_scheduling", False))
        fused = is_fused(
            kv_cache_spec.dtype,
            kv_cache_spec.head_size,
            kv_cache_spec.num_kv_heads,
            kv_cache_spec.block_size,
        )
        most = FUSED_MAX_REQUESTS if fused else SEPARATE_MAX_REQUESTS
        if scheduler.max_num_seqs > most:
            raise ValueError(
                f"--max-num-seqs {scheduler.max_num_seqs}: the attention kernels for "
                f"{kv_cache_spec.dtype} and head size {kv_cache_spec.head_size} take at most {most}"
            )
        # Not at the first step: that may be under a capture.
        compressed_mask(device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> AscendMetadata:
        """One copy from the device at most, and none where the host knows the lengths."""
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise NotImplementedError("requests of one batch that differ in being causal")
        count = common.num_reqs
        starts = common.query_start_loc_cpu[: count + 1].tolist()
        plan = make_plan(starts, self._lengths(common)[:count].tolist(), self._drafts)
        pages = Pages(plan, common.block_table_tensor, common.slot_mapping)
        return AscendMetadata(pages, common.causal)

    def _lengths(self, common: Any) -> torch.Tensor:
        """New and computed tokens of each request, on the host."""
        if self._exact:
            # The first is the name since 0.30 or so, the second that of older releases.
            for name in ("seq_lens_cpu_upper_bound", "seq_lens_cpu"):
                found = getattr(common, name, None)
                if found is not None:
                    return found  # type: ignore[no-any-return]  # vLLM is untyped to us
        return common.seq_lens.cpu()  # type: ignore[no-any-return]  # same
