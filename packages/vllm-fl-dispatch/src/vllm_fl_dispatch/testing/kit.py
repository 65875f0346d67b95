"""One implementation through one conformance case."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm_fl_dispatch.candidates import Candidate
from vllm_fl_dispatch.contracts import lowered, positional_names
from vllm_fl_dispatch.errors import OpNotSupported, in_brief
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.testing.calls import calls
from vllm_fl_dispatch.testing.guard import Guard, Kept
from vllm_fl_dispatch.testing.places import place
from vllm_fl_dispatch.testing.results import errors, misfits
from vllm_fl_dispatch.testing.strided import strided_cases


class Outcome(str, enum.Enum):
    """What became of a case."""

    PASSED = "passed"
    #: The implementation says that it cannot serve the call; another one will.
    UNSUPPORTED = "unsupported"
    #: The machine has not enough memory for it.
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class Subject:
    """An implementation under test.

    Attributes:
        fn: its loaded function.
        device: torch's name of the device to test it on.
    """

    spec: OpSpec
    impl: OpImpl
    fn: Call
    device: str = "cpu"

    def __str__(self) -> str:
        return f"{self.spec.name}[{self.impl.impl_id}]"

    def cases(self) -> Iterator[Case]:
        """The cases of its operator, and those with gaps in its tensors."""
        yield from self.spec.cases() if self.spec.cases else ()
        yield from strided_cases(self.spec)


@dataclass(frozen=True)
class Result:
    """The outcome of one case.

    Attributes:
        ulp: the largest error of the floating-point results, in units of the last place.
        message: why it is not a pass.
        numel: elements of all tensor arguments: how large the case is.
        seed: with which numbers it failed.
    """

    subject: Subject
    case: Case
    outcome: Outcome
    ulp: float = 0.0
    message: str = ""
    numel: int = 0
    seed: int = 0


class Unsupported(Exception):
    """The implementation declines the call."""


def run_case(subject: Subject, case: Case) -> Result:
    """Run one case and judge it: numbers, dtypes, shapes, memory, state. Raises nothing."""
    worst, kept = 0.0, Kept()
    made = calls(subject.spec, subject.impl, case, subject.device)
    numel = 0
    while True:
        try:
            call = next(made, None)
        except (MemoryError, RuntimeError) as error:
            if not case.heavy:
                raise
            return Result(subject, case, Outcome.SKIPPED, message=f"not made: {_line(error)}")
        if call is None:
            return Result(subject, case, Outcome.PASSED, worst, numel=numel)
        numel = call.numel
        try:
            ulp, problems = _judge(subject, case, call.args, call.options, kept)
        except Unsupported as why:
            return Result(subject, case, Outcome.UNSUPPORTED, worst, str(why), numel, call.seed)
        worst = max(worst, ulp)
        if problems:
            message = "; ".join(problems)
            if call.changed:
                message = f"after {', '.join(call.changed)} changed in place: {message}"
            return Result(subject, case, Outcome.FAILED, worst, message, numel, call.seed)


def _judge(
    subject: Subject, case: Case, args: tuple[Any, ...], options: dict[str, Any], kept: Kept
) -> tuple[float, list[str]]:
    """(largest error in ulp, what is wrong) of one call."""
    spec, impl = subject.spec, subject.impl
    try:
        given = _call_arguments(subject, args, options)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001  # so may `supports`
        text = f"its supports raised {in_brief(error)}; it sees {', '.join(spec.fact_names)}"
        return 0.0, [text + place(error)]
    # The truth is computed first: the implementation may overwrite what it is given.
    try:
        expected = as_tuple(spec.oracle(*args, **options)) if spec.oracle else None
        shapes = as_tuple(spec.fake(*args, **options)) if spec.fake else None
    # A contract that is being written may raise anything.
    except Exception as error:  # noqa: BLE001
        return 0.0, [f"the contract's own oracle or shape function raised {in_brief(error)}"]
    guard = Guard(spec, impl, args, options, subject.device)
    try:
        found = as_tuple(subject.fn(*given[0], **given[1]))
    except OpNotSupported as why:
        problems = guard.violations(())
        if problems:
            return 0.0, [f"declined the call ({why}) after it {problems[0]}"]
        raise Unsupported(str(why)) from why
    # Whatever a kernel raises is the finding, and that it would end the process.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        return 0.0, [f"raised {in_brief(error)}{place(error)}", *guard.violations(())]
    problems = [*guard.violations(found), *kept.problems(found)]
    if shapes is not None:
        wrong = misfits(found, shapes)
        if wrong:
            return float("inf"), wrong + problems
    if expected is None:
        return 0.0, problems
    worst, wrong = errors(spec, case.dtype, args, options, found, expected)
    return worst, problems + wrong


def _call_arguments(
    subject: Subject, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call as the implementation takes it.

    Raises:
        Unsupported: it declares that it cannot serve the call.
    """
    spec, impl = subject.spec, subject.impl
    try:
        given = lowered(spec, subject.fn, args, options)
    except OpNotSupported as why:
        raise Unsupported(str(why)) from why
    verdict = impl.answer(spec.query(*given[0], **given[1]))
    if not verdict:
        raise Unsupported(verdict.reason)
    if spec.data and not impl.empty_ok:
        first = args[positional_names(spec).index(spec.data[0])]
        if not first.numel():
            raise Unsupported("the core answers calls with zero rows for it")
    objection = Candidate.of(spec, impl, subject.fn, subject.fn).objection(args, options)
    if objection is not None:
        raise Unsupported(objection)
    return given


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Results as a tuple, also where there is one."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
