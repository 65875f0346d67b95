"""How conformance cases are written: a name, and a function that makes the arguments.

The cases of a family stand beside its contracts, in ``<family>_cases.py``, with the float64
oracles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from vllm_fl_dispatch.types import Query

#: The dtypes that every floating-point contract covers, by name.
DTYPES = ("float32", "float16", "bfloat16")
HALF = ("float16", "bfloat16")
#: More than one dimension of a grid of blocks may have, or 16 bits count.
MANY_ROWS = 2**16 + 3


@dataclass(frozen=True)
class Case:
    """One call to compare with the oracle.

    Attributes:
        name: readable and unique within the operator: ``bfloat16-3d``.
        make: (Maker) -> positional arguments.
        options: (Maker) -> keyword-only options of the contract.
        dtype: the dtype of the data, by name; tolerances are looked up under it.
        heavy: reserves gigabytes of address space; most of it is never touched.
        rows: how many its data have, where they are above a thousand: what interprets kernels, an
            instance of the program for each row, does well to leave these cases out.
    """

    name: str
    make: Callable[[Maker], tuple[Any, ...]]
    options: Callable[[Maker], dict[str, Any]] = field(default=lambda m: {})
    dtype: str = "float32"
    heavy: bool = False
    rows: int = 0

    @property
    def small(self) -> bool:
        """Neither `heavy` nor of many rows."""
        return not self.heavy and not self.rows


def rows(query: Query, width: int, *, count: int = 2) -> torch.Tensor:
    """A tiny input for a query: [count, width], of its dtype and on its device."""
    import torch

    dtype = query.dtype or torch.get_default_dtype()
    return torch.ones(count, width, dtype=dtype, device=query.device_type or "cpu")


class Maker:
    """Makes reproducible tensors on one device; another seed makes other numbers."""

    def __init__(self, device: str = "cpu", seed: int = 0) -> None:
        import torch

        self.torch = torch
        self.device = device
        self.seed = seed
        # Drawn on the CPU: the same numbers on every device.
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: str = "float32", scale: float = 1.0) -> torch.Tensor:
        """Normal numbers times `scale`, of the given shape and dtype."""
        values = self.torch.randn(*shape, generator=self._generator) * scale
        return self.to(values, dtype)

    def of(self, values: Iterable[float], dtype: str = "float32") -> torch.Tensor:
        """A 1-D tensor of given values."""
        return self.to(self.torch.tensor(list(values), dtype=self.torch.float64), dtype)

    def integers(self, *values: int, dtype: str = "int64") -> torch.Tensor:
        """A 1-D tensor of integers."""
        kind = getattr(self.torch, dtype)
        return self.torch.tensor(values, dtype=kind, device=self.device)

    def separated(self, count: int, width: int, low: float, high: float) -> torch.Tensor:
        """[count, width] float32: each row has `width` evenly spaced numbers in random order.

        Choices among them do not depend on rounding.
        """
        ladder = self.torch.linspace(low, high, width)
        order = [self.torch.randperm(width, generator=self._generator) for _ in range(count)]
        values = [ladder[each] for each in order] or [ladder[:0].reshape(0, width)]
        return self.torch.stack(values).reshape(count, width).to(self.device)

    def far_rows(self, width: int, *, dtype: str) -> torch.Tensor:
        """[3, width] normal numbers, of which the last row begins beyond 2**31 elements."""
        stride = 2**30 + 64
        wide = self.torch.empty(
            2 * stride + width, dtype=getattr(self.torch, dtype), device=self.device
        )
        view = wide.as_strided((3, width), (stride, 1))
        return view.copy_(self.normal(3, width, dtype=dtype))

    def to(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        """The same numbers in another dtype, on this device."""
        return tensor.to(getattr(self.torch, dtype)).to(self.device)
