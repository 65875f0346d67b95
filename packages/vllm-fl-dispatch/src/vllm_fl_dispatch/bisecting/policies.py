"""Policies that leave some operators as they are and put the others elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.policy import SelectionPolicy

ORIGIN = "vllm-fl bisect"
Order = tuple[str, ...]


@dataclass(frozen=True)
class Choices:
    """The operators that a bisection is about.

    Attributes:
        policy: the present one.
        against: the order that takes the place of an operator's present one.
        present: operator -> its present order (eager, compiled).
        groups: operator -> the one whose order it would inherit.
    """

    policy: SelectionPolicy
    against: Order
    present: dict[str, tuple[Order, Order]]
    groups: dict[str, str | None]

    @classmethod
    def of(cls, manager: OpManager, against: Order, ops: Iterable[str]) -> Choices:
        """Those of `ops` that `against` would serve otherwise than the present policy. What it
        cannot serve here stays as it is.

        Raises:
            UnknownOp: no such operator; names the nearest one.
        """
        policy = manager.current_policy()
        present, groups = {}, {}
        for op in ops:
            spec = manager.registry.spec(op)
            modes = (policy.for_mode(False), policy.for_mode(True))
            if any(_serves_otherwise(manager, op, mode, against) for mode in modes):
                eager, compiled = (manager.resolve(op, policy=m, stock=True).order for m in modes)
                present[op], groups[op] = (eager, compiled), spec.group
        return cls(policy, against, present, groups)

    def policy_with(self, on: Iterable[str]) -> SelectionPolicy:
        """The policy under which these are served as at present, the others by `against`."""
        kept = set(on)
        # All are named: an operator without an order of its own would follow its group.
        eager = {op: o[0] if op in kept else self.against for op, o in self.present.items()}
        compiled = {op: o[1] if op in kept else self.against for op, o in self.present.items()}
        changed = self.policy.with_orders(ORIGIN, eager)
        if not self.policy.compiled:
            return changed
        orders = {**self.policy.compiled.get("per_op_order", {}), **compiled}
        section = {**self.policy.compiled, "per_op_order": orders}
        return changed.with_values(ORIGIN, compiled=section)

    def orders_avoiding(self, off: Iterable[str], *, compiled: bool = False) -> dict[str, Order]:
        """Orders that a user adds to the present policy in order to avoid some operators."""
        avoided = tuple(off)
        orders = dict.fromkeys(avoided, self.against)
        for op, group in self.groups.items():
            if group in avoided and op not in avoided:
                orders[op] = self.present[op][compiled]
        return orders


def _serves_otherwise(manager: OpManager, op: str, policy: SelectionPolicy, against: Order) -> bool:
    changed = policy.with_orders(ORIGIN, {op: against})
    for stock in (False, True):
        other = manager.resolve(op, policy=changed, stock=stock).accepted
        if other and other != manager.resolve(op, policy=policy, stock=stock).accepted:
            return True
    return False
