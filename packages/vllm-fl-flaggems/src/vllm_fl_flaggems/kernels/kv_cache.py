"""Writing to a paged cache of keys and values, in Triton.

Ours, not FlagGems': its kernels take the inside of a block for contiguous and the cache's dtype for
the activations', and write to wrong places or wrong numbers where that is not so.
"""

# Triton looks up the names in annotations of a kernel and knows none of Python's types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]  # Triton is untyped
def _store(
    key,
    value,
    keys,
    values,
    slots,
    block_size,
    key_token,
    key_head,
    value_token,
    value_head,
    keys_block,
    keys_offset,
    keys_head,
    values_block,
    values_offset,
    values_head,
    HEADS: tl.constexpr,
    KEY_SIZE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KEY_PADDED: tl.constexpr,
    VALUE_PADDED: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    block = slot // block_size
    offset = slot % block_size
    head = tl.arange(0, HEADS_PADDED)[:, None]
    column = tl.arange(0, KEY_PADDED)[None, :]
    mask = (head < HEADS) & (column < KEY_SIZE)
    row = tl.load(key + token * key_token + head * key_head + column, mask=mask)
    place = keys + block * keys_block + offset * keys_offset + head * keys_head + column
    tl.store(place, row, mask=mask)
    column = tl.arange(0, VALUE_PADDED)[None, :]
    mask = (head < HEADS) & (column < VALUE_SIZE)
    row = tl.load(value + token * value_token + head * value_head + column, mask=mask)
    place = values + block * values_block + offset * values_offset + head * values_head + column
    tl.store(place, row, mask=mask)


def write(
    keys: torch.Tensor,
    values: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Store keys and values where the scheduler wants them.

    Args:
        keys, values: the cache, [blocks, block size, heads, d] and [.., dv], of any strides but the
            last, which is 1; changed.
        key, value: [T, heads, d] and [T, heads, dv], T at least the number of slots; the last
            stride is 1.
        slots: [N], ``block * block size + offset`` of each token; negative: not stored (padding).
    """
    heads, size, value_size = key.shape[1], key.shape[2], value.shape[2]
    if not slots.numel():
        return
    kernel: Any = _store
    kernel[(slots.shape[0],)](
        key,
        value,
        keys,
        values,
        slots,
        keys.shape[1],
        *key.stride()[:2],
        *value.stride()[:2],
        *keys.stride()[:3],
        *values.stride()[:3],
        HEADS=heads,
        KEY_SIZE=size,
        VALUE_SIZE=value_size,
        HEADS_PADDED=triton.next_power_of_2(heads),
        KEY_PADDED=triton.next_power_of_2(size),
        VALUE_PADDED=triton.next_power_of_2(value_size),
    )
