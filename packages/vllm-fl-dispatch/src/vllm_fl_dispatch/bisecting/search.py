"""Which of many things make a test fail: delta debugging, as pure functions.

The test is a question about a set: does it fail if exactly these are on? Source of the algorithm:
Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

Subset = tuple[str, ...]
#: Does the test fail if exactly these are on?
Fails = Callable[[Subset], bool]


@dataclass(frozen=True)
class Culprits:
    """What a search found.

    Attributes:
        sets: each fails by itself, and no member of it can be left out.
        avoid: with these off and all others on the test passes, and each of them is needed for
            that. Of culprits that fail only together it names one.
    """

    sets: tuple[Subset, ...]
    avoid: Subset


def culprits(items: Iterable[str], fails: Fails) -> Culprits:
    """Find everything that makes a test fail.

    Args:
        items: with all on, the test fails.
        fails: with none on, it passes. Asked at most once for each set.
    """
    everything = tuple(dict.fromkeys(items))
    fails = remembered(fails, everything)
    rest, sets = everything, []
    while rest and fails(rest):
        sets.append(minimal(rest, fails))
        rest = _without(rest, sets[-1])
    found = _without(everything, rest)
    avoid = minimal(found, lambda off: not fails(_without(everything, off)))
    return Culprits(tuple(sets), avoid)


def minimal(items: Sequence[str], fails: Fails) -> Subset:
    """A subset that fails and of which no single member can be left out.

    Args:
        items: they fail together.
        fails: false for the empty set.
    """
    current, parts = tuple(items), 2
    while len(current) > 1:
        chunks = _split(current, parts)
        smaller = next((chunk for chunk in chunks if fails(chunk)), None)
        if smaller is not None:
            current, parts = smaller, 2
            continue
        rest = (_without(current, chunk) for chunk in chunks)
        smaller = next((part for part in rest if fails(part)), None) if parts > 2 else None
        if smaller is not None:
            current, parts = smaller, max(parts - 1, 2)
        elif parts < len(current):
            parts = min(2 * parts, len(current))
        else:
            break
    return current


def remembered(fails: Fails, order: Sequence[str]) -> Fails:
    """`fails`, asked once for each set, with its members in this order."""
    known: dict[frozenset[str], bool] = {}

    def ask(subset: Subset) -> bool:
        wanted = frozenset(subset)
        if wanted not in known:
            known[wanted] = fails(tuple(item for item in order if item in wanted))
        return known[wanted]

    return ask


def _split(items: Subset, parts: int) -> list[Subset]:
    """Cut into so many parts, as equal as can be."""
    cuts = [len(items) * i // parts for i in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(cuts)]


def _without(items: Subset, others: Iterable[str]) -> Subset:
    gone = set(others)
    return tuple(item for item in items if item not in gone)
