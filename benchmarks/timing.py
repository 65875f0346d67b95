"""Timing of calls that are shorter than the noise of a shared machine.

The cases run in shuffled rounds, so that a slow phase of the machine meets all of them; what is
compared are times of the same round.
"""

from __future__ import annotations

import contextvars
import random
import time
import timeit
from collections.abc import Sequence

from cases import RESULT, WEIGHT, Case, X

#: Aimed-at length of one batch: long against reading the clock, short against slow phases.
BATCH_NS = 3_000_000
#: Calls before anything is timed: the interpreter specializes what it runs often.
WARM_UP = 2_000


class Timed:
    """A case that is set up, checked and warm.

    Raises:
        ImportError: its library is not installed.
        RuntimeError: it does not end in the leaf.
    """

    def __init__(self, case: Case) -> None:
        self.name = case.name
        self._context = contextvars.copy_context()
        arguments = {"fn": self._context.run(case.make), "x": X, "weight": WEIGHT}
        if self._context.run(eval, case.call, dict(arguments)) is not RESULT:
            raise RuntimeError("it does not end in the leaf")
        # A timer compiles a loop of its own, so that no case finds the call specialized for
        # another one; its names are local, as in most callers. It turns the collector off.
        self._timer = timeit.Timer(
            case.call,
            "; ".join(f"{name} = _{name}" for name in arguments),
            time.thread_time_ns,
            {f"_{name}": value for name, value in arguments.items()},
        )
        self._calls = WARM_UP
        self.batch()
        self._calls = max(1, round(BATCH_NS / self.batch()))

    def batch(self) -> float:
        """Run one batch; nanoseconds per call."""
        return self._context.run(self._timer.timeit, self._calls) / self._calls


def measure(cases: Sequence[Timed], rounds: int) -> dict[str, list[float]]:
    """Nanoseconds per call of each case in each round."""
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    order = list(cases)
    for _ in range(rounds):
        random.shuffle(order)
        for case in order:
            times[case.name].append(case.batch())
    return times
