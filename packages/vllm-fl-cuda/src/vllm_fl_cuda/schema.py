"""Checks that a compiled operator takes what its adapter passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vllm_fl_cuda.probe import import_extensions
from vllm_fl_dispatch import ContractError

#: ``library::operator`` -> types of the arguments that the adapters pass. ``Tensor?`` also
#: accepts an operator that takes no None: the adapter then declines such calls. Arguments behind
#: these must have a default or accept None.
EXPECTED: dict[str, tuple[str, ...]] = {
    "_C::silu_and_mul": ("Tensor", "Tensor"),
    "_C::gelu_and_mul": ("Tensor", "Tensor"),
    "_C::gelu_tanh_and_mul": ("Tensor", "Tensor"),
    "_C::silu_and_mul_with_clamp": ("Tensor", "Tensor", "float"),
    "_C::rms_norm": ("Tensor", "Tensor", "Tensor?", "float"),
    "_C::fused_add_rms_norm": ("Tensor", "Tensor", "Tensor?", "float"),
    "_C::rotary_embedding": ("Tensor", "Tensor", "Tensor?", "int", "Tensor", "bool"),
    "_C::dynamic_scaled_int8_quant": ("Tensor", "Tensor", "Tensor", "Tensor?"),
    "_moe_C::topk_softmax": ("Tensor", "Tensor", "Tensor", "Tensor", "bool"),
    "_moe_C::grouped_topk": ("Tensor", "int", "int", "int", "bool", "float", "Tensor", "int"),
    "_moe_C::moe_sum": ("Tensor", "Tensor"),
    "_moe_C::moe_align_block_size": ("Tensor", "int", "int", "Tensor", "Tensor", "Tensor"),
}


def compiled_operator(name: str) -> Any:
    """The overload of ``library::operator``, checked; imports vLLM's extensions if need be.

    Raises:
        ContractError: the operator is missing, or takes other arguments; shows both schemas.
    """
    packet = _packet(name)
    if packet is None:
        import_extensions()
        packet = _packet(name)
    if packet is None:
        raise ContractError(f"the installed vLLM has no compiled operator {name}")
    overload = packet.default
    expected, arguments = EXPECTED[name], overload._schema.arguments
    found = tuple(map(_type, arguments))
    fits = len(expected) <= len(found) and all(
        have == want or (want == "Tensor?" and have == "Tensor")
        for have, want in zip(found, expected, strict=False)
    )
    rest = arguments[len(expected) :]
    if not fits or not all(_may_be_left_out(argument) for argument in rest):
        raise ContractError(
            f"{name} takes other arguments than its adapter passes\n"
            f"  expected: ({', '.join(expected)})\n"
            f"  found:    {overload._schema}"
        )
    return overload


def _packet(name: str) -> Any:
    library, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, library), operator, None)


def caller(overload: Any, passed: int) -> Callable[..., Any]:
    """The overload as a function of its first `passed` arguments.

    Later releases append arguments, some without a default; these get None.
    """
    rest = overload._schema.arguments[passed:]
    last = max((i + 1 for i, a in enumerate(rest) if not a.has_default_value()), default=0)
    if not last:
        return overload  # type: ignore[no-any-return]  # an OpOverload is a callable
    more = (None,) * last
    return lambda *args: overload(*args, *more)


def takes_none(overload: Any, position: int) -> bool:
    """May the argument at this position be None?"""
    arguments = overload._schema.arguments
    return position < len(arguments) and _type(arguments[position]).endswith("?")


def _type(argument: Any) -> str:
    text = str(argument.type)
    if text.startswith("Optional["):
        return text.removeprefix("Optional[").removesuffix("]") + "?"
    return text


def _may_be_left_out(argument: Any) -> bool:
    return bool(argument.has_default_value()) or _type(argument).endswith("?")
