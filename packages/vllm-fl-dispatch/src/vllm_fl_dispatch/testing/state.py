"""What belongs to the whole process, and not to a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

#: what -> (how to read it, how to set it)
_STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch's random state": (torch.get_rng_state, torch.set_rng_state),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "whether gradients are recorded": (torch.is_grad_enabled, torch.set_grad_enabled),
    "whether algorithms must be deterministic": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
}


class State:
    """Remembers the state of the process, and that of the random numbers of a device."""

    def __init__(self, device: str) -> None:
        # Drawn from, so that seeding as somebody else did before shows.
        torch.rand(())
        self._watched = {**_STATE, **_of_device(device)}
        self._before = {what: read() for what, (read, _) in self._watched.items()}

    def changes(self) -> list[str]:
        """What is another now, in words; it is set back."""
        found = []
        for what, (read, write) in self._watched.items():
            before, now = self._before[what], read()
            if not _equal(before, now):
                write(before)
                values = "" if isinstance(now, torch.Tensor) else f" from {before} to {now}"
                found.append(f"changed {what}{values}")
        return found


def _of_device(name: str) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    device = torch.device(name)
    module: Any = getattr(torch, device.type, None)
    if device.type == "cpu" or not hasattr(module, "get_rng_state"):
        return {}
    return {
        f"the random state of {name}": (
            lambda: module.get_rng_state(device),
            lambda state: module.set_rng_state(state, device),
        )
    }


def _equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)
