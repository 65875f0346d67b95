"""A failing case, as something to paste into Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.contracts import lowered, positional_names
from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.registry import unknown_name
from vllm_fl_dispatch.testing.kit import Result, Subject
from vllm_fl_dispatch.testing.runs import STRUCTURAL
from vllm_fl_dispatch.testing.subjects import subjects


@dataclass(frozen=True)
class Reproduction:
    """The arguments of one case, ready to call.

    Attributes:
        expected: the oracle's float64 result.
    """

    subject: Subject
    args: tuple[Any, ...]
    options: dict[str, Any]
    expected: Any

    def run(self) -> Any:
        """Call the implementation; it may overwrite `args`."""
        args, options = lowered(self.subject.spec, self.subject.fn, self.args, self.options)
        return self.subject.fn(*args, **options)


def reproduce(op: str, case: str, impl: str, *, device: str = "cpu", seed: int = 0) -> Reproduction:
    """The call of one conformance case to one installed implementation.

    Raises:
        UnknownOp: no such operator.
        DispatchError: no such case or implementation, or it cannot run here.
    """
    found, absent = subjects(get_default_manager(), op=op, impl_id=impl, device=device)
    if not found:
        raise DispatchError(f"{op}[{impl}] cannot run here: {absent[0].reason}")
    subject = found[0]
    cases = {each.name: each for each in subject.cases()}
    if case not in cases:
        raise DispatchError(unknown_name(f"case of {op}", case, cases))
    maker = Maker(device, seed)
    args, options = cases[case].make(maker), cases[case].options(maker)
    expected = subject.spec.oracle(*args, **options) if subject.spec.oracle else None
    return Reproduction(subject, args, options, expected)


def snippet(result: Result) -> str:
    """Lines of Python that make the call of this result again."""
    subject = result.subject
    more = "" if subject.device == "cpu" else f", device={subject.device!r}"
    more += f", seed={result.seed}" if result.seed else ""
    arguments = f"{subject.spec.name!r}, {result.case.name!r}, {subject.impl.impl_id!r}{more}"
    return (
        "from vllm_fl_dispatch.testing import reproduce\n"
        f"call = reproduce({arguments})\n"
        "call.args, call.options, call.run(), call.expected"
    )


def described(result: Result) -> str:
    """The arguments of the call, one per line: dtypes, shapes, strides, values."""
    maker = Maker(result.subject.device, result.seed)
    args, options = result.case.make(maker), result.case.options(maker)
    named = dict(zip(positional_names(result.subject.spec), args, strict=False), **options)
    return "\n".join(f"  {name} = {_text(value)}" for name, value in named.items())


def _text(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    strides = "" if value.is_contiguous() else f", strides {list(value.stride())}"
    return f"{dtype} {list(value.shape)}{strides}"


def explanation(result: Result) -> str:
    """What failed, the call, and how to make it again."""
    if result.case.name in STRUCTURAL:
        op, impl, device = result.subject.spec.name, result.subject.impl, result.subject.device
        return (
            f"{result.subject} fails the check {result.case.name}: {result.message}\n\n"
            f"pytest --pyargs vllm_fl_dispatch.conformance --impl {impl.impl_id} --op {op} "
            f"--device {device} -k {result.case.name}"
        )
    return (
        f"{result.subject} fails the case {result.case.name}: {result.message}\n"
        f"{described(result)}\n\n{snippet(result)}"
    )
