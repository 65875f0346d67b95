"""Attention of a batch of requests over a paged cache, by FlagGems' `flash_attn_varlen_func`.

No word of vLLM here: tensors in, tensors out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_flaggems import library
from vllm_fl_flaggems.impl.limits import check_cache

MAX_HEAD_SIZE = 256


@dataclass(frozen=True)
class Step:
    """One batch.

    Attributes:
        starts: [requests + 1], int32: where the tokens of each request begin, and their end.
        lengths: [requests], int32: keys of each request, the new ones included.
        block_table: [requests, blocks], int32.
        max_new: the largest number of new tokens of a request.
        max_length: the largest length, or more.
    """

    starts: torch.Tensor
    lengths: torch.Tensor
    block_table: torch.Tensor
    max_new: int
    max_length: int


def views(cache: torch.Tensor, head_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as the kernel reads them, [blocks, block size, heads, d], without a copy.

    Args:
        cache: [blocks, heads, block size, 2 d]: the key of a token, then its value. The tokens of a
            block must follow each other, and the blocks likewise (NHD): the kernel knows one stride
            for both.

    Raises:
        OpNotSupported: another layout, or more elements than the kernel indexes.
    """
    blocks, _, block_size, _ = cache.shape
    block, _, token, last = cache.stride()
    if last != 1 or block != block_size * token:
        raise OpNotSupported(
            f"a cache of shape {tuple(cache.shape)} has strides {cache.stride()}: FlagGems' "
            "attention reads the layout NHD only, where the tokens of a block lie behind each other"
        )
    check_cache(blocks, block)
    tokens = cache.transpose(1, 2)
    return tokens[..., :head_size], tokens[..., head_size:]


@dataclass
class Attention:
    """What a layer computes; causal.

    Attributes:
        scale: of the products of query and key.
        window: a token attends to keys less than this many positions away; None: to all.
        softcap: products are limited by ``softcap * tanh(product / softcap)``; 0: they are not.
        alibi_slopes: [H], float32: a product falls by its head's slope per position of distance.
    """

    scale: float
    window: int | None = None
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    _kernel: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._kernel = library.function("flash_attn_varlen_func")
        self._window = (-1, -1) if self.window is None else (self.window - 1, 0)

    def __call__(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        step: Step,
        output: torch.Tensor,
    ) -> torch.Tensor:
        """Attend.

        Args:
            query: [T, H, d], float16 or bfloat16.
            keys, values: of `views`.
            output: [T, H, d], contiguous; overwritten, and returned.
        """
        if self.alibi_slopes is not None and self.alibi_slopes.device != query.device:
            self.alibi_slopes = self.alibi_slopes.to(query.device)
        max_new = step.max_new
        if max_new == 1 and query.shape[0] != step.lengths.shape[0]:
            # The kernel's path for single tokens takes each request for having exactly one.
            max_new = 2
        self._kernel(
            query,
            keys,
            values,
            max_seqlen_q=max_new,
            cu_seqlens_q=step.starts,
            # A bound; as a power of two it is one of few keys of FlagGems' cache of launches.
            max_seqlen_k=1 << max(step.max_length - 1, 0).bit_length(),
            seqused_k=step.lengths,
            softmax_scale=self.scale,
            causal=True,
            window_size=self._window,
            softcap=self.softcap,
            alibi_slopes=self.alibi_slopes,
            block_table=step.block_table,
            out=output,
        )
        return output
