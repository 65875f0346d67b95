"""Did an implementation write, or return, memory that it must not, or change the process?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.testing.state import State

#: Storages above this are compared only where the arguments lie.
MAX_STORAGE_BYTES = 2**26


class Guard:
    """Remembers the memory of a call's arguments, and of the tensors that they are views of; and
    the state of the process."""

    def __init__(
        self,
        spec: OpSpec,
        impl: OpImpl,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        device: str,
    ) -> None:
        named = dict(zip(positional_names(spec), args, strict=False), **options)
        self._tensors = {name: v for name, v in named.items() if isinstance(v, torch.Tensor)}
        self._impl = impl
        self._parents: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._copies = {
            name: tensor.clone()
            for name, tensor in self._tensors.items()
            if name not in impl.mutates
        }
        for name, tensor in self._tensors.items():
            self._remember(tensor, writable=name in impl.mutates)
        self._state = State(device)

    def _remember(self, tensor: torch.Tensor, *, writable: bool) -> None:
        storage = tensor.untyped_storage()
        if not 0 < storage.nbytes() <= MAX_STORAGE_BYTES:
            return
        key = storage.data_ptr()
        if key not in self._parents:
            memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            mask = torch.zeros_like(memory, dtype=torch.bool)
            self._parents[key] = (memory, memory.clone(), mask)
        if writable:
            self._parents[key][2][_bytes_of(tensor)] = True

    def violations(self, results: Iterable[Any]) -> list[str]:
        """What was done wrong, in words."""
        state = self._state.changes()
        problems = [
            f"changed its argument {name}"
            for name, before in self._copies.items()
            if not _same_bits(self._tensors[name], before)
        ]
        for memory, before, writable in self._parents.values():
            changed = (memory != before) & ~writable
            if not problems and bool(changed.any()):
                problems.append("wrote outside its arguments, into a tensor they are views of")
        return problems + self._aliases(results) + state

    def _aliases(self, results: Iterable[Any]) -> list[str]:
        problems, seen = [], set()
        for number, result in enumerate(results):
            if not isinstance(result, torch.Tensor) or not result.numel():
                continue
            own = result.untyped_storage().data_ptr()
            names = [
                name
                for name, tensor in self._tensors.items()
                if tensor.untyped_storage().data_ptr() == own
            ]
            donated = [name for name in names if name in self._impl.mutates]
            if names and not donated:
                problems.append(f"result {number} is memory of its argument {names[0]}")
            elif not donated and not result.is_contiguous():
                problems.append(f"result {number} is not contiguous: strides {result.stride()}")
            if own in seen and not names:
                problems.append(f"result {number} shares its memory with another result")
            seen.add(own)
        return problems


class Kept:
    """Results of earlier calls, which stay as they were."""

    def __init__(self) -> None:
        self._results: list[tuple[int, torch.Tensor, torch.Tensor]] = []

    def problems(self, results: Iterable[Any]) -> list[str]:
        """Which results of earlier calls are others now; these ones are kept as well."""
        changed = {
            number for number, result, before in self._results if not _same_bits(result, before)
        }
        self._results += [
            (number, result, result.clone())
            for number, result in enumerate(results)
            if isinstance(result, torch.Tensor)
        ]
        return [
            f"this call changed result {number} of an earlier one: return new memory"
            for number in sorted(changed)
        ]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Indices of the bytes of a tensor in its storage."""
    size = tensor.element_size()
    total = tensor.untyped_storage().nbytes() // size
    elements = torch.arange(total, device=tensor.device).as_strided(
        tensor.size(), tensor.stride(), tensor.storage_offset()
    )
    first = elements.reshape(-1, 1) * size
    return (first + torch.arange(size, device=tensor.device)).flatten()


def _same_bits(found: torch.Tensor, before: torch.Tensor) -> bool:
    """Equal, where NaN equals itself."""
    if not found.dtype.is_floating_point:
        return torch.equal(found, before)
    return bool(((found == before) | (found.isnan() & before.isnan())).all())
