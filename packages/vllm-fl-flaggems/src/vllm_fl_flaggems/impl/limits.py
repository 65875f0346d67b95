"""What FlagGems' kernels cannot index: they count elements in 32 bits."""

from __future__ import annotations

import torch

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_flaggems.probe import on_accelerator

INT32_MAX = 2**31 - 1
#: What their loads and stores handle.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def check_extent(x: torch.Tensor) -> None:
    """Raise OpNotSupported unless all elements of a tensor lie within 32 bits of its start."""
    reach = x.numel()
    if not x.is_contiguous():
        reach = max(reach, x.shape[0] * x.stride(0))
    if reach > INT32_MAX:
        raise OpNotSupported(f"{tuple(x.shape)} reaches beyond the 2**31 elements that it indexes")


def check_cache(blocks: int, block: int) -> None:
    """Raise OpNotSupported unless so many blocks of so many elements lie within 32 bits."""
    if blocks * block > INT32_MAX:
        raise OpNotSupported(
            f"a cache of {blocks * block} elements per layer: FlagGems' attention indexes "
            f"{INT32_MAX}; give the cache less memory (--num-gpu-blocks-override "
            f"{INT32_MAX // block}) or let another attention serve"
        )


def on_known_ground(query: Query) -> Verdict:
    """On an accelerator, in float32, float16 or bfloat16, as far as is known."""
    if query.dtype is None or query.dtype in DTYPES:
        return on_accelerator(query)
    return Verdict.no(f"dtype {query.dtype} is none of float32, float16, bfloat16")
