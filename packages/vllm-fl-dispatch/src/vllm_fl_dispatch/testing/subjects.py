"""Which implementations are under test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.manager import OpManager
from vllm_fl_dispatch.op_impl import OpImpl
from vllm_fl_dispatch.policy import SelectionPolicy
from vllm_fl_dispatch.registry import unknown_name
from vllm_fl_dispatch.testing.kit import Subject
from vllm_fl_dispatch.types import Verdict


@dataclass(frozen=True)
class Absent:
    """An implementation that cannot be tested here, and why.

    Attributes:
        broken: it says that it is installed and available, and cannot be loaded.
    """

    impl: OpImpl
    reason: str
    broken: bool = False


def subjects(
    manager: OpManager,
    *,
    op: str | None = None,
    impl_id: str | None = None,
    device: str = "cpu",
) -> tuple[list[Subject], list[Absent]]:
    """The loaded implementations to test, and those that cannot run here.

    Args:
        op: only of this operator.
        impl_id: only those with this id.
        device: torch's name of the device to test on.

    Raises:
        UnknownOp: no such operator.
        DispatchError: no implementation has this id, or none of this operator.
    """
    manager.ensure_built()
    names = manager.registry.op_names() if op is None else (op,)
    specs = [manager.registry.spec(name) for name in names]
    found: list[Subject] = []
    absent: list[Absent] = []
    known = set()
    for spec in specs:
        for impl in manager.registry.impls(spec.name):
            known.add(impl.impl_id)
            if impl_id not in (None, impl.impl_id):
                continue
            verdict = next(_refusals(manager, impl), None)
            fn = manager.load(spec, impl, strict=False) if verdict is None else None
            if verdict is not None:
                absent.append(Absent(impl, verdict.reason))
            elif fn is None:
                reason = manager.failures.reason(impl, None) or "cannot be loaded"
                absent.append(Absent(impl, reason, broken=True))
            else:
                found.append(Subject(spec, impl, fn, device))
    if impl_id is not None and impl_id not in known:
        raise DispatchError(unknown_name("implementation", impl_id, known))
    return found, absent


def manager_of(subject: Subject) -> OpManager:
    """A manager that knows just this implementation."""
    manager = OpManager(SelectionPolicy(), sources=())
    manager.report.to_file = False
    manager.ensure_built()
    if subject.spec.name not in manager.registry.op_names():
        manager.registry.add_spec(subject.spec)
    manager.registry.register_impl(subject.impl)
    return manager


def _refusals(manager: OpManager, impl: OpImpl) -> Iterator[Verdict]:
    for question in ("installed", "available"):
        verdict = manager.ask(question, impl)
        if not verdict:
            yield verdict
