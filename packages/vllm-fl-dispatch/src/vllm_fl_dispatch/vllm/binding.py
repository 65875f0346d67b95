"""How an operator reaches a layer: left to vLLM, traced, behind an opaque operator, or eagerly."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch.contracts import missing_options
from vllm_fl_dispatch.errors import NoImplementation
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.op_impl import OpImpl, own_layer
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.resolution import Resolution
from vllm_fl_dispatch.support import looks_at_unknown
from vllm_fl_dispatch.types import BackendImplKind, Query
from vllm_fl_dispatch.vllm import compat

logger = get_logger(__name__)

#: The implementation that equals vLLM's native layers, bit for bit.
NATIVE = "reference.torch"


@dataclass(frozen=True)
class Bound:
    """The call of one operator for one layer."""

    call: Call
    impl: OpImpl
    mode: str

    @property
    def is_stock(self) -> bool:
        return self.impl.kind is BackendImplKind.STOCK


class Binder:
    """Binds the operators of one layer."""

    def __init__(self, manager: OpManager, layer: Any) -> None:
        self._manager = manager
        self._layer = weakref.ref(layer)
        if manager.shadow is not None:
            manager.shadow.watch(layer)
        self._compiled = compat.is_compiling_model()
        self._off = compat.is_switched_off(type(layer))

    def bind(
        self,
        op_name: str,
        facts: dict[str, Any],
        stock: Call | None,
        native: Call | None,
        *,
        options: bool = False,
    ) -> Bound:
        """Bind one operator.

        Args:
            facts: what is known about all calls of the layer, see `OpSpec.fact_names`.
            stock, native: what vLLM itself would run, and its native (torch) code, both with
                the contract's signature; None where vLLM has nothing that runs here.
            options: will the layer pass keyword-only options of the contract?
        """
        bound = self._bind(op_name, Query(op_name, facts), stock, native, options)
        self._manager.report.layer(bound.impl, bound.mode)
        if self._manager.shadow is not None and self._compiled and bound.mode != "opaque":
            self._manager.shadow.unseen(op_name)
        return bound

    def _bind(
        self, op_name: str, query: Query, stock: Call | None, native: Call | None, options: bool
    ) -> Bound:
        manager = self._manager
        spec = manager.registry.spec(op_name)
        own = own_layer(op_name)
        policy = manager.current_policy().for_mode(self._compiled)
        if stock is not None and (self._off or policy.layer_objection(spec.names)):
            return self._stock(own, stock)
        refused: dict[str, str] = {}
        while True:
            resolution = manager.resolve(
                op_name, query=query, policy=policy, stock=stock is not None, refused=refused
            )
            impl = resolution.selected
            if impl is None:
                if stock is None:
                    raise NoImplementation(resolution)
                return self._stock(self._nothing_left(resolution, own), stock)
            if impl.kind is BackendImplKind.STOCK:
                assert stock is not None
                return self._stock(impl, stock)
            # Compiled code must not overwrite what it goes on with.
            impl = impl.functional if self._compiled else impl
            fn = manager.load(spec, impl)
            if fn is None:
                continue
            failure = manager.try_out(spec, impl, fn, query)
            if failure is None:
                break
            refused[impl.impl_id] = failure
        manager.announce(spec, resolution, impl)
        if self._compiled:
            return self._compiled_call(spec, impl, fn, native, query, options)
        # The policy of an open scope stays with the layer; the process-wide one is followed.
        own_policy = None if policy is manager.policy else policy
        slot = manager.new_slot(
            spec, query=query, policy=own_policy, stock=stock, refused=refused, layer=self._layer
        )
        slot.bind()
        slot.proven(impl)
        return Bound(slot.call if options else slot.plain_call, impl, "eager")

    def _stock(self, impl: OpImpl, stock: Call) -> Bound:
        if not self._compiled:
            spec = self._manager.registry.spec(impl.op_name)
            stock = self._manager.instrumented(
                spec, impl, "stock", stock, layer=self._layer, stock=stock
            )
        return Bound(stock, impl, "stock")

    def _compiled_call(
        self,
        spec: OpSpec,
        impl: OpImpl,
        fn: Call,
        native: Call | None,
        query: Query,
        options: bool,
    ) -> Bound:
        if impl.impl_id == NATIVE and native is not None:
            return Bound(native, impl, "inlined")
        # Options that it lacks are lowered behind the opaque operator only, and what the layer
        # does not know yet is asked about there.
        lowers = options and missing_options(spec, fn)
        if impl.inlinable and not lowers and not looks_at_unknown(impl, query):
            return Bound(fn, impl, "inlined")
        from vllm_fl_dispatch.torch_ops import opaque

        if self._manager.current_policy() is not self._manager.policy:
            warning_once(
                logger,
                f"{spec.name}: a layer was built under a policy scope, which does not reach the "
                "opaque operator of compiled code: that follows the policy of the process",
            )
        warning_once(
            logger,
            f"{spec.name}: {impl.impl_id} is called through an opaque operator in compiled code; "
            "vLLM's fusions that look for the native layer do not apply to it",
        )
        return Bound(opaque(self._manager, spec), impl, "opaque")

    def _nothing_left(self, resolution: Resolution, own: OpImpl) -> OpImpl:
        if self._manager.current_policy().strict:
            raise NoImplementation(resolution)
        warning_once(
            logger,
            f"{resolution.op_name}: no implementation fits the policy, vLLM's own layer stays\n"
            f"{resolution.table()}",
        )
        return own
