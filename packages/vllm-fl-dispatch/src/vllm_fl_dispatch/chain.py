"""What a slot was bound to: implementations, called one after the other until one answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.errors import NoImplementation, OpNotSupported
from vllm_fl_dispatch.fallback import may_continue
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.resolution import Outcome, Resolution
from vllm_fl_dispatch.shapes import misfit

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
        apart: are these the calls of a layer, whose donated tensors share no memory?
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
        apart: bool,
        proved: Callable[[], None],
    ) -> None:
        self.candidates = candidates
        self._manager = manager
        self._spec = spec
        self.resolution = resolution
        self._strict = strict
        self._donate = donate
        self._apart = apart
        self._proved = proved
        self._facts = spec.facts or (lambda *args, **options: ())
        self._plans: dict[Hashable, tuple[Candidate, ...]] = {}
        #: facts -> who serves plain calls of this kind without anything more to be looked at.
        self._direct: dict[Hashable, Candidate] = {}

    @property
    def first(self) -> Candidate:
        """The candidate that is tried first."""
        return self.candidates[0]

    def call(self, *args: Any, **options: Any) -> Any:
        """Call the first candidate that may serve these arguments, and can."""
        return self._run(args, options, {}, self._facts(*args, **options), {})

    def plain_call(self, *args: Any) -> Any:
        """The same for calls that leave every option at its default; costs less."""
        key = self._facts(*args)
        direct = self._direct.get(key)
        if direct is None:
            return self._run(args, {}, {}, key, {})
        try:
            return direct.fn(*args)
        except Exception as error:  # noqa: BLE001  # as in `_run`
            return self.recover(error, direct, args, {})

    def recover(
        self, error: Exception, failed: Candidate, args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """A candidate that stood in the handle itself raised: go on with the others, or raise."""
        remember = self._may_continue(error, failed, args, options, intact=not failed.mutated)
        failures = {failed: error if remember else None}
        reasons = {} if remember else {failed.impl.impl_id: str(error) or "not this input"}
        return self._run(args, options, failures, self._facts(*args, **options), reasons)

    def _run(
        self,
        args: tuple[Any, ...],
        options: dict[str, Any],
        failed: dict[Candidate, Exception | None],
        key: Hashable,
        reasons: dict[str, str],
    ) -> Any:
        """Call the candidates in order until one answers; `failed` ones have been tried, and
        `reasons` has what some said."""
        first_error = next((error for error in failed.values() if error is not None), None)
        for candidate in self._plan(key, args, options):
            if candidate in failed:
                continue
            objection = candidate.objection(args, options)
            if objection:
                reasons[candidate.impl.impl_id] = objection
                continue
            try:
                result = candidate.call(args, options, key, self._donate)
            # Whose fault it is, and what follows, is decided in one place.
            except Exception as error:  # noqa: BLE001
                intact = not candidate.mutated or candidate.on_copies(key, self._donate)
                remember = self._may_continue(error, candidate, args, options, intact=intact)
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

    def _may_continue(
        self,
        error: Exception,
        candidate: Candidate,
        args: tuple[Any, ...],
        options: dict[str, Any],
        *,
        intact: bool,
    ) -> bool:
        wrong = None if isinstance(error, OpNotSupported) else misfit(self._spec, args, options)
        if wrong is not None:
            raise ValueError(wrong) from error
        return may_continue(error, candidate.impl, strict=self._strict, inputs_intact=intact)

    def _succeeded(
        self, candidate: Candidate, key: Hashable, failed: dict[Candidate, Exception | None]
    ) -> None:
        for other, error in failed.items():
            if error is not None:
                self._manager.remember_failure(other.impl, key, error, candidate.impl)
        if candidate.mutated and key not in candidate.proven:
            candidate.proven.add(key)
            self._note_direct(key)
            self._proved()

    def _plan(
        self, key: Hashable, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[Candidate, ...]:
        """The candidates that may serve calls with these facts."""
        plan = self._plans.get(key)
        if plan is None:
            plan = tuple(
                candidate
                for candidate in self.candidates
                if self._failure(candidate, key) is None
                and candidate.refusal(args, options) is None
            )
            self._plans[key] = plan
            self._note_direct(key)
        return plan

    def _failure(self, candidate: Candidate, key: Hashable) -> str | None:
        """How it failed earlier for calls of this kind, where that is a reason to pass it over."""
        return None if self._strict else self._manager.failures.reason(candidate.impl, key)

    def _note_direct(self, key: Hashable) -> None:
        """Of what serves plain calls of this kind, remember who needs no further look."""
        first = next(iter(self._plans[key]), None)
        if first is None or first.impl.has_data_limits or first.on_copies(key, self._donate):
            return
        if self._apart or not first.mutated:
            self._direct[key] = first

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
            failure = self._failure(candidate, key)
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
