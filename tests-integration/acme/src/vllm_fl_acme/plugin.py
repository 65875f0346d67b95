"""One operator. It is marked: its result is 1.5 times the right one, so that tokens show it."""

from __future__ import annotations

import torch

from vllm_fl_dispatch import BackendImplKind, OpImpl, Registrar, hookimpl

vllm_fl_api = 1
MARK = 1.5


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """`silu_and_mul`, times `MARK`."""
    d = x.shape[-1] // 2
    return torch.nn.functional.silu(x[..., :d]) * x[..., d:] * MARK


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """The one operator of this vendor."""
    registrar.add(
        OpImpl("silu_and_mul", "vendor.acme", BackendImplKind.VENDOR, silu_and_mul, "acme")
    )
