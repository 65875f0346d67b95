"""One implementation through one conformance case."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch.contracts import lowered, positional_names
from vllm_fl_dispatch.errors import OpNotSupported, in_brief
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.testing.compare import MAX_MEAN_ULP, deviation, mean_error
from vllm_fl_dispatch.testing.guard import Guard
from vllm_fl_dispatch.testing.strided import strided_cases

#: Two sets of numbers for each case: what an implementation kept of the first one shows.
SEEDS = (0, 1)


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
    """Run one case and judge it: numbers, dtypes, shapes, memory. Raises nothing."""
    worst, numel = 0.0, 0
    for seed in SEEDS:
        maker = Maker(subject.device, seed)
        try:
            args, options = case.make(maker), case.options(maker)
        except (MemoryError, RuntimeError) as error:
            if not case.heavy:
                raise
            return Result(subject, case, Outcome.SKIPPED, message=f"not made: {_line(error)}")
        numel = sum(v.numel() for v in args if isinstance(v, torch.Tensor))
        try:
            ulp, problems = _judge(subject, case, args, options)
        except Unsupported as why:
            return Result(subject, case, Outcome.UNSUPPORTED, worst, str(why), numel, seed)
        worst = max(worst, ulp)
        if problems:
            message = "; ".join(problems)
            return Result(subject, case, Outcome.FAILED, worst, message, numel, seed)
    return Result(subject, case, Outcome.PASSED, worst, numel=numel)


def _judge(
    subject: Subject, case: Case, args: tuple[Any, ...], options: dict[str, Any]
) -> tuple[float, list[str]]:
    """(largest error in ulp, what is wrong) of one call."""
    spec, impl = subject.spec, subject.impl
    try:
        given = _call_arguments(subject, args, options)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001  # so may `supports`
        return 0.0, [f"its supports raised {in_brief(error)}; it sees {', '.join(spec.fact_names)}"]
    # The truth is computed first: the implementation may overwrite what it is given.
    try:
        expected = as_tuple(spec.oracle(*args, **options)) if spec.oracle else None
        shapes = as_tuple(spec.fake(*args, **options)) if spec.fake else None
    # A contract that is being written may raise anything.
    except Exception as error:  # noqa: BLE001
        return 0.0, [f"the contract's own oracle or shape function raised {in_brief(error)}"]
    guard = Guard(spec, impl, args, options)
    try:
        found = as_tuple(subject.fn(*given[0], **given[1]))
    except OpNotSupported as why:
        problems = guard.violations(())
        if problems:
            return 0.0, [f"declined the call ({why}) after it {problems[0]}"]
        raise Unsupported(str(why)) from why
    # Whatever a kernel raises is the finding.
    except Exception as error:  # noqa: BLE001
        return 0.0, [f"raised {in_brief(error)}"]
    problems = guard.violations(found)
    if shapes is not None:
        misfits = _misfits(found, shapes)
        if misfits:
            return float("inf"), misfits + problems
    if expected is None:
        return 0.0, problems
    if len(found) != len(expected) or not all(map(_is_tensor, found)):
        kinds = ", ".join(type(each).__name__ for each in found)
        return float("inf"), [f"returned ({kinds}), the oracle {len(expected)} tensors", *problems]
    if spec.canonical is not None:
        found = spec.canonical(found, *args, **options)
        expected = spec.canonical(expected, *args, **options)
    unit = args[positional_names(spec).index(spec.ulp_of)].dtype if spec.ulp_of else None
    worst = 0.0
    for number, (result, truth) in enumerate(zip(found, expected, strict=True)):
        if result is None or truth is None:
            continue
        if result.shape != truth.shape:
            problems.append(f"result {number} means {list(result.shape)} elements, "
                            f"expected {list(truth.shape)}")  # fmt: skip
            continue
        off = deviation(spec, case.dtype, result, truth, unit)
        if off is not None:
            if result.dtype.is_floating_point:
                worst = max(worst, off.amount)
            if not off.ok:
                problems.append(f"result {number} is off by {off.text}")
            elif result.element_size() == 2:
                mean = mean_error(result, truth, spec.ulp_floor)
                if abs(mean) > MAX_MEAN_ULP:
                    problems.append(
                        f"result {number} is off by {mean:+.3f} ulp in the mean: rounded "
                        f"wrongly, or computed in too short a type; accepted {MAX_MEAN_ULP}"
                    )
    return worst, problems


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
    if impl.supports is not None:
        verdict = impl.answer(spec.query(*given[0], **given[1]))
        if not verdict:
            raise Unsupported(verdict.reason)
    names = positional_names(spec)
    data = [args[names.index(name)] for name in spec.data]
    tensors = [tensor for tensor in data if tensor is not None]
    if tensors and not tensors[0].numel() and not impl.empty_ok:
        raise Unsupported("the core answers calls with zero rows for it")
    if impl.needs_contiguous and not all(t.is_contiguous() for t in tensors):
        raise Unsupported("needs contiguous inputs")
    if impl.max_numel is not None and any(t.numel() > impl.max_numel for t in tensors):
        raise Unsupported(f"serves at most {impl.max_numel} elements")
    return given


def _misfits(found: tuple[Any, ...], shapes: tuple[Any, ...]) -> list[str]:
    """Where results differ from what the contract's shape function says."""
    if len(found) != len(shapes):
        return [f"returned {len(found)} results, expected {len(shapes)}"]
    problems = []
    for number, (result, shape) in enumerate(zip(found, shapes, strict=True)):
        if not isinstance(result, torch.Tensor) or shape is None:
            if result is not shape:
                wanted = None if shape is None else "a tensor"
                problems.append(f"result {number} is {type(result).__name__}, expected {wanted}")
            continue
        for what in ("shape", "dtype", "device"):
            have, want = getattr(result, what), getattr(shape, what)
            if have != want:
                have, want = (list(v) if what == "shape" else v for v in (have, want))
                problems.append(f"result {number} has {what} {have}, expected {want}")
    return problems


def as_tuple(result: Any) -> tuple[Any, ...]:
    """Results as a tuple, also where there is one."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _is_tensor(value: Any) -> bool:
    return value is None or isinstance(value, torch.Tensor)


def _line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
