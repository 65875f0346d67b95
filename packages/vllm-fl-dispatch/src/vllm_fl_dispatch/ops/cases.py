"""How conformance cases are written: a name, and a function that makes the arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from vllm_fl_dispatch.types import Query

#: The dtypes that every floating-point contract covers, by name.
DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """One call to compare with the oracle.

    Attributes:
        name: readable and unique within the operator: ``bfloat16-3d``.
        make: (Maker) -> positional arguments.
        options: keyword-only options of the contract.
    """

    name: str
    make: Callable[[Maker], tuple[Any, ...]]
    options: dict[str, Any] = field(default_factory=dict)


def rows(query: Query, width: int, *, count: int = 2) -> torch.Tensor:
    """A tiny input for a query: [count, width], of its dtype and on its device."""
    import torch

    dtype = query.dtype or torch.get_default_dtype()
    return torch.ones(count, width, dtype=dtype, device=query.device_type or "cpu")


class Maker:
    """Makes reproducible tensors on one device."""

    def __init__(self, device: str = "cpu", seed: int = 0) -> None:
        import torch

        self.torch = torch
        self.device = device
        # Drawn on the CPU: the same numbers on every device.
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> torch.Tensor:
        """Normal numbers times `scale`, of the given shape and dtype."""
        values = self.torch.randn(*shape, generator=self._generator) * scale
        return values.to(getattr(self.torch, dtype)).to(self.device)

    def of(self, values: Iterable[float], dtype: str = "float32") -> torch.Tensor:
        """A 1-D tensor of given values."""
        return self.torch.tensor(list(values), dtype=getattr(self.torch, dtype)).to(self.device)

    def positions(self, *values: int) -> torch.Tensor:
        """A 1-D int64 tensor."""
        return self.torch.tensor(values, dtype=self.torch.int64, device=self.device)
