"""The function behind a handle: which implementation it runs, and what it checks before.

Where nothing needs a check, the implementation itself stands in the slot. Where something does
(`supports`, data limits, a first call on copies, an earlier failure), a `Chain` stands there.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.candidates import Candidate, answering_empty
from vllm_fl_dispatch.chain import Chain
from vllm_fl_dispatch.errors import NoImplementation
from vllm_fl_dispatch.handles import Call, make_handle, reraise
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.resolution import Resolution
from vllm_fl_dispatch.types import BackendImplKind, Query

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager


class Slot:
    """One rebindable call of one operator.

    Args:
        query: what is known about all calls through this slot; None: nothing.
        policy: a policy of its own (of a scope); None: the manager's.
        donate: may implementations overwrite the arguments that the contract donates? If not,
            those that do run on copies.
        mode: how the report names calls through this slot.
        stock: vLLM's own function with the contract's signature, where a layer offers it.
        refused: impl_id -> why it failed when it was tried for this query.
        layer: the layer whose calls these are, where they are those of one.
    """

    def __init__(
        self,
        manager: OpManager,
        spec: OpSpec,
        *,
        query: Query | None = None,
        policy: SelectionPolicy | None = None,
        donate: bool = True,
        mode: str = "eager",
        stock: Call | None = None,
        refused: dict[str, str] | None = None,
        layer: weakref.ref[Any] | None = None,
    ) -> None:
        self.manager = manager
        self.spec = spec
        self.query = query
        self.policy = policy
        self.donate = donate
        self.mode = mode
        self.stock = stock
        self.refused = refused or {}
        self.layer = layer
        #: What the handle follows; None from a change on until the next call.
        self._chain: Chain | None = None
        #: What was loaded last. Who is accepted again goes on with what is proven of it.
        self._candidates: tuple[Candidate, ...] = ()
        #: id of the function in the slot -> whose it is. A function need not be hashable.
        self._by_fn: dict[int, Candidate] = {}
        #: (impl_id, id of the function, is it counted?) -> the function and what is called for
        #: it; lives as long as the layer
        self._called: dict[tuple[str, int, bool], tuple[Call, Call]] = {}
        self._handle = make_handle(spec, self._first_call, self._recover)
        #: The call, with all options of the contract.
        self.call = self._handle.call
        self._plain = make_handle(spec, self._first_call, self._recover, with_options=False)
        #: The same for calls that leave every option at its default; costs less.
        self.plain_call = self._plain.call

    # -- binding ------------------------------------------------------------------------------

    def invalidate(self) -> None:
        """Resolve again at the next call: policy, registry or failures changed."""
        self._chain = None
        self._point_at(self._first_call, self._first_call)

    def bind(self) -> Resolution:
        """Resolve now and put the right function into the handle.

        Raises:
            NoImplementation: the policy leaves nothing that can serve it.
        """
        return self._bind().resolution

    def _bind(self) -> Chain:
        manager = self.manager
        manager.ensure_built()
        with manager.lock:
            resolution, self._candidates = self._load_candidates()
            if not self._candidates:
                raise NoImplementation(resolution)
            # Two may share one function; the first of them is the one that is called.
            self._by_fn |= {id(each.fn): each for each in reversed(self._candidates)}
            if self.policy is None:
                # A scope's own choice is no switch of the process.
                manager.announce(self.spec, resolution, self._candidates[0].impl)
            self._chain = chain = Chain(
                manager,
                self.spec,
                resolution,
                self._candidates,
                strict=self._policy().strict,
                donate=self.donate,
                apart=self.query is not None,
                proved=self._proved,
            )
            self._point_at(*self._functions(chain))
            return chain

    @property
    def current(self) -> Call:
        """The function that a call runs now; stale after the next change."""
        chain = self._bind()
        if self._is_direct(chain.first) and not chain.first.missing:
            return chain.first.fn
        handle = make_handle(self.spec, chain.plain_call, reraise)
        handle.rebind(*self._functions(chain))
        return handle.call

    def _load_candidates(self) -> tuple[Resolution, tuple[Candidate, ...]]:
        """Resolve and load; what cannot be loaded is remembered and resolved away."""
        while True:
            resolution = self.manager.resolve(
                self.spec.name,
                query=self.query,
                policy=self._policy(),
                stock=self.stock is not None,
                opaque=self.mode == "opaque",
                refused=self.refused,
            )
            candidates = []
            for impl in resolution.accepted:
                candidate = self._candidate(impl)
                if candidate is None:
                    break
                candidates.append(candidate)
            else:
                return resolution, tuple(candidates)

    def _candidate(self, impl: OpImpl) -> Candidate | None:
        impl = impl if self.donate else impl.functional
        if impl.kind is BackendImplKind.STOCK:
            fn = self.stock
        else:
            fn = self.manager.load(self.spec, impl, strict=self._policy().strict)
        if fn is None:
            return None
        key = (impl.impl_id, id(fn), self.manager.report.enabled)
        if key not in self._called:
            counted = self.manager.instrumented(
                self.spec, impl, self.mode, fn, layer=self.layer, stock=self.stock
            )
            self._called[key] = (fn, answering_empty(self.spec, impl, counted))
        called = self._called[key][1]
        known = next((c for c in self._candidates if c.impl == impl and c.fn is called), None)
        return known or Candidate.of(self.spec, impl, fn, called)

    def _functions(self, chain: Chain) -> tuple[Call, Call]:
        """What stands in the handle for calls without options, and for calls with."""
        first = chain.first
        direct = self._is_direct(first)
        plain = first.fn if direct else chain.plain_call
        return plain, first.fn if direct and not first.missing else chain.call

    def _point_at(self, plain: Call, optioned: Call) -> None:
        self._handle.rebind(plain, optioned)
        self._plain.rebind(plain, optioned)

    def _is_direct(self, first: Candidate) -> bool:
        """Can the implementation itself stand in the slot?

        Not one with a `supports`: what a layer says of its calls is what is usual, and some model
        passes a residual of another dtype.
        """
        if first.impl.has_data_limits or first.impl.supports is not None:
            return False
        if self.manager.failures.concerns(first.impl):
            return False
        if first.mutated:
            # A layer's calls all have the same facts, so one success proves them.
            return self.donate and self.query is not None and bool(first.proven)
        return True

    def proven(self, impl: OpImpl) -> None:
        """It was tried for the slot's query: where it is bound, no first call on copies."""
        with self.manager.lock:
            if self._chain is not None and self._chain.first.impl is impl:
                self._chain.first.proven.add("tried when bound")
                self._proved()

    def _proved(self) -> None:
        """An implementation needs no copies any more: perhaps no check at all."""
        with self.manager.lock:
            # A call that began before the last change must not bring its candidates back.
            if self._chain is not None:
                self._point_at(*self._functions(self._chain))

    # -- calling ------------------------------------------------------------------------------

    def _first_call(self, *args: Any, **options: Any) -> Any:
        self._bind()
        # Through the handle, so that a failing implementation is recovered from.
        return self.call(*args, **options)

    def _recover(
        self, error: Exception, fn: Call, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """A function in the slot raised: go on with the next candidate, or raise."""
        failed = self._by_fn.get(id(fn))
        if failed is None:
            # A chain and `_first_call` recover by themselves; what they raise is final.
            raise error
        return (self._chain or self._bind()).recover(error, failed, args, options)

    def _policy(self) -> SelectionPolicy:
        """Not that of a scope that happens to be open: it would outlive the scope in here."""
        policy = self.policy or self.manager.policy
        return policy.for_mode(self.mode == "opaque")
