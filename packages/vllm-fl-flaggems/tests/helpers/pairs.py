"""Fewer combinations of parameters than all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any


def pairwise(*axes: Sequence[Any]) -> set[tuple[Any, ...]]:
    """Combinations of one value of each axis in which any two values of different axes meet.

    A fault that takes two parameters to show is found by these, one that takes three may not be.
    Always the same: of all combinations that with most pairs not met yet comes next.
    """
    everything = list(itertools.product(*axes))
    unmet = {pair for each in everything for pair in _pairs(each)}
    chosen = set()
    while unmet:
        best = max(everything, key=lambda each: len(unmet & _pairs(each)))
        unmet -= _pairs(best)
        chosen.add(best)
    return chosen


def _pairs(combination: tuple[Any, ...]) -> set[Any]:
    return set(itertools.combinations(enumerate(combination), 2))
