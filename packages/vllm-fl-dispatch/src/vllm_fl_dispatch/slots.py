"""The function behind a handle: which implementation it runs, and what it checks before.

Where nothing needs a check, the implementation itself stands in the slot. Where something does
(`supports`, data limits, a first call on copies, an earlier failure), `_checked` stands there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.contracts import lower, missing_options, option_defaults, positional_names
from vllm_fl_dispatch.errors import NoImplementation, OpNotSupported
from vllm_fl_dispatch.fallback import copy_arguments, may_continue
from vllm_fl_dispatch.handles import Call, make_handle
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.resolution import Resolution
from vllm_fl_dispatch.types import OpImpl, OpSpec, Query, Verdict

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager


@dataclass(eq=False)
class Candidate:
    """An accepted implementation, loaded, with what its calls need."""

    impl: OpImpl
    fn: Call
    missing: frozenset[str]
    mutated: tuple[int, ...]
    proven: set[Hashable] = field(default_factory=set)

    @property
    def limited(self) -> bool:
        impl = self.impl
        return impl.needs_contiguous or impl.max_numel is not None or not impl.empty_ok


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
    ) -> None:
        self.manager = manager
        self.spec = spec
        self.query = query
        self.policy = policy
        self.donate = donate
        self.mode = mode
        self.stock = stock
        self.refused = refused or {}
        self.resolution: Resolution | None = None
        self._candidates: tuple[Candidate, ...] = ()
        self._by_fn: dict[Call, Candidate] = {}
        self._plans: dict[Hashable, tuple[Candidate, ...]] = {}
        self._data = tuple(positional_names(spec).index(name) for name in spec.data)
        self._options = option_defaults(spec)
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
            self._plans = {}
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
        if self.resolution is None:
            self.bind()
        first = self._candidates[0]
        return first.fn if self._is_direct(first) else self._checked

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
        missing = missing_options(self.spec, fn)
        names = positional_names(self.spec)
        mutated = tuple(names.index(name) for name in impl.mutates)
        known = next((c for c in self._candidates if c.impl is impl), None)
        counted = self.manager.report.counted(impl, self.mode, fn)
        if known is not None and known.fn is counted:
            return known
        return Candidate(impl, counted, missing, mutated)

    def _rebind(self) -> None:
        first = self._candidates[0]
        plain = first.fn if self._is_direct(first) else self._checked
        optioned = plain if not first.missing else self._checked
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
        return self._run(args, options, {})

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
        return self._run(args, options, {failed: error if remember else None})

    def _run(
        self,
        args: tuple[Any, ...],
        options: dict[str, Any],
        failed: dict[Candidate, Exception | None],
    ) -> Any:
        """Call the candidates in order until one answers; `failed` ones have been tried."""
        key = self._key(args, options)
        first_error = next((error for error in failed.values() if error is not None), None)
        reasons: dict[str, str] = {}
        for candidate in self._plan(key, args, options):
            if candidate in failed:
                continue
            if not candidate.impl.empty_ok and self._is_empty(args):
                return self._empty_answer(args, options)
            objection = self._objection(candidate, args)
            if objection:
                reasons[candidate.impl.impl_id] = objection
                continue
            try:
                result = self._call(candidate, key, args, options)
            # Whose fault it is, and what follows, is decided in one place.
            except Exception as error:  # noqa: BLE001
                intact = not candidate.mutated or self._on_copies(candidate, key)
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
        raise NoImplementation(self._with_reasons(key, reasons))

    def _call(
        self, candidate: Candidate, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        if candidate.missing:
            args, options = lower(self.spec, candidate.missing, args, options)
        if candidate.mutated:
            if self._on_copies(candidate, key):
                copied = copy_arguments(args, candidate.mutated, keep_layout=self.donate)
                args = tuple(copied)
            else:
                args = self._distinct(args, candidate.mutated)
        return candidate.fn(*args, **options)

    def _on_copies(self, candidate: Candidate, key: Hashable) -> bool:
        return not self.donate or key not in candidate.proven

    @staticmethod
    def _distinct(args: tuple[Any, ...], positions: tuple[int, ...]) -> tuple[Any, ...]:
        """Two donated arguments that are one tensor would be overwritten twice."""
        seen: list[Any] = []
        changed = list(args)
        for position in positions:
            if any(changed[position] is other for other in seen):
                changed[position] = changed[position].clone()
            seen.append(changed[position])
        return tuple(changed)

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

    def _key(self, args: tuple[Any, ...], options: dict[str, Any]) -> Hashable:
        return () if self.spec.facts is None else self.spec.facts(*args, **options)

    def _plan(
        self, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Candidate, ...]:
        """The candidates that may serve calls with these facts."""
        plan = self._plans.get(key)
        if plan is None:
            plan = tuple(c for c, no in self._judged(key, args, options) if no is None)
            self._plans[key] = plan
        return plan

    def _judged(
        self, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Iterator[tuple[Candidate, str | None]]:
        for candidate in self._candidates:
            yield candidate, self._refusal(candidate, key, args, options)

    def _refusal(
        self, candidate: Candidate, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]
    ) -> str | None:
        failure = self.manager.failures.reason(candidate.impl, key)
        if failure is not None:
            return f"failed earlier: {failure}"
        for name in candidate.missing & set(options):
            if options[name] != self._options[name] and name not in self.spec.lower:
                return f"has no option {name}"
        if candidate.impl.supports is not None:
            args, options = lower(self.spec, candidate.missing, args, options)
            query = self.spec.query(*args, **options)
            verdict = Verdict.of(candidate.impl.supports(query), f"does not support {query}")
            if not verdict:
                return f"unsupported: {verdict.reason}"
        return None

    def _objection(self, candidate: Candidate, args: tuple[Any, ...]) -> str | None:
        """Why declared data limits keep an implementation from this call."""
        impl = candidate.impl
        for position in self._data:
            tensor = args[position]
            if tensor is None:
                continue
            if impl.needs_contiguous and not tensor.is_contiguous():
                return "needs contiguous inputs"
            if impl.max_numel is not None and tensor.numel() > impl.max_numel:
                return f"serves at most {impl.max_numel} elements"
        return None

    def _is_empty(self, args: tuple[Any, ...]) -> bool:
        return bool(self._data) and args[self._data[0]].numel() == 0

    def _empty_answer(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self.spec.fake is None:
            raise OpNotSupported(f"{self.spec.name} states no shape function for zero rows")
        return self.spec.fake(*args, **options)

    def _with_reasons(self, key: Hashable, reasons: dict[str, str]) -> Resolution:
        """The resolution with what this call added to it."""
        from dataclasses import replace

        from vllm_fl_dispatch.resolution import Outcome

        assert self.resolution is not None
        decisions = []
        for decision in self.resolution.decisions:
            why = reasons.get(decision.impl.impl_id)
            if decision.accepted and why is None:
                failure = self.manager.failures.reason(decision.impl, key)
                why = f"failed earlier: {failure}" if failure else "does not support this call"
            if decision.accepted:
                decision = replace(decision, outcome=Outcome.UNSUPPORTED, reason=why or "")
            decisions.append(decision)
        return replace(self.resolution, decisions=tuple(decisions))
