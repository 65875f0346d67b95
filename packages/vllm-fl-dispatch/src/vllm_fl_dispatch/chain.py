"""What a slot was bound to: implementations, called one after the other until one answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.contracts import positional_names
from vllm_fl_dispatch.errors import NoImplementation, OpNotSupported
from vllm_fl_dispatch.fallback import may_continue
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.resolution import Outcome, Resolution

if TYPE_CHECKING:
    from vllm_fl_dispatch.manager import OpManager


class Chain:
    """The candidates of one binding.

    The next binding makes another chain: a call that began before a change ends on the old one,
    and what it finds out stays there.

    Args:
        resolution: which led to the candidates; at least one.
        strict: errors of an implementation go to the caller.
        donate: may implementations overwrite the arguments that the contract donates?
        proved: called when an implementation that overwrites arguments succeeded for the first
            time for some kind of call.
    """

    def __init__(
        self,
        manager: OpManager,
        spec: OpSpec,
        resolution: Resolution,
        candidates: tuple[Candidate, ...],
        *,
        strict: bool,
        donate: bool,
        proved: Callable[[], None],
    ) -> None:
        self.candidates = candidates
        self._manager = manager
        self._spec = spec
        self.resolution = resolution
        self._strict = strict
        self._donate = donate
        self._proved = proved
        self._facts = spec.facts or (lambda *args, **options: ())
        self._plans: dict[Hashable, tuple[Candidate, ...]] = {}
        #: facts -> who serves plain calls of this kind without anything more to be looked at.
        self._direct: dict[Hashable, Candidate] = {}
        self._data = tuple(positional_names(spec).index(name) for name in spec.data)

    @property
    def first(self) -> Candidate:
        """The candidate that is tried first."""
        return self.candidates[0]

    def call(self, *args: Any, **options: Any) -> Any:
        """Call the first candidate that may serve these arguments, and can."""
        return self._run(args, options, {}, self._facts(*args, **options))

    def plain_call(self, *args: Any) -> Any:
        """The same for calls that leave every option at its default; costs less."""
        key = self._facts(*args)
        direct = self._direct.get(key)
        if direct is None:
            return self._run(args, {}, {}, key)
        try:
            return direct.fn(*args)
        except Exception as error:  # noqa: BLE001  # as in `_run`
            return self.recover(error, direct, args, {})

    def recover(
        self, error: Exception, failed: Candidate, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """A candidate that stood in the handle itself raised: go on with the others, or raise."""
        remember = self._may_continue(error, failed, intact=not failed.mutated)
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
                result = candidate.call(args, options, key, self._donate)
            # Whose fault it is, and what follows, is decided in one place.
            except Exception as error:  # noqa: BLE001
                intact = not candidate.mutated or candidate.on_copies(key, self._donate)
                remember = self._may_continue(error, candidate, intact=intact)
                failed[candidate] = error if remember else None
                first_error = first_error or (error if remember else None)
                if not remember:
                    reasons[candidate.impl.impl_id] = str(error) or "not this input"
                continue
            self._succeeded(candidate, key, failed)
            return result
        if first_error is not None:
            raise first_error
        raise NoImplementation(self._with_reasons(key, args, options, reasons))

    def _may_continue(self, error: Exception, candidate: Candidate, *, intact: bool) -> bool:
        return may_continue(error, candidate.impl, strict=self._strict, inputs_intact=intact)

    def _succeeded(
        self, candidate: Candidate, key: Hashable, failed: dict[Candidate, Exception | None]
    ) -> None:
        for other, error in failed.items():
            if error is not None:
                self._manager.remember_failure(other.impl, key, error, candidate.impl)
        if candidate.mutated and key not in candidate.proven:
            candidate.proven.add(key)
            self._proved()

    def _plan(
        self, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Candidate, ...]:
        """The candidates that may serve calls with these facts."""
        plan = self._plans.get(key)
        if plan is None:
            reason = self._manager.failures.reason
            plan = tuple(
                candidate
                for candidate in self.candidates
                if reason(candidate.impl, key) is None and candidate.refusal(args, options) is None
            )
            self._plans[key] = plan
            if plan and not (plan[0].limited or plan[0].mutated):
                self._direct[key] = plan[0]
        return plan

    def _is_empty(self, args: tuple[Any, ...]) -> bool:
        return bool(self._data) and args[self._data[0]].numel() == 0

    def _empty_answer(self, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if self._spec.fake is None:
            raise OpNotSupported(f"{self._spec.name} states no shape function for zero rows")
        return self._spec.fake(*args, **options)

    def _with_reasons(
        self,
        key: Hashable,
        args: tuple[Any, ...],
        options: dict[str, Any],
        reasons: dict[str, str],
    ) -> Resolution:
        """The resolution with what kept each candidate from this call."""
        for candidate in self.candidates:
            impl = candidate.impl
            failure = self._manager.failures.reason(impl, key)
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
