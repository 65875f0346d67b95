"""The mask that the attention kernels take in place of one of the size of the batch."""

from __future__ import annotations

import torch

from vllm_fl_dispatch.locks import ForkLock

#: With a sparse mode the kernels read the mask of any sequence from one of this size.
SIZE = 2048

_made: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
_lock = ForkLock()


def compressed_mask(device: torch.device | str, dtype: torch.dtype = torch.bool) -> torch.Tensor:
    """[2048, 2048], non-zero where a token must not look: above the diagonal. Do not write to it.

    For all prefill, chunked prefill and windows alike; which diagonal a sequence is read at is
    the kernel's sparse mode.

    Args:
        device: one mask is kept for each device and dtype.
        dtype: bool, uint8, or (not for npu_fusion_attention) int8. Never a floating dtype: the
            kernels take no additive mask.

    Raises:
        ValueError: another dtype.
    """
    if dtype not in (torch.bool, torch.uint8, torch.int8):
        raise ValueError(f"a mask of {dtype} is not accepted; accepted: bool, uint8, int8")
    device = torch.device(device)
    with _lock:
        mask = _made.get((device, dtype))
        if mask is None:
            # Usable outside inference mode as well.
            with torch.inference_mode(False):
                mask = torch.ones(SIZE, SIZE, dtype=dtype, device=device).triu_(1)
            # While a graph is traced this is a stand-in that nobody else may get.
            if type(mask) is torch.Tensor:
                _made[device, dtype] = mask
        return mask


def forget_masks() -> None:
    """Free the memory of all masks."""
    with _lock:
        _made.clear()
