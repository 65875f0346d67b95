"""Attention over fresh tokens and over the paged cache."""

from __future__ import annotations

from itertools import pairwise

import torch

from .rules import FLOAT, HALF, poison, require, require_dense, require_dtype

INT_MAX = 2**31 - 1
#: The compressed mask that the sparse modes take.
MASK = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def npu_fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: list[int] | None = None,
    actual_seq_lengths_kv: list[int] | None = None,
    block_table: torch.Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    pre_tokens: int = INT_MAX,
    next_tokens: int = INT_MAX,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    antiquant_mode: int = 0,
    key_antiquant_mode: int = 0,
    value_antiquant_mode: int = 0,
    softmax_lse_flag: bool = False,
    **unknown: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    given = [name for name, found in unknown.items() if found is not None]
    require(not given and not softmax_lse_flag, f"the model knows nothing of {given}")
    require(input_layout == "TND", "the model takes the layout TND")
    # The documentation lists float16 as well; released tilings refuse it or answer wrongly.
    require(query.dtype == key.dtype == value.dtype == torch.bfloat16, "TND takes bfloat16")
    require(query.dim() == 3 and query.shape[1] == num_heads, "query is [tokens, heads, size]")
    require_dense(query=query, key=key, value=value)
    size = query.shape[-1]
    require(size in (64, 128), f"head size {size} is 64 or 128")
    kv_heads = num_key_value_heads or num_heads
    require(num_heads % kv_heads == 0, "query heads are a multiple of the key heads")
    require(actual_seq_lengths and actual_seq_lengths_kv, "TND takes both lists of lengths")
    assert actual_seq_lengths is not None
    assert actual_seq_lengths_kv is not None
    require(len(actual_seq_lengths) <= 4096, "at most 4096 sequences")
    require(len(actual_seq_lengths) == len(actual_seq_lengths_kv), "lists of one length")
    query_lens = _from_sums("actual_seq_lengths", actual_seq_lengths, query.shape[0])
    if block_table is None:
        kv_lens = _from_sums("actual_seq_lengths_kv", actual_seq_lengths_kv, key.shape[0])
        require(key.shape == value.shape == (key.shape[0], kv_heads, size), "[tokens, heads, size]")
        keys, values = (list(tensor.split(kv_lens)) for tensor in (key, value))
    else:
        kv_lens = list(actual_seq_lengths_kv)
        require(block_size % 128 == 0 and 128 <= block_size <= 512, "blocks of 128 to 512 tokens")
        require(key.shape == value.shape, "both caches have one shape")
        require(key.shape[1:] == (block_size, kv_heads * size), "[blocks, tokens, heads * size]")
        keys, values = (
            _from_pages(cache.view(*cache.shape[:2], kv_heads, size), block_table, kv_lens)
            for cache in (key, value)
        )
    window = _window(sparse_mode, atten_mask, pre_tokens, next_tokens)
    out = _attend(query, keys, values, query_lens, scale, window)
    return out, torch.empty(0, dtype=torch.float32)


def npu_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = INT_MAX,
    next_tockens: int = INT_MAX,
    inner_precise: int = 0,
    prefix: list[int] | None = None,
    actual_seq_qlen: list[int] | None = None,
    actual_seq_kvlen: list[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, int, int]:
    unknown = (pse, padding_mask, prefix, sink, dropout_mask)
    require(all(found is None for found in unknown), "the model takes neither bias nor sinks")
    require(keep_prob == 1.0 and input_layout == "TND", "the model takes TND without dropout")
    require_dtype("query", query, FLOAT)
    require(query.dtype == key.dtype == value.dtype, "query, key and value have one dtype")
    require(query.dim() == key.dim() == 3, "query and key are [tokens, heads, size]")
    require(query.shape[1] == head_num <= 256, "head_num is the number of heads, at most 256")
    require(key.shape == value.shape and key.shape[2] == query.shape[2] <= 768, "sizes up to 768")
    require(head_num % key.shape[1] == 0, "query heads are a multiple of the key heads")
    require_dense(query=query, key=key, value=value)
    require(actual_seq_qlen and actual_seq_kvlen, "TND takes both lists of lengths")
    assert actual_seq_qlen is not None
    assert actual_seq_kvlen is not None
    require(len(actual_seq_qlen) == len(actual_seq_kvlen) <= 1024, "at most 1024 sequences")
    query_lens = _from_sums("actual_seq_qlen", actual_seq_qlen, query.shape[0])
    kv_lens = _from_sums("actual_seq_kvlen", actual_seq_kvlen, key.shape[0])
    require(atten_mask is None or atten_mask.dtype != torch.int8, "the mask is bool or uint8")
    window = _window(sparse_mode, atten_mask, pre_tockens, next_tockens)
    keys, values = (list(tensor.split(kv_lens)) for tensor in (key, value))
    out = _attend(query, keys, values, query_lens, scale, window)
    statistics = poison(query.shape[0], head_num, 8, dtype=torch.float32)
    return out, statistics, statistics.clone(), query.new_empty(0), 0, 0, 0


def npu_paged_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    num_kv_heads: int,
    num_heads: int,
    scale_value: float,
    block_table: torch.Tensor,
    context_lens: torch.Tensor,
    out: torch.Tensor,
    *,
    workspace: torch.Tensor | None = None,
) -> None:
    require(workspace is None, "the model knows no workspace")
    require_dtype("query", query, HALF)
    require(
        query.dtype == key_cache.dtype == value_cache.dtype == out.dtype,
        "query, caches and out have one dtype",
    )
    require(query.dim() == 3 and query.shape == out.shape, "query and out are [rows, heads, size]")
    require_dense(query=query, key_cache=key_cache, value_cache=value_cache, out=out)
    rows, heads, size = query.shape
    require(heads == num_heads and num_heads % num_kv_heads == 0, "heads as stated")
    require(key_cache.dim() == 4 and key_cache.shape == value_cache.shape, "caches are 4-D")
    block_size = key_cache.shape[1]
    require(key_cache.shape[2:] == (num_kv_heads, size), "[blocks, tokens, heads, size]")
    require(size <= 256 and block_size * size <= 16384, "size <= 256, block size * size <= 16384")
    require(rows <= 8192, "at most 8192 rows")
    require_dtype("context_lens", context_lens, (torch.int32,))
    require(context_lens.shape == (rows,), "one query token for each sequence")
    kv_lens = context_lens.tolist()
    keys, values = (_from_pages(cache, block_table, kv_lens) for cache in (key_cache, value_cache))
    out.copy_(_attend(query, keys, values, [1] * rows, scale_value, None))


def _from_sums(name: str, sums: list[int], total: int) -> list[int]:
    """Lengths from running sums that end at `total`."""
    lengths = [end - start for start, end in pairwise([0, *sums])]
    require(all(length >= 0 for length in lengths), f"{name} does not fall: {sums}")
    require(sums[-1] == total, f"{name} ends at {sums[-1]}, there are {total} tokens")
    return lengths


def _from_pages(
    cache: torch.Tensor, block_table: torch.Tensor, lengths: list[int]
) -> list[torch.Tensor]:
    """The tokens of each sequence: cache is [blocks, tokens, heads, size]."""
    require(block_table.dim() == 2, "block_table has two dimensions")
    require_dtype("block_table", block_table, (torch.int32,))
    require_dense(block_table=block_table)
    require(block_table.shape[0] == len(lengths), "a row of the block table for each sequence")
    blocks, tokens = cache.shape[:2]
    pages = []
    for row, length in zip(block_table.tolist(), lengths, strict=True):
        needed = -(-length // tokens)
        require(length >= 0 and needed <= len(row), f"{length} tokens fit in {len(row)} blocks")
        used = row[:needed]
        require(all(0 <= block < blocks for block in used), "blocks lie within the cache")
        pages.append(cache[used].flatten(0, 1)[:length])
    return pages


def _window(
    sparse_mode: int, mask: torch.Tensor | None, before: int, after: int
) -> tuple[int, int] | None:
    """How many tokens before and after its own a query sees; None: all."""
    require(sparse_mode in (0, 3, 4), f"sparse mode {sparse_mode} is 0, 3 or 4")
    if sparse_mode == 0:
        require(mask is None, "sparse mode 0 takes no mask with TND")
        return None
    require(mask is not None, f"sparse mode {sparse_mode} takes a mask")
    assert mask is not None
    require(mask.dtype in (torch.bool, torch.int8, torch.uint8), f"a mask is not {mask.dtype}")
    require(mask.shape == MASK.shape, f"the mask is {tuple(MASK.shape)}")
    require(torch.equal(mask.bool(), MASK), "the mask masks what is above the diagonal")
    if sparse_mode == 3:
        return INT_MAX, 0
    require(before >= 0 and after == 0, "the band ends at the query's own token")
    return before, after


def _attend(
    query: torch.Tensor,
    keys: list[torch.Tensor],
    values: list[torch.Tensor],
    query_lens: list[int],
    scale: float,
    window: tuple[int, int] | None,
) -> torch.Tensor:
    """Attention of each sequence alone; the last query token stands at the last key."""
    parts = []
    rows = zip(query.split(query_lens), keys, values, strict=True)
    for q, k, v in rows:
        seen = torch.ones(q.shape[0], k.shape[0], dtype=torch.bool)
        if window is not None:
            require(q.shape[0] <= k.shape[0], "a sequence has at least as many keys as queries")
            at = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
            other = torch.arange(k.shape[0])
            seen = (other >= at - window[0]) & (other <= at + window[1])
        heads = [
            tensor.double().repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(0, 1)
            for tensor in (k, v)
        ]
        scores = q.double().transpose(0, 1) @ heads[0].transpose(1, 2) * scale
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        parts.append((weights @ heads[1]).transpose(0, 1))
    return torch.cat(parts).to(query.dtype)
