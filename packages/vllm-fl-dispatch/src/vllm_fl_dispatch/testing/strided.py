"""Cases once more, each tensor of them in turn with gaps between its elements.

A kernel that takes a weight or a table for contiguous reads other numbers, or beyond the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops.cases import Case, Maker


def strided_cases(spec: OpSpec) -> tuple[Case, ...]:
    """One case for each tensor among the arguments and options of a contract, and each dtype."""
    return _strided_cases(spec.cases, tuple(positional_names(spec)), _tensors(spec))


@cache
def _strided_cases(
    cases: Callable[[], Iterable[Case]] | None, names: tuple[str, ...], tensors: frozenset[str]
) -> tuple[Case, ...]:
    found: dict[tuple[str, str], Case] = {}
    for case in cases() if cases else ():
        missing = {name for name in tensors if (case.dtype, name) not in found}
        if missing and case.small:
            for name in _with_elements(case, names):
                if name in missing:
                    found[case.dtype, name] = _strided(case, names, name)
    return tuple(found.values())


def _tensors(spec: OpSpec) -> frozenset[str]:
    parameters = inspect.signature(spec.contract).parameters.values()
    return frozenset(p.name for p in parameters if "Tensor" in str(p.annotation))


def _with_elements(case: Case, names: tuple[str, ...]) -> list[str]:
    maker = Maker()
    # A case may leave out arguments that have defaults.
    given = [*zip(names, case.make(maker), strict=False), *case.options(maker).items()]
    return [
        name
        for name, value in given
        if isinstance(value, torch.Tensor) and value.dim() and value.numel()
    ]


def _strided(case: Case, names: tuple[str, ...], name: str) -> Case:
    def make(maker: Maker) -> tuple[Any, ...]:
        arguments = zip(names, case.make(maker), strict=False)
        return tuple(_gapped(value) if key == name else value for key, value in arguments)

    def options(maker: Maker) -> dict[str, Any]:
        given = case.options(maker).items()
        return {key: _gapped(value) if key == name else value for key, value in given}

    return replace(case, name=f"{case.name}-strided-{name}", make=make, options=options)


def _gapped(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, every second element of twice as wide a tensor."""
    wide = tensor.new_empty(*tensor.shape[:-1], 2 * tensor.shape[-1])
    return wide[..., ::2].copy_(tensor)
