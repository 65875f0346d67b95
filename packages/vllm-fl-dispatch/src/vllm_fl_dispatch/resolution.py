"""Which implementations serve an operator, in which order, and why not the others.

One pure function: binding, `explain`, the command line and the tests all call it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.selectors import SelectorSpec, Spec
from vllm_fl_dispatch.tokens import token_matches
from vllm_fl_dispatch.types import BackendImplKind, Query, Verdict


class Outcome(str, enum.Enum):
    """What became of a candidate."""

    SELECTED = "selected"
    FALLBACK = "fallback"
    DENIED = "denied"
    NOT_ALLOWED = "not allowed"
    NOT_IN_ORDER = "not in the order"
    NOT_INSTALLED = "not installed"
    UNAVAILABLE = "unavailable"
    UNSUPPORTED = "unsupported"
    NOT_BATCH_INVARIANT = "not batch invariant"
    FAILED = "failed earlier"

    @property
    def accepted(self) -> bool:
        return self in (Outcome.SELECTED, Outcome.FALLBACK)


@dataclass(frozen=True)
class Facts:
    """What resolution may know besides the policy; gathered by the manager.

    Attributes:
        installed, available: impl_id -> verdict.
        failures: impl_id -> why it failed earlier for this query.
        query: what is known about the call; None asks without arguments.
        numel: elements of the largest input, where a hypothetical call is asked about.
        batch_invariant: vLLM runs in batch-invariant mode.
        opaque: it is asked for an opaque operator of compiled code, where `stock` stands for the
            reference, which equals what vLLM compiles.
        left_alone: why the layers of the operator stay vLLM's, where `stock` is a candidate and
            no order is looked at.
    """

    installed: Mapping[str, Verdict] = field(default_factory=dict)
    available: Mapping[str, Verdict] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    query: Query | None = None
    numel: int | None = None
    batch_invariant: bool = False
    opaque: bool = False
    left_alone: str | None = None


@dataclass(frozen=True)
class Decision:
    """One candidate, and what was decided about it."""

    impl: OpImpl
    outcome: Outcome
    reason: str
    token: str | None = None

    @property
    def accepted(self) -> bool:
        return self.outcome.accepted


@dataclass(frozen=True)
class Resolution:
    """All candidates of one operator: the accepted ones first, in the order they are tried."""

    op_name: str
    order: tuple[str, ...]
    order_origin: str
    decisions: tuple[Decision, ...]
    query: Query | None = None
    note: str = ""

    @property
    def accepted(self) -> tuple[OpImpl, ...]:
        return tuple(d.impl for d in self.decisions if d.accepted)

    @property
    def selected(self) -> OpImpl | None:
        return next(iter(self.accepted), None)

    def table(self) -> str:
        """The decisions as plain text, one line each."""
        rows = [
            ("implementation", "decision", "reason"),
            *((d.impl.impl_id, d.outcome.value, d.reason) for d in self.decisions),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        if not self.decisions:
            lines.append("  (nothing is registered for this operator)")
        return "\n".join([f"order: {'|'.join(self.order)}, from {self.order_origin}", *lines])

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "op": self.op_name,
            "query": None if self.query is None else str(self.query),
            "order": list(self.order),
            "order_origin": self.order_origin,
            "selected": self.selected.impl_id if self.selected else None,
            "note": self.note,
            "candidates": [
                {
                    "impl_id": d.impl.impl_id,
                    "kind": d.impl.kind.value,
                    "vendor": d.impl.vendor,
                    "priority": d.impl.priority,
                    "origin": str(d.impl.origin or ""),
                    "accepted": d.accepted,
                    "outcome": d.outcome.value,
                    "reason": d.reason,
                    "token": d.token,
                }
                for d in self.decisions
            ],
        }


def resolve(
    spec: Spec, candidates: Iterable[OpImpl], policy: SelectionPolicy, facts: Facts
) -> Resolution:
    """Decide about every candidate of an operator.

    Tokens are taken in the order of the policy; inside a token the highest (priority, impl_id)
    comes first. An implementation that two tokens name is taken at the first of them. What is
    selected rather than called stays vLLM's own, where it has one, unless an order names it.
    """
    order, origin = policy.order_for(spec.name, spec.group)
    if isinstance(spec, SelectorSpec) and spec.name not in policy.per_op_order:
        order = tuple(dict.fromkeys(("stock", *order)))
    if facts.opaque:
        order = tuple(dict.fromkeys("reference" if t == "stock" else t for t in order))
    impls = sorted(candidates, key=lambda impl: (impl.priority, impl.impl_id), reverse=True)
    first, note = [_decide_one(impl, policy, facts, order, spec.names) for impl in impls], ""
    inherited = spec.group in policy.per_op_order and spec.name not in policy.per_op_order
    if inherited and not policy.strict and not any(d.accepted for d in first):
        order = (*order, "stock", "reference")
        first = [_decide_one(impl, policy, facts, order, spec.names) for impl in impls]
        note = (
            f"{spec.name} inherits the order of {spec.group}, which leaves it without an "
            "implementation; stock and reference were appended"
        )
    ranked = sorted(first, key=lambda d: (not d.accepted, _rank(d, order)))
    accepted = [d for d in ranked if d.accepted]
    decisions = [
        Decision(d.impl, Outcome.SELECTED if i == 0 else Outcome.FALLBACK, d.reason, d.token)
        for i, d in enumerate(accepted)
    ] + [d for d in ranked if not d.accepted]
    return Resolution(spec.name, order, origin, tuple(decisions), facts.query, note)


def _decide_one(
    impl: OpImpl,
    policy: SelectionPolicy,
    facts: Facts,
    order: tuple[str, ...],
    names: tuple[str, ...],
) -> Decision:
    token = next((t for t in order if token_matches(t, impl)), None)

    def no(outcome: Outcome, reason: str) -> Decision:
        return Decision(impl, outcome, reason, token)

    if facts.left_alone is not None:
        if impl.kind is BackendImplKind.STOCK:
            return Decision(impl, Outcome.FALLBACK, facts.left_alone, token)
        return no(Outcome.DENIED, facts.left_alone)
    objection = policy.objection(impl, names)
    if objection is not None:
        return no(Outcome(objection[0]), objection[1])
    if token is None:
        return no(Outcome.NOT_IN_ORDER, f"no token of {'|'.join(order)} names it")
    if facts.batch_invariant and not impl.batch_invariant:
        return no(Outcome.NOT_BATCH_INVARIANT, "VLLM_BATCH_INVARIANT is set")
    yes = Verdict.yes()
    for verdicts, outcome in (
        (facts.installed, Outcome.NOT_INSTALLED),
        (facts.available, Outcome.UNAVAILABLE),
    ):
        verdict = verdicts.get(impl.impl_id, yes)
        if not verdict:
            return no(outcome, verdict.reason)
    if facts.query is not None:
        verdict = impl.verdict_on(facts.query)
        if not verdict:
            return no(Outcome.UNSUPPORTED, verdict.reason)
    if facts.numel is not None and impl.max_numel is not None and facts.numel > impl.max_numel:
        return no(Outcome.UNSUPPORTED, f"serves at most {impl.max_numel} elements")
    if impl.impl_id in facts.failures:
        return no(Outcome.FAILED, facts.failures[impl.impl_id])
    return Decision(impl, Outcome.FALLBACK, f"token {token}, priority {impl.priority}", token)


def _rank(decision: Decision, order: tuple[str, ...]) -> int:
    return order.index(decision.token) if decision.token in order else len(order)
