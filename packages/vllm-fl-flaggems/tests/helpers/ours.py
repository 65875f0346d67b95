"""Our implementations, loaded as the manager loads them, in a process with flag_gems."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_fl_dispatch import OpManager, OpNotSupported, Query, SelectionPolicy
from vllm_fl_dispatch.contracts import lowered
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.testing import Absent, Subject, subjects
from vllm_fl_dispatch.types import Origin
from vllm_fl_flaggems.plugin import OPERATORS, vllm_fl_register_ops


def load(device: str = "cpu") -> tuple[list[Subject], list[Absent]]:
    """The operators that this flag-gems serves, and those that it does not, with the reason."""
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-flaggems")))
    found: list[Subject] = []
    absent: list[Absent] = []
    for spec in SPECS:
        if spec.name in OPERATORS:
            here, missing = subjects(manager, op=spec.name, device=device)
            found += here
            absent += missing
    return found, absent


def arguments(subject: Subject, case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a case as the implementation takes them; skips what it does not serve."""
    maker = Maker(subject.device)
    try:
        args, options = lowered(subject.spec, subject.fn, case.make(maker), case.options(maker))
    except OpNotSupported as why:
        pytest.skip(str(why))
    query = subject.spec.query(*args, **options)
    # Kernels may be compiled for a device that is not here.
    verdict = subject.impl.answer(Query(query.op_name, {**query.facts, "device": None}))
    if not verdict:
        pytest.skip(verdict.reason)
    return args, options
