"""What the comparisons found, and which calls are compared."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sampling:
    """The first calls of each layer, and then every n-th (0: none)."""

    first: int = 8
    every: int = 100

    def __str__(self) -> str:
        then = f" and every {self.every}th" if self.every else ""
        return f"the first {self.first} calls of each layer{then}"

    def due(self, call: int) -> bool:
        """Is this call (the first is 1) compared?"""
        return call <= self.first or (bool(self.every) and call % self.every == 0)


@dataclass(frozen=True)
class Deviation:
    """How far two results of one call were apart.

    Attributes:
        call: number of the call, from 1, of this layer (of this operator, where the layer is
            not known).
        ulp: the largest difference, in units of the last place; infinity where one is not
            finite, or where shapes or dtypes differ.
        tolerance: what two implementations that keep the contract may differ by.
        result: which of the operator's results, from 0.
        arguments: name, shape and dtype of each tensor.
        note: what ulp cannot say: ``shape (2, 4), beside (2, 8)``.
    """

    call: int
    ulp: float
    tolerance: float
    result: int
    arguments: str
    note: str = ""

    @property
    def exceeds(self) -> bool:
        return self.ulp > self.tolerance

    def __str__(self) -> str:
        what = self.note or f"{self.ulp:.3g} ulp apart (tolerance {self.tolerance:g})"
        return f"{what} in result {self.result} of call {self.call}: {self.arguments}"

    def as_dict(self) -> dict[str, Any]:
        # JSON knows no infinity.
        return {**asdict(self), "ulp": self.ulp if math.isfinite(self.ulp) else "inf"}


@dataclass
class Row:
    """One operator in one layer.

    Attributes:
        beside: impl_id of the shadow.
        mode: as in the report: ``eager``, ``stock`` or ``opaque``.
        layer: qualified name in the model; "" where it is not known.
        compared: number of calls that were compared.
        first: the first call beyond the tolerance.
        largest: the call with the largest difference, within the tolerance or not.
        order: 1 for the row that went beyond its tolerance first in this process, and so on; 0
            for those that never did.
    """

    op: str
    impl_id: str
    beside: str
    mode: str
    layer: str
    compared: int = 0
    first: Deviation | None = None
    largest: Deviation | None = None
    order: int = 0

    def add(self, found: Deviation) -> bool:
        """Take a comparison in; True if it is the first beyond the tolerance."""
        self.compared += 1
        if self.largest is None or found.ulp > self.largest.ulp:
            self.largest = found
        if self.first is not None or not found.exceeds:
            return False
        self.first = found
        return True

    def __str__(self) -> str:
        where = self.layer or f"an unknown layer ({self.mode})"
        return f"{self.op} in {where}: {self.impl_id} and {self.beside} are {self.first}"

    def as_dict(self) -> dict[str, Any]:
        seen = {name: getattr(self, name) for name in ("first", "largest")}
        return {**asdict(self), **{k: d.as_dict() if d else None for k, d in seen.items()}}
