"""The paged cache as vLLM hands it over, and as the kernels want it: keys and values each
contiguous, [blocks, block size, heads, head size]."""

from __future__ import annotations

from functools import cached_property

import torch

from vllm_fl_ascend.impl.attention_plan import Plan


def split_cache(
    cache: torch.Tensor, kv_heads: int, head_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the keys and of the values of one layer.

    Args:
        cache: [2, blocks, block size, heads, head size] (vLLM before 0.29), or
            [blocks, 2, block size, heads * head size] with keys and values in planes of their
            own (since 0.29).

    Returns:
        (keys, values), each [blocks, block size, heads, head size].

    Raises:
        ValueError: another shape, or planes that are not contiguous: the kernels would write to
            a copy.
    """
    if cache.dim() == 5 and cache.shape[0] == 2:
        keys, values = cache.unbind(0)
    elif cache.dim() == 4 and cache.shape[1] == 2:
        keys, values = cache.unbind(1)
    else:
        keys = values = cache[:0]
    row = (kv_heads, head_size)
    flat = keys.dim() == 3 and keys.shape[2] == kv_heads * head_size
    if not flat and keys.shape[2:] != row:
        raise ValueError(
            f"a cache of shape {tuple(cache.shape)} was found; accepted: "
            f"(2, blocks, block size, {kv_heads}, {head_size}) and "
            f"(blocks, 2, block size, {kv_heads * head_size})"
        )
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError(
            f"keys and values of a cache with strides {cache.stride()} are not contiguous; "
            "accepted: the layouts that the attention backend asks vLLM for (LHBNC)"
        )
    return keys.view(*keys.shape[:2], *row), values.view(*values.shape[:2], *row)


class Pages:
    """Where the requests of a batch are in the cache. Shared by the layers of a step.

    Args:
        plan: the lengths of the batch.
        block_table: [rows, blocks], of any integer dtype, on the device.
        slots: [tokens or more], of any integer dtype, on the device.
    """

    def __init__(self, plan: Plan, block_table: torch.Tensor, slots: torch.Tensor) -> None:
        self.plan = plan
        count = len(plan.requests)
        if plan.requests == tuple(range(count)):
            rows = block_table[:count]
        else:
            rows = block_table[torch.tensor(plan.requests, device=block_table.device)]
        #: [requests, blocks] int32
        self.block_table = rows.to(torch.int32).contiguous()
        #: [tokens] int32; padding is left out: what a kernel does with slot -1 is not documented.
        self.slots = slots[: plan.tokens].to(torch.int32).contiguous()
        self._gathered: torch.Tensor | None = None

    @cached_property
    def context_lens(self) -> torch.Tensor:
        """[requests] int32 on the host, where npu_paged_attention reads it."""
        return torch.tensor(self.plan.kv_lens, dtype=torch.int32)

    def gathered(self, block_size: int) -> torch.Tensor:
        """[tokens in the cache] int64: the slot of every token of every request, in order."""
        if self._gathered is None:
            lengths, total = torch.tensor(self.plan.kv_lens), self.plan.kv_ends[-1]
            rows = torch.repeat_interleave(
                torch.arange(len(self.plan.kv_lens)), lengths, output_size=total
            )
            positions = torch.arange(total) - (lengths.cumsum(0) - lengths)[rows]
            device = self.block_table.device
            rows, positions = (tensor.to(device, non_blocking=True) for tensor in (rows, positions))
            blocks = self.block_table[rows, positions // block_size].long()
            self._gathered = blocks * block_size + positions % block_size
        return self._gathered
