"""Which implementations and cases the options of the conformance tests select."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.testing.assertions import parameters
from vllm_fl_dispatch.testing.kit import Subject
from vllm_fl_dispatch.testing.structure import CHECKS
from vllm_fl_dispatch.testing.subjects import subjects
from vllm_fl_dispatch.testing.xfails import Xfail, read_xfails, unused


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every case, and every structural check, of every operator of the implementation."""
    names = metafunc.fixturenames
    if "subject" not in names:
        return
    found = _subjects(metafunc.config)
    if "case" in names:
        known = _xfails(metafunc.config, found) if found else ()
        metafunc.parametrize(("subject", "case"), parameters(found, known))
    else:
        pairs = [pytest.param(s, c, id=f"{s}-{c.__name__}") for s in found for c in CHECKS]
        metafunc.parametrize(("subject", "structural"), pairs)


def _subjects(config: pytest.Config) -> list[Subject]:
    if "impl" not in config.option:
        return []  # collected as files, not asked for as conformance tests
    if config.option.impl is None:
        raise pytest.UsageError("--impl is missing: name the implementation to test")
    try:
        found, absent = subjects(
            get_default_manager(),
            op=config.option.op,
            impl_id=config.option.impl,
            device=config.option.device,
        )
    except DispatchError as error:
        raise pytest.UsageError(str(error)) from error
    if absent:
        lines = "\n".join(f"{each.impl}: {each.reason}" for each in absent)
        raise pytest.UsageError(f"cannot be tested here:\n{lines}")
    return found


def _xfails(config: pytest.Config, found: list[Subject]) -> tuple[Xfail, ...]:
    path = config.option.xfails
    if path is None:
        path = Path("xfails.txt")
        if not path.exists():
            return ()
    try:
        known = read_xfails(path)
    except (DispatchError, OSError) as error:
        raise pytest.UsageError(str(error)) from error
    if config.option.op:
        known = tuple(each for each in known if each.op == config.option.op)
    idle = unused(known, ((s.spec.name, case.name) for s in found for case in s.cases()))
    if idle:
        lines = ", ".join(f"{each.op}[{each.pattern}]" for each in idle)
        raise pytest.UsageError(f"{path}: no case matches {lines}")
    return known
