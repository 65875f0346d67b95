"""The function behind a handle: which implementation it runs, and what it checks before.

Where nothing needs a check, the implementation itself stands in the slot. Where something does
(`supports`, data limits, a first call on copies, an earlier failure), `_checked` stands there.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.errors import NoImplementation, OpNotSupported
from vllm_fl_dispatch.fallback import may_continue
from vllm_fl_dispatch.handles import Call, make_handle
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.resolution import Outcome, Resolution
from vllm_fl_dispatch.types import OpImpl, OpSpec, Query

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
        self.resolution: Resolution | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self._by_fn: dict[Call, Candidate] = {}
        self._plans: dict[Hashable, tuple[Candidate, ...]] = {}
        #: facts -> the function, for kinds of plain calls at which nothing more need be looked.
        self._direct: dict[Hashable, Call] = {}
        self._facts = spec.facts or (lambda *args, **options: ())
        self._data = tuple(positional_names(spec).index(name) for name in spec.data)
        self._handle = make_handle(spec, self._first_call, self._recover)
        #: The call, with all options of the contract.
        self.call = self._handle.call
        self._plain = make_handle(spec, self._first_call, self._recover, with_options=False)
        #: The same for calls that leave every option at its default; costs less.
        self.plain_call = self._plain.call

    # -- binding ------------------------------------------------------------------------------

    def invalidate(self) -> None:
        """Resolve again at the next call: policy, registry or failures changed."""
        self._point_at(self._first_call, self._first_call)

    def bind(self) -> Resolution:
        """Resolve now and put the right function into the handle.

        Raises:
            NoImplementation: the policy leaves nothing that can serve it.
        """
        manager = self.manager
        manager.ensure_built()
        with manager.lock:
            self.resolution, self._candidates = self._load_candidates()
            self._plans, self._direct = {}, {}
            for candidate in self._candidates:
                self._by_fn[candidate.fn] = candidate
            if not self._candidates:
                raise NoImplementation(self.resolution)
            if self.policy is None:
                # A scope's own choice is no switch of the process.
                manager.announce(self.spec, self.resolution, self._candidates[0].impl)
            self._rebind()
            return self.resolution

    @property
    def current(self) -> Call:
        """The function that a plain call runs now; stale after the next change."""
        self.bind()
        first = self._candidates[0]
        return first.fn if self._is_direct(first) else self._checked_plain

    @property
    def current_impl(self) -> OpImpl | None:
        """The implementation that is tried first; None before the slot is bound."""
        return self._candidates[0].impl if self._candidates else None

    def _load_candidates(self) -> tuple[Resolution, tuple[Candidate, ...]]:
        """Resolve and load; what cannot be loaded is remembered and resolved away."""
        while True:
            resolution = self.manager.resolve(
                self.spec.name,
                query=self.query,
                policy=self.policy,
                stock=self.stock is not None,
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
        fn = self.stock if impl.impl_id == "stock" else self.manager.load(self.spec, impl)
        if fn is None:
            return None
        called = self.manager.instrumented(
            self.spec, impl, self.mode, fn, layer=self.layer, stock=self.stock
        )
        known = next((c for c in self._candidates if c.impl is impl and c.fn is called), None)
        return known or Candidate.of(self.spec, impl, fn, called)

    def _rebind(self) -> None:
        first = self._candidates[0]
        direct = self._is_direct(first)
        plain = first.fn if direct else self._checked_plain
        optioned = first.fn if direct and not first.missing else self._checked
        self._point_at(plain, optioned)

    def _point_at(self, plain: Call, optioned: Call) -> None:
        self._handle.rebind(plain, optioned)
        self._plain.rebind(plain, optioned)

    def _is_direct(self, first: Candidate) -> bool:
        """Can the implementation itself stand in the slot?"""
        if first.limited or self.manager.failures.concerns(first.impl):
            return False
        if first.impl.supports is not None and self.query is None:
            return False
        if first.mutated:
            # A layer's calls all have the same facts, so one success proves them.
            return self.donate and self.query is not None and bool(first.proven)
        return True

    def proven(self) -> None:
        """The bound implementation was tried for the slot's query: no first call on copies."""
        with self.manager.lock:
            self._candidates[0].proven.add("tried when bound")
            self._rebind()

    # -- calling ------------------------------------------------------------------------------

    def _first_call(self, *args: Any, **options: Any) -> Any:
        self.bind()
        # Through the handle, so that a failing implementation is recovered from.
        return self.call(*args, **options)

    def _checked(self, *args: Any, **options: Any) -> Any:
        return self._run(args, options, {}, self._facts(*args, **options))

    def _checked_plain(self, *args: Any) -> Any:
        """A call that leaves every option at its default."""
        key = self._facts(*args)
        direct = self._direct.get(key)
        if direct is None:
            return self._run(args, {}, {}, key)
        try:
            return direct(*args)
        except Exception as error:  # noqa: BLE001  # as in `_run`
            return self._recover(error, direct, args, {})

    def _recover(
        self, error: Exception, fn: Call, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """A function in the slot raised: go on with the next candidate, or raise."""
        failed = self._by_fn.get(fn)
        if failed is None:
            # `_checked` and `_first_call` recover by themselves; what they raise is final.
            raise error
        intact = not failed.mutated
        remember = may_continue(error, failed.impl, strict=self._strict(), inputs_intact=intact)
        failures = {failed: error if remember else None}
        return self._run(args, options, failures, self._facts(*args, **options))

    def _run(
        self,
        args: tuple[Any, ...],
        options: dict[str, Any],
        failed: dict[Candidate, Exception | None],
        key: Hashable,
    ) -> Any:
        """Call the candidates in order until one answers; `failed` ones have been tried."""
        first_error = next((error for error in failed.values() if error is not None), None)
        reasons: dict[str, str] = {}
        for candidate in self._plan(key, args, options):
            if candidate in failed:
                continue
            if not candidate.impl.empty_ok and self._is_empty(args):
                return self._empty_answer(args, options)
            objection = candidate.objection(args)
            if objection:
                reasons[candidate.impl.impl_id] = objection
                continue
            try:
                result = candidate.call(args, options, key, self.donate)
            # Whose fault it is, and what follows, is decided in one place.
            except Exception as error:  # noqa: BLE001
                intact = not candidate.mutated or candidate.on_copies(key, self.donate)
                remember = may_continue(
                    error, candidate.impl, strict=self._strict(), inputs_intact=intact
                )
                failed[candidate] = error if remember else None
                first_error = first_error or (error if remember else None)
                if not remember:
                    reasons[candidate.impl.impl_id] = str(error) or "not this input"
                continue
            self._succeeded(candidate, key, failed)
            return result
        if first_error is not None:
            raise first_error
        raise NoImplementation(self._with_reasons(args, options, reasons))

    def _succeeded(
        self, candidate: Candidate, key: Hashable, failed: dict[Candidate, Exception | None]
    ) -> None:
        new = key not in candidate.proven
        if new and candidate.mutated:
            candidate.proven.add(key)
        for other, error in failed.items():
            if error is not None:
                self.manager.remember_failure(other.impl, key, error, candidate.impl)
        if new and candidate.mutated and candidate is self._candidates[0]:
            with self.manager.lock:
                self._rebind()

    # -- what a call looks like ---------------------------------------------------------------

    def _strict(self) -> bool:
        return (self.policy or self.manager.policy).strict

    def _plan(
        self, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Candidate, ...]:
        """The candidates that may serve calls with these facts."""
        plan = self._plans.get(key)
        if plan is None:
            reason = self.manager.failures.reason
            plan = tuple(
                candidate
                for candidate in self._candidates
                if reason(candidate.impl, key) is None and candidate.refusal(args, options) is None
            )
            self._plans[key] = plan
            first = plan[0] if plan else None
            if first and not (first.limited or first.mutated):
                self._direct[key] = first.fn
        return plan

    def _is_empty(self, args: tuple[Any, ...]) -> bool:
        return bool(self._data) and args[self._data[0]].numel() == 0

    def _empty_answer(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self.spec.fake is None:
            raise OpNotSupported(f"{self.spec.name} states no shape function for zero rows")
        return self.spec.fake(*args, **options)

    def _with_reasons(
        self, args: tuple[Any, ...], options: dict[str, Any], reasons: dict[str, str]
    ) -> Resolution:
        """The resolution with what kept each candidate from this call."""
        assert self.resolution is not None
        key = self._facts(*args, **options)
        for candidate in self._candidates:
            impl = candidate.impl
            failure = self.manager.failures.reason(impl, key)
            why = f"failed earlier: {failure}" if failure else candidate.refusal(args, options)
            reasons.setdefault(impl.impl_id, why or "does not support this call")
        return replace(
            self.resolution,
            decisions=tuple(
                replace(d, outcome=Outcome.UNSUPPORTED, reason=reasons.get(d.impl.impl_id, ""))
                if d.accepted
                else d
                for d in self.resolution.decisions
            ),
        )
