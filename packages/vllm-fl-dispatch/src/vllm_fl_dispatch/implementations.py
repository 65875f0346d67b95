"""What this process knows about implementations: whether they can run, and their functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vllm_fl_dispatch.config.environment import switch
from vllm_fl_dispatch.contracts import check_contract, lowered
from vllm_fl_dispatch.errors import ContractError, in_brief
from vllm_fl_dispatch.fallback import FailureMemory, may_continue
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.logger_manager import get_logger
from vllm_fl_dispatch.op_impl import OpImpl, function
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.resolution import Facts
from vllm_fl_dispatch.selectors import Spec
from vllm_fl_dispatch.types import BackendImplKind, Query, Verdict

logger = get_logger(__name__)


class Implementations:
    """Asks, loads and tries out implementations, each once."""

    def __init__(self, failures: FailureMemory) -> None:
        self._failures = failures
        self._verdicts: dict[tuple[str, str, str], Verdict] = {}
        #: (operator, impl_id, does it overwrite its arguments?) -> the function
        self._loaded: dict[tuple[str, str, bool], Call] = {}
        self._tried: dict[tuple[str, str, str], str | None] = {}

    def ask(self, question: str, impl: OpImpl) -> Verdict:
        """`installed` or `available` of an implementation."""
        where = (question, impl.op_name, impl.impl_id)
        if where not in self._verdicts:
            ask = getattr(impl, question)
            try:
                verdict = Verdict.yes() if ask is None else Verdict.of(ask(), f"{question}: no")
            # A device library may raise OSError, RuntimeError or anything else when probed.
            except Exception as error:  # noqa: BLE001
                verdict = Verdict.no(f"asking raised {in_brief(error)}")
            self._verdicts[where] = verdict
        return self._verdicts[where]

    def facts(
        self,
        impls: Iterable[OpImpl],
        *,
        query: Query | None,
        numel: int | None,
        refused: Mapping[str, str],
        strict: bool,
    ) -> Facts:
        """What resolution may know of the implementations of an operator. See `Facts`.

        Args:
            refused: impl_id -> why it failed when it was tried for this query.
            strict: nobody is passed over for an earlier failure: it is tried, and may raise.
        """
        impls = tuple(impls)
        failures = {
            impl.impl_id: None if strict else self._failures.reason(impl, None) for impl in impls
        }
        return Facts(
            installed={impl.impl_id: self.ask("installed", impl) for impl in impls},
            available={impl.impl_id: self.ask("available", impl) for impl in impls},
            failures={**{k: why for k, why in failures.items() if why is not None}, **refused},
            query=query,
            numel=numel,
            batch_invariant=switch("VLLM_BATCH_INVARIANT", False),
        )

    def forget_verdicts(self) -> None:
        """Ask again: a device may have appeared."""
        self._verdicts.clear()

    def load(self, spec: Spec, impl: OpImpl, *, strict: bool) -> Call | None:
        """The function of an implementation; None if it cannot be loaded, which is remembered.

        Raises:
            ImplementationFailed: it cannot, and the policy is strict.
            whatever loading raised, where that was not its fault: memory ran out, say.
        """
        where = (impl.op_name, impl.impl_id, bool(impl.mutates))
        if where not in self._loaded:
            try:
                fn = _function_of(impl)
                check_contract(spec, impl, fn)
            except Exception as error:  # noqa: BLE001  # judged in the next line
                may_continue(error, impl, strict=strict, inputs_intact=True)
                self._failures.add(impl, None, error)
                logger.warning("%s cannot be loaded: %s", impl, in_brief(error))
                return None
            self._loaded[where] = fn
        return self._loaded[where]

    def try_out(
        self, spec: OpSpec, impl: OpImpl, fn: Call, query: Query, *, strict: bool
    ) -> str | None:
        """Call an implementation on a tiny input of this kind; why it failed, or None.

        So most failures happen at start-up.

        Raises:
            ImplementationFailed: it failed and the policy is strict.
        """
        if spec.example is None or impl.kind is BackendImplKind.STOCK:
            return None
        where = (impl.op_name, impl.impl_id, str(query))
        if strict or where not in self._tried:
            args, options = spec.example(query)
            key = () if spec.facts is None else spec.facts(*args, **options)
            failure = None
            try:
                args, options = lowered(spec, fn, args, options)
                # Without an option that it lacks the call looks otherwise.
                verdict = impl.verdict_on(spec.query(*args, **options))
                failure = None if verdict else verdict.reason
                if verdict:
                    fn(*args, **options)
            except Exception as error:  # noqa: BLE001  # judged in the next line
                if may_continue(error, impl, strict=strict, inputs_intact=True):
                    self._failures.add(impl, key, error)
                    logger.warning("%s failed when it was tried: %s", impl, in_brief(error))
                failure = in_brief(error)
            self._tried[where] = failure
        return self._tried[where]

    def forget_trials(self) -> None:
        """Try again: failures were cleared."""
        self._tried.clear()


def _function_of(impl: OpImpl) -> Call:
    if impl.load is None:
        assert impl.fn is not None
        found: object = function(impl.fn)
        problem = f"fn={impl.fn!r} is no function but"
    else:
        found = function(impl.load)()
        problem = "load= must be a function without arguments that returns the implementation; "
        problem += "it returned"
    if not callable(found):
        raise ContractError(f"{impl}: {problem} {found!r}")
    return found
