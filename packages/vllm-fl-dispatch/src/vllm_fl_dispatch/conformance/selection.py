"""Which implementations and known failures the options of the conformance tests select."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.cli.explain import device_named
from vllm_fl_dispatch.errors import DispatchError
from vllm_fl_dispatch.testing.kit import Subject
from vllm_fl_dispatch.testing.subjects import Absent, subjects
from vllm_fl_dispatch.testing.xfails import Xfail, check_used, read_xfails


@dataclass(frozen=True)
class Selection:
    """What one run tests, and which operators of the implementation cannot be tested here."""

    subjects: list[Subject]
    xfails: tuple[Xfail, ...]
    absent: tuple[Absent, ...] = ()


KEY = pytest.StashKey[Selection]()


def select(config: pytest.Config) -> Selection:
    """What the options name.

    Raises:
        pytest.UsageError: they name nothing, something unknown, or what cannot run here.
    """
    if config.option.impl is None:
        raise pytest.UsageError("--impl is missing: name the implementation to test")
    try:
        device_named(config.option.device)
        found, absent = subjects(
            get_default_manager(),
            op=config.option.op,
            impl_id=config.option.impl,
            device=config.option.device,
        )
        if absent and not found:
            lines = "\n".join(f"{each.impl}: {each.reason}" for each in absent)
            raise pytest.UsageError(f"cannot be tested here:\n{lines}")
        known = _xfails(config)
        check_used(known, found, absent)
        return Selection(found, known, tuple(absent))
    except (DispatchError, OSError) as error:
        raise pytest.UsageError(str(error)) from error


def _xfails(config: pytest.Config) -> tuple[Xfail, ...]:
    path = config.option.xfails
    if path is None:
        path = Path("xfails.txt")
        if not path.exists():
            return ()
    known = read_xfails(path)
    if config.option.op:
        known = tuple(each for each in known if each.op == config.option.op)
    return known
