"""Decoding with multi-head latent attention by FlagGems' kernel, without a word of vLLM.

FlagGems' function around the kernel fixes the scale at ``1 / sqrt(d)`` of the cache's entries,
which no model has; the kernel itself takes any.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_flaggems import library
from vllm_fl_flaggems.impl.limits import check_cache

#: Elements of an entry of the cache: a latent vector and a rotated key. Powers of two, both.
RANK, ROTARY = 512, 64
#: Major compute capability -> (heads of one program, stages), as FlagGems chooses them.
BLOCKS = {9: (64, 3), 8: (32, 2)}
KEYS_OF_A_STEP = 64


@dataclass
class LatentAttention:
    """What a layer computes: all heads share one key, whose first part is the value as well.

    Attributes:
        scale: of the products of query and key.
    """

    scale: float
    _kernel: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        public = library.function("flash_mla")
        details = importlib.import_module("flag_gems.fused.flash_mla")
        if public.__module__ != details.__name__:
            raise library.FlagGemsUnavailable(f"{public.__module__} has a kernel of its own")
        self._kernel = details.flash_mla_attn_kernel
        major, _ = torch.cuda.get_device_capability()
        if major not in BLOCKS:
            raise library.FlagGemsUnavailable(
                f"its MLA kernel has no configuration for compute capability {major}.x, only for "
                f"{', '.join(f'{known}.x' for known in BLOCKS)}"
            )
        self._heads, self._stages = BLOCKS[major]

    def __call__(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        """Attend with one new token per request.

        Args:
            query: [requests, H, RANK + ROTARY], float16 or bfloat16.
            cache: [blocks, block size, RANK + ROTARY].
            block_table: [requests, blocks], int32.
            lengths: [requests], int32: entries of each request, the new one included.

        Returns:
            [requests, H, RANK]: weighted sums of latent vectors.

        Raises:
            OpNotSupported: the blocks of the cache do not lie behind each other, or it has more
                elements than the kernel indexes.
        """
        requests, heads, _ = query.shape
        blocks, block_size, _ = cache.shape
        if cache.stride(0) != block_size * cache.stride(1) or cache.stride(2) != 1:
            raise OpNotSupported(f"a cache of strides {cache.stride()}")
        check_cache(blocks, cache.stride(0))
        query = query.contiguous()
        output = query.new_empty((requests, heads, RANK))
        self._kernel[(-(-heads // self._heads), requests)](
            query,
            cache,
            block_table,
            lengths,
            output,
            self.scale,
            heads,
            query.stride(0),
            query.stride(1),
            cache.stride(1),
            block_table.stride(0),
            output.stride(0),
            output.stride(1),
            output.stride(2),
            BLOCK_H=self._heads,
            BLOCK_N=KEYS_OF_A_STEP,
            PAGE_SIZE=block_size,
            HEAD_DIM_V=RANK,
            HEAD_DIM=RANK + ROTARY,
            num_warps=8,
            num_stages=self._stages,
        )
        return output
