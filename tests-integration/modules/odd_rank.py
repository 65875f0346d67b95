"""A vendor whose kernel is there for the second worker of a group only."""

from __future__ import annotations

import multiprocessing

import torch

from vllm_fl_dispatch import BackendImplKind, OpImpl, Registrar, Verdict, hookimpl


def available() -> Verdict:
    """Is this the process that vLLM starts for rank 1?"""
    name = multiprocessing.current_process().name
    return Verdict(name.endswith("-1"), f"{name} is not rank 1")


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As the contract says."""
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@hookimpl
def vllm_fl_register_ops(registrar: Registrar) -> None:
    """One operator."""
    registrar.add(
        OpImpl(
            "silu_and_mul",
            "vendor.odd",
            BackendImplKind.VENDOR,
            silu_and_mul,
            "odd",
            available=available,
        )
    )
