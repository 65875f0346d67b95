"""The paged cache of keys and values."""

from __future__ import annotations

import torch

from .rules import require, require_dense, require_dtype


def npu_reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> None:
    require_dtype("key", key, (torch.float16, torch.bfloat16, torch.int8))
    require(
        key.dtype == value.dtype == key_cache.dtype == value_cache.dtype,
        "key, value and both caches have one dtype",
    )
    require_dtype("slot_indices", slot_indices, (torch.int32,))
    require(key.dim() == value.dim() == 3, "key and value are [tokens, heads, head size]")
    require(key_cache.dim() == value_cache.dim() == 4, "caches are [blocks, tokens, heads, size]")
    # A copy would be written, and the cache itself left as it is.
    require_dense(key=key, value=value, key_cache=key_cache, value_cache=value_cache)
    require(slot_indices.shape == (key.shape[0],), "one slot for each token")
    slots = slot_indices.long()
    room = key_cache.shape[0] * key_cache.shape[1]
    require(bool(((slots >= 0) & (slots < room)).all()), "slots lie within the cache")
    require(slots.unique().numel() == slots.numel(), "no slot is written twice")
    for cache, rows in ((key_cache, key), (value_cache, value)):
        require(cache.shape[2:] == rows.shape[1:], "heads and head size are the cache's")
        cache.view(room, *cache.shape[2:])[slots] = rows
