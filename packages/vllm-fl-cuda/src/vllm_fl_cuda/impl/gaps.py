"""Tensors beside the rows, whose elements the kernels take for adjacent: weights, biases, maps."""

from __future__ import annotations

import torch


def without_gaps(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The tensor itself where it is contiguous, else a contiguous copy; None stays None."""
    return None if tensor is None else tensor.contiguous()
