"""Makes the tests of what was selected."""

from __future__ import annotations

import pytest

from vllm_fl_dispatch.conformance.selection import KEY, Selection
from vllm_fl_dispatch.testing.assertions import parameters
from vllm_fl_dispatch.testing.structure import CHECKS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every case, and every structural check, of every operator of the implementation."""
    names = metafunc.fixturenames
    if "subject" not in names:
        return
    # Without a selection they were collected as files, not asked for as conformance tests.
    selected = metafunc.config.stash.get(KEY, Selection([], ()))
    if "case" in names:
        pairs = parameters(selected.subjects, selected.xfails, selected.absent)
        # An implementation may have operators that this machine or release lacks.
        pairs += [
            pytest.param(
                each,
                None,
                id=str(each.impl),
                marks=() if each.broken else pytest.mark.skip(each.reason),
            )
            for each in selected.absent
        ]
        metafunc.parametrize(("subject", "case"), pairs)
    else:
        metafunc.parametrize("subject", selected.subjects, ids=str)
        metafunc.parametrize("structural", CHECKS, ids=lambda check: check.__name__)
