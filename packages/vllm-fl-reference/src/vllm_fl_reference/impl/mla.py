"""Multi-head latent attention over its cache, which holds one latent vector per token."""

from __future__ import annotations

import torch

from vllm_fl_reference.impl import kv_cache
from vllm_fl_reference.impl.attention import Attention
from vllm_fl_reference.impl.attention_plan import Piece


def latent_attention(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    plan: tuple[Piece, ...],
    scale: float,
    rank: int,
    causal: bool | torch.Tensor = True,
) -> torch.Tensor:
    """[T, H, rank]: weighted sums of latent vectors, to be projected to values.

    All heads share one key, the whole entry of the cache, whose first `rank` elements are the
    value as well: attention with a single key head.

    Args:
        query: [T, H, rank + rotary], the part without rotation already projected to the latent
            space.
        cache: [blocks, block size, rank + rotary], or with a dimension of 1 after the first.
        block_table, plan, causal: as for `Attention`.
        scale: of the products of query and key.
    """
    paged = cache.unsqueeze(1) if cache.dim() == 3 else cache

    def read(piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
        entries = kv_cache.read(paged, block_table, piece)
        return entries, entries[..., :rank]

    output = query.new_zeros(*query.shape[:2], rank)
    return Attention(scale)(query, read, plan, output, causal=causal)
