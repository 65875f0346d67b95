"""The calls of one case: other numbers each time, so that what was kept of an earlier one shows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops.cases import Case, Maker

SEEDS = (0, 1)
#: Elements of all tensors up to which a case makes its third call: larger ones would not tell more.
FEW = 2**16


@dataclass(frozen=True)
class Arguments:
    """One call of a case.

    Attributes:
        seed: of its numbers.
        changed: names of arguments that the call before had as well, with other numbers.
    """

    seed: int
    args: tuple[Any, ...]
    options: dict[str, Any]
    changed: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        return sum(v.numel() for v in self.args if isinstance(v, torch.Tensor))


def calls(spec: OpSpec, impl: OpImpl, case: Case, device: str) -> Iterator[Arguments]:
    """Each set of numbers in new tensors; then weights and tables with other numbers in place, as
    where a model's weights are reloaded.

    Raises:
        MemoryError, RuntimeError: a call cannot be made.
    """
    for seed in SEEDS:
        made = _made(case, device, seed)
        yield made
    names = positional_names(spec)
    own = {*(spec.rows or spec.data), *impl.mutates}
    if not case.small or made.numel > FEW:
        return
    again = _made(case, device, SEEDS[0])
    named = dict(zip(names, made.args, strict=False), **made.options)
    changed = tuple(name for name, v in named.items() if name not in own and _has_numbers(v))
    if changed:
        args = [
            named[name].copy_(value) if name in changed else value
            for name, value in zip(names, again.args, strict=False)
        ]
        options = {
            name: named[name].copy_(value) if name in changed else value
            for name, value in again.options.items()
        }
        yield Arguments(again.seed, tuple(args), options, changed)


def _made(case: Case, device: str, seed: int) -> Arguments:
    maker = Maker(device, seed)
    return Arguments(seed, case.make(maker), case.options(maker))


def _has_numbers(value: Any) -> bool:
    """Not indices: they may be the same in each call."""
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.numel() > 0
