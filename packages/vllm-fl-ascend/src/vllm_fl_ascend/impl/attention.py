"""Attention of a batch, through the kernels of torch_npu.

Two families of kernels. Which of them serves a layer is known when the layer is built:

* `Fused`: npu_fused_infer_attention_score for everything. Reads pages of the cache itself.
  bfloat16, heads of 64 or 128, blocks of 128 to 512 tokens.
* `Separate`: for every other shape. Decoding reads pages through _npu_paged_attention where
  its limits and the absence of a window allow; everything else gathers the pages first and calls
  npu_fusion_attention.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_fl_ascend.impl.attention_mask import compressed_mask
from vllm_fl_ascend.impl.attention_plan import AttentionState, Plan
from vllm_fl_ascend.impl.kv_cache import Pages
from vllm_fl_ascend.library import operator

DTYPES = (torch.float16, torch.bfloat16)

#: Sparse modes of the kernels. Both read the compressed mask at the last query and the last key.
ALL, CAUSAL, BAND = 0, 3, 4
UNLIMITED = 2**31 - 1

FUSED_HEAD_SIZES = (64, 128)
FUSED_BLOCK_SIZES = (128, 256, 384, 512)
#: heads * head size of a page as the fused kernel takes it.
FUSED_MAX_ROW = 65535
#: Of npu_fusion_attention.
MAX_HEAD_SIZE = 768
#: Of _npu_paged_attention: head size, and head size * block size.
PAGED_MAX_HEAD_SIZE = 256
PAGED_MAX_PAGE = 16384
#: Sequences in a batch.
FUSED_MAX_REQUESTS = 4096
SEPARATE_MAX_REQUESTS = 1024


@dataclass(frozen=True)
class Shape:
    """What a layer computes.

    Attributes:
        scale: of the products of query and key.
        window: a token attends to the last `window` tokens, itself included; None: to all.
    """

    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None = None

    def sparse(self, causal: bool) -> tuple[int, int]:
        """(sparse mode, tokens before its own that a token attends to)."""
        if not causal:
            return ALL, UNLIMITED
        if self.window is None:
            return CAUSAL, UNLIMITED
        return BAND, self.window - 1


def is_fused(dtype: torch.dtype, head_size: int, kv_heads: int, block_size: int | None) -> bool:
    """Can `Fused` serve it? `block_size` None: there is no cache."""
    return (
        dtype is torch.bfloat16
        and head_size in FUSED_HEAD_SIZES
        and block_size in (None, *FUSED_BLOCK_SIZES)
        and kv_heads * head_size <= FUSED_MAX_ROW
    )


def objection(dtype: torch.dtype, head_size: int) -> str | None:
    """Why neither family serves it; None: one of them does."""
    if dtype not in DTYPES:
        return f"dtype {dtype} is not one of {', '.join(map(str, DTYPES))}"
    if head_size > MAX_HEAD_SIZE:
        return f"head size {head_size} is more than {MAX_HEAD_SIZE}"
    return None


def block_sizes(dtype: torch.dtype, head_size: int) -> list[int]:
    """Sizes of the blocks of a cache, the preferred one first."""
    if dtype is torch.bfloat16 and head_size in FUSED_HEAD_SIZES:
        return list(FUSED_BLOCK_SIZES)
    fitting = [size for size in (128, 64, 32, 16) if size * head_size <= PAGED_MAX_PAGE]
    return fitting if head_size <= PAGED_MAX_HEAD_SIZE and fitting else [128]


def write_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    pages: Pages,
) -> None:
    """Store the new keys and values of a batch.

    Args:
        key, value: [tokens or more, heads, head size], of the dtype of the caches.
        key_cache, value_cache: [blocks, block size, heads, head size], contiguous.
    """
    tokens = pages.plan.tokens
    operator("atb::_npu_reshape_and_cache")(
        key=key[:tokens].contiguous(),
        value=value[:tokens].contiguous(),
        key_cache=key_cache,
        value_cache=value_cache,
        slot_indices=pages.slots,
    )


class Fused:
    """npu_fused_infer_attention_score."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._op = operator("npu::npu_fused_infer_attention_score")

    def over_batch(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: Plan,
        *,
        causal: bool = True,
    ) -> torch.Tensor:
        """Attend to the keys of the batch itself: [tokens, heads, head size] each."""
        return self._call(query, key, value, plan.query_ends, plan.query_ends, causal=causal)

    def over_cache(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        pages: Pages,
    ) -> torch.Tensor:
        """Attend to the keys in the cache, the new ones included."""
        plan = pages.plan
        return self._call(
            query,
            key_cache.flatten(2),
            value_cache.flatten(2),
            plan.query_ends,
            # Not running sums: with a block table the kernel wants the length of each sequence.
            plan.kv_lens,
            block_table=pages.block_table,
            block_size=key_cache.shape[1],
        )

    def _call(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        query_ends: list[int],
        kv_lens: list[int],
        *,
        causal: bool = True,
        block_table: torch.Tensor | None = None,
        block_size: int = 0,
    ) -> torch.Tensor:
        mode, before = self._shape.sparse(causal)
        out: torch.Tensor = self._op(
            query=query.contiguous(),
            key=key.contiguous(),
            value=value.contiguous(),
            # Mode 0 refuses a mask, the others refuse to go without.
            atten_mask=None if mode == ALL else compressed_mask(query.device),
            actual_seq_lengths=query_ends,
            actual_seq_lengths_kv=kv_lens,
            block_table=block_table,
            num_heads=self._shape.heads,
            num_key_value_heads=self._shape.kv_heads,
            scale=self._shape.scale,
            pre_tokens=before,
            next_tokens=UNLIMITED if mode == ALL else 0,
            input_layout="TND",
            sparse_mode=mode,
            block_size=block_size,
        )[0]
        return out


class Separate:
    """_npu_paged_attention for decoding, npu_fusion_attention for the rest."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._dense = operator("npu::npu_fusion_attention")
        self._paged = operator("atb::_npu_paged_attention")

    def over_batch(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: Plan,
        *,
        causal: bool = True,
    ) -> torch.Tensor:
        """See `Fused.over_batch`."""
        return self._call(query, key, value, plan.query_ends, plan.query_ends, causal=causal)

    def over_cache(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        pages: Pages,
    ) -> torch.Tensor:
        """See `Fused.over_cache`."""
        if pages.plan.state is AttentionState.DECODE and self._reads_pages(key_cache.shape[1]):
            out = torch.empty_like(query)
            self._paged(
                query=query.contiguous(),
                key_cache=key_cache,
                value_cache=value_cache,
                num_kv_heads=self._shape.kv_heads,
                num_heads=self._shape.heads,
                scale_value=self._shape.scale,
                block_table=pages.block_table,
                context_lens=pages.context_lens,
                out=out,
            )
            return out
        slots = pages.gathered(key_cache.shape[1])
        key, value = (
            cache.flatten(0, 1).index_select(0, slots) for cache in (key_cache, value_cache)
        )
        return self._call(query, key, value, pages.plan.query_ends, pages.plan.kv_ends)

    def _reads_pages(self, block_size: int) -> bool:
        """Does the paged kernel serve this layer? It knows no window."""
        size = self._shape.head_size
        return (
            self._shape.window is None
            and size <= PAGED_MAX_HEAD_SIZE
            and size * block_size <= PAGED_MAX_PAGE
        )

    def _call(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        query_ends: list[int],
        kv_ends: list[int],
        *,
        causal: bool = True,
    ) -> torch.Tensor:
        mode, before = self._shape.sparse(causal)
        out: torch.Tensor = self._dense(
            query=query.contiguous(),
            key=key.contiguous(),
            value=value.contiguous(),
            head_num=self._shape.heads,
            input_layout="TND",
            atten_mask=None if mode == ALL else compressed_mask(query.device),
            scale=self._shape.scale,
            pre_tockens=before,
            next_tockens=UNLIMITED if mode == ALL else 0,
            actual_seq_qlen=query_ends,
            actual_seq_kvlen=kv_ends,
            sparse_mode=mode,
        )[0]
        return out
