"""Checks that a compiled operator takes what its adapter passes."""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_dispatch import ContractError

#: torch.ops._C operator -> types of the arguments that the adapters pass. ``Tensor?`` also
#: accepts an operator that takes no None: the adapter then declines such calls.
EXPECTED: dict[str, tuple[str, ...]] = {
    "silu_and_mul": ("Tensor", "Tensor"),
    "gelu_and_mul": ("Tensor", "Tensor"),
    "gelu_tanh_and_mul": ("Tensor", "Tensor"),
    "rms_norm": ("Tensor", "Tensor", "Tensor?", "float"),
    "fused_add_rms_norm": ("Tensor", "Tensor", "Tensor?", "float"),
    "rotary_embedding": ("Tensor", "Tensor", "Tensor?", "int", "Tensor", "bool"),
}


def compiled_operator(name: str) -> Any:
    """The overload of ``torch.ops._C.<name>``, checked.

    Raises:
        ContractError: the operator is missing, or takes other arguments; shows both schemas.
    """
    packet = getattr(torch.ops._C, name, None)
    if packet is None:
        raise ContractError(f"the installed vLLM has no compiled operator _C::{name}")
    overload = packet.default
    expected = EXPECTED[name]
    arguments = overload._schema.arguments
    found = tuple(
        str(argument.type).replace("Optional[Tensor]", "Tensor?") for argument in arguments
    )
    needed = len([a for a in arguments if not a.has_default_value()])
    fits = needed <= len(expected) <= len(found) and all(
        have == want or (want == "Tensor?" and have == "Tensor")
        for have, want in zip(found, expected, strict=False)
    )
    if not fits:
        raise ContractError(
            f"_C::{name} takes other arguments than its adapter passes\n"
            f"  expected: ({', '.join(expected)})\n"
            f"  found:    {overload._schema}"
        )
    return overload


def takes_none(overload: Any, position: int) -> bool:
    """May the argument at this position be None?"""
    return str(overload._schema.arguments[position].type).startswith("Optional")
