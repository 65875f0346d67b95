"""The budgets, and what the rounds say about each case."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from cases import PLAIN


@dataclass(frozen=True)
class Budget:
    """How many nanoseconds a case may cost over another one, and where the number comes from."""

    case: str
    ns: float
    over: str
    source: str


#: Promises of this project, not figures of a peer or of a machine.
BUDGETS = (
    Budget("bound slot", 40, "plain call", "ours: one generated function"),
    Budget("handle", 120, "plain call", "ours: two generated functions"),
    Budget("call_op", 250, "plain call", "ours: a handle and a look-up by name"),
    Budget("handle, in a scope", 150, "handle", "ours: a router that asks a ContextVar"),
    Budget("handle, scope elsewhere", 150, "handle", "ours: the same router"),
    Budget("opaque torch operator", 2500, "plain call", "ours: torch's dispatcher and a slot"),
)
#: The gate fails above budget times this: shared machines are noisy.
SLACK = 1.5

Times = Mapping[str, list[float]]


@dataclass(frozen=True)
class Figure:
    """One case, in nanoseconds per call.

    Attributes:
        name: the case.
        ns: the median of the case itself.
        over_plain: the median over the rounds of its difference to a plain call.
        p10: the tenth percentile of the same differences.
        p90: the ninetieth percentile of the same differences.
        budget: what it may cost; None: it has no budget.
        charged: the median of what counts against the budget.
    """

    name: str
    ns: float
    over_plain: float
    p10: float
    p90: float
    budget: Budget | None
    charged: float | None

    @property
    def used(self) -> float | None:
        """The share of its budget that the case uses."""
        if self.budget is None or self.charged is None:
            return None
        return self.charged / self.budget.ns

    @property
    def failed(self) -> bool:
        return self.used is not None and self.used > SLACK


def figures(times: Times) -> list[Figure]:
    """One figure per case, in the order of the cases.

    Raises:
        KeyError: a budget is for, or over, a case that was not timed.
    """
    charges = {each.case: _differences(times, each.case, each.over) for each in BUDGETS}
    budgets = {budget.case: budget for budget in BUDGETS}
    return [_figure(times, name, budgets.get(name), charges.get(name)) for name in times]


def _figure(times: Times, name: str, budget: Budget | None, charges: list[float] | None) -> Figure:
    over_plain = _differences(times, name, PLAIN.name)
    tenths = statistics.quantiles(over_plain, n=10)
    return Figure(
        name=name,
        ns=statistics.median(times[name]),
        over_plain=statistics.median(over_plain),
        p10=tenths[0],
        p90=tenths[-1],
        budget=budget,
        charged=None if charges is None else statistics.median(charges),
    )


def _differences(times: Times, name: str, base: str) -> list[float]:
    """What a case took more than another one, round by round."""
    return [ns - other for ns, other in zip(times[name], times[base], strict=True)]
