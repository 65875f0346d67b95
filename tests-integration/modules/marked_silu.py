"""A vendor whose activation gives half of what it should, as code that a compiler may look into."""

from __future__ import annotations

import torch

from vllm_fl_dispatch import BackendImplKind, OpImpl, Registrar, hookimpl


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """Half of it."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up * 0.5


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """One operator."""
    registrar.add(
        OpImpl(
            "silu_and_mul",
            "vendor.marked",
            BackendImplKind.VENDOR,
            silu_and_mul,
            "marked",
            traceable=True,
        )
    )
