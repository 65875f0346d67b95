"""Every kernel behind the adapters compiles with the installed Triton, and gets all its arguments
when it is launched again."""

from __future__ import annotations

from typing import Any

import pytest

compiled = pytest.importorskip("compiled", reason="needs Triton: nox -s flaggems")

from candidates import SPEC, load_all  # noqa: E402

from vllm_fl_dispatch import OpNotSupported  # noqa: E402
from vllm_fl_dispatch.candidates import Candidate  # noqa: E402
from vllm_fl_dispatch.ops.cases import Maker  # noqa: E402

# Triton 3.7 warns about the block pointers of flag-gems' generated kernels.
pytestmark = pytest.mark.filterwarnings("ignore:.*make_block_ptr is deprecated")


@pytest.fixture(scope="module")
def candidates() -> dict[str, Candidate]:
    compiled.load()
    return load_all()


def _cases() -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{case.name}")
        for name, spec in SPEC.items()
        for case in spec.cases()
        if "zero" not in case.name
    ]


@pytest.mark.parametrize(("name", "case"), _cases())
def test_kernels_compile_and_can_be_launched_again(
    candidates: dict[str, Candidate], name: str, case: Any
) -> None:
    candidate = candidates.get(name)
    if candidate is None:
        pytest.skip("not in this release of flag-gems")
    args = case.make(Maker())
    if refusal := candidate.refusal(args, case.options):
        pytest.skip(refusal)
    before = len(compiled.LAUNCHES)
    try:
        # The second call takes flag-gems' own launcher, where the first one took Triton's.
        for _ in range(2):
            candidate.call(args, case.options, None, True)
    except OpNotSupported as declined:
        pytest.skip(str(declined))
    assert len(compiled.LAUNCHES) >= before + 2
