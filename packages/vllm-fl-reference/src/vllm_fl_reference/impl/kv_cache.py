"""Writing to and reading from a paged cache of keys and values.

A cache is [blocks, heads, block size, d + dv]: the key of a token, then its value. Its strides are
vLLM's business; indexing respects them.
"""

from __future__ import annotations

import torch

from vllm_fl_reference.impl.attention_plan import Piece


def write(cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor) -> None:
    """Store keys and values where the scheduler wants them.

    Args:
        cache: [blocks, heads, block size, d + dv]; changed.
        key, value: [T, heads, d] and [T, heads, dv], T at least the number of slots.
        slots: [N], ``block * block size + offset`` of each token; -1: not stored (padding).
    """
    used = (slots >= 0).nonzero().flatten()
    slots = slots[used].long()
    block, offset = slots // cache.shape[2], slots % cache.shape[2]
    rows = torch.cat([key[used], value[used]], dim=-1)
    cache[block, :, offset] = rows.to(cache.dtype)


def read(cache: torch.Tensor, block_table: torch.Tensor, piece: Piece) -> torch.Tensor:
    """[R, heads, K, d + dv]: the entries of a piece's requests; zeros behind their end.

    Args:
        cache: [blocks, heads, block size, d + dv].
        block_table: [requests of the batch, blocks of a request], int.
    """
    size = cache.shape[2]
    columns = -(-piece.max_length // size)
    blocks = block_table[piece.requests, :columns].long()
    # Behind the end of a request the table holds anything.
    blocks = blocks.clamp(0, cache.shape[0] - 1)
    found = cache[blocks].transpose(1, 2).flatten(2, 3)[:, :, : piece.max_length]
    padding = piece.padding()
    if padding is None:
        return found
    # What was never written may be NaN, and 0 * NaN is NaN.
    return found.masked_fill(padding[:, None, :, None], 0.0)


def read_batch(rows: torch.Tensor, piece: Piece) -> torch.Tensor:
    """[R, heads, K, d]: keys or values that were never cached, [T, heads, d] of the batch."""
    columns = torch.arange(piece.max_length, device=rows.device)
    columns = torch.minimum(columns, (piece.lengths[:, None] - 1).clamp(min=0))
    return rows[piece.first_tokens[:, None] + columns].transpose(1, 2)
