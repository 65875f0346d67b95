"""A second implementation beside the selected one, on a sample of calls: where do they part?

`VLLM_FL_SHADOW` names the second one. Only then does a comparing function stand in the slots;
otherwise no call knows of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch import startup
from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.config.environment import parsed
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.shadow.records import Row, Sampling
from vllm_fl_dispatch.types import BackendImplKind

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager

logger = get_logger(__name__)

VARIABLE = "VLLM_FL_SHADOW"
#: In `VLLM_FL_SHADOW`: every operator that is not named itself.
ANY = "*"


class Shadow:
    """The comparisons of this process.

    Args:
        orders: operator or `ANY` -> tokens; the first one that can serve a call, and is not the
            selected implementation itself, runs beside it.
        sampling: which calls of a layer are compared.
    """

    def __init__(
        self, manager: OpManager, orders: dict[str, tuple[str, ...]], sampling: Sampling
    ) -> None:
        self._manager = manager
        self._orders = orders
        self.sampling = sampling
        #: Called when a layer deviates for the first time.
        self.on_deviation: Callable[[], object] | None = None
        self._rows: dict[tuple[Any, ...], Row] = {}
        #: What compares the calls of no particular layer, whichever slot they go through.
        self._comparing: dict[tuple[Any, ...], Call] = {}
        self._deviating = 0
        named = "; ".join(f"{op}={'|'.join(order)}" for op, order in orders.items())
        logger.info("shadow: %s on %s: these calls run twice", named, sampling)

    def order_for(self, op_name: str) -> tuple[str, ...] | None:
        """What runs beside this operator, or None."""
        return self._orders.get(op_name, self._orders.get(ANY))

    def watch(self, layer: Any) -> None:
        """A layer is being built whose calls may be compared: its name will be wanted."""
        from vllm_fl_dispatch.shadow import names

        names.watch(layer)

    def unseen(self, op_name: str) -> None:
        """Layers were bound to traced code, which nothing can stand in front of."""
        if self.order_for(op_name) is not None:
            warning_once(
                logger,
                f"{VARIABLE}: {op_name} is traced into compiled code, where nothing is "
                "compared; run the model with --enforce-eager",
            )

    def compared(
        self,
        spec: OpSpec,
        impl: OpImpl,
        mode: str,
        fn: Call,
        *,
        layer: weakref.ref[Any] | None = None,
        stock: Call | None = None,
    ) -> Call:
        """`fn`, or where this operator is shadowed, a function that compares and calls it.

        Args:
            layer: whose calls these are, where they are those of one layer.
            stock: vLLM's own function with the contract's signature, where a layer offers it.
        """
        if self.order_for(spec.name) is None:
            return fn
        from vllm_fl_dispatch.shadow.comparing import Comparison

        key = (spec.name, impl.impl_id, mode, fn)
        if layer is None and key in self._comparing:
            return self._comparing[key]
        compare = Comparison(self, spec, impl, mode, fn, layer, stock).call
        if layer is None:
            self._comparing[key] = compare
        return compare

    def candidates(self, spec: OpSpec, impl: OpImpl, stock: Call | None) -> tuple[Candidate, ...]:
        """What may run beside an implementation, in order; a warning says so if nothing can."""
        order = self.order_for(spec.name)
        assert order is not None
        # What the user named here is meant, whatever the lists of the policy say.
        policy = SelectionPolicy(per_op_order={spec.name: order})
        resolution = self._manager.resolve(spec.name, policy=policy, stock=stock is not None)
        found = []
        for other in resolution.accepted:
            # What cannot be loaded runs beside nothing, however strict the policy is.
            is_stock = other.kind is BackendImplKind.STOCK
            fn = stock if is_stock else self._manager.load(spec, other, strict=False)
            if other.impl_id != impl.impl_id and fn is not None:
                # It must leave the arguments to the selected one, which comes after it.
                found.append(Candidate.of(spec, replace(other, mutates=spec.donates), fn, fn))
        if not found and not resolution.accepted:
            warning_once(
                logger, f"{VARIABLE}: nothing can run beside {spec.name}\n{resolution.table()}"
            )
        return tuple(found)

    def row(self, op: str, impl_id: str, beside: str, mode: str, layer: str) -> Row:
        """The line of the report that a comparison belongs to."""
        key = (op, impl_id, beside, mode, layer)
        return self._rows.setdefault(key, Row(op, impl_id, beside, mode, layer))

    def deviated(self, row: Row) -> None:
        """A layer exceeded the tolerance for the first time."""
        self._deviating += 1
        row.order = self._deviating
        if not any(r.op == row.op and r.order for r in self._rows.values() if r is not row):
            logger.warning("shadow: %s (further layers: see the report)", row)
        if self.on_deviation is not None:
            self.on_deviation()

    def rows(self) -> list[Row]:
        """Everything compared: first what deviates, in the order in which it was seen."""
        return sorted(self._rows.values(), key=lambda r: (not r.order, r.order, r.op, r.layer))

    def as_dicts(self) -> list[dict[str, Any]]:
        """The rows for JSON."""
        return [row.as_dict() for row in self.rows()]

    def forget(self) -> None:
        """A forked child has compared nothing yet."""
        self._rows.clear()
        self._deviating = 0


def start(manager: OpManager) -> Shadow | None:
    """What `VLLM_FL_SHADOW` asks for; None where it asks for nothing.

    Raises:
        PolicyError: it names something unknown and the policy is strict.
    """
    orders = parsed(VARIABLE)
    sampling = parsed("VLLM_FL_SHADOW_SAMPLE") or {}
    if not orders:
        return None
    startup.check_names(named(manager.policy.strict), manager.registry, VARIABLE)
    return Shadow(manager, orders, Sampling(**sampling))


def named(strict: bool = False) -> SelectionPolicy:
    """The names in `VLLM_FL_SHADOW`, as a policy."""
    orders = parsed(VARIABLE) or {}
    return SelectionPolicy(
        per_op_order={op: order for op, order in orders.items() if op != ANY}, strict=strict
    )
