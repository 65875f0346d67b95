"""Every kernel behind the adapters compiles with the installed Triton, and gets all its arguments
when it is launched again."""

from __future__ import annotations

import pytest
import torch

compiled = pytest.importorskip("compiled", reason="needs Triton: nox -s flaggems")
compiled.load()

import ours  # noqa: E402

from vllm_fl_dispatch import OpNotSupported  # noqa: E402
from vllm_fl_dispatch.ops.cases import Case  # noqa: E402
from vllm_fl_dispatch.testing import Subject  # noqa: E402
from vllm_fl_dispatch.testing.assertions import parameters  # noqa: E402

pytestmark = compiled.OLD_TRITON_IS_FINE
SUBJECTS, _ = ours.load()


def _compiles_something_else(case: Case) -> bool:
    """float16 compiles what bfloat16 does; with a map, what nothing computed would be indices."""
    return case.dtype != "float16" and not case.name.endswith("-map") and case.small


@pytest.mark.parametrize(
    ("subject", "case"), [p for p in parameters(SUBJECTS) if _compiles_something_else(p.values[1])]
)
def test_kernels_compile_and_can_be_launched_again(subject: Subject, case: Case) -> None:
    args, options = ours.arguments(subject, case)
    before = len(compiled.LAUNCHES)
    try:
        # The second call takes flag-gems' own launcher, where the first one took Triton's.
        for _ in range(2):
            subject.fn(*args, **options)
    except OpNotSupported as declined:
        pytest.skip(str(declined))
    empty = not next(each for each in args if isinstance(each, torch.Tensor)).numel()
    assert len(compiled.LAUNCHES) == before if empty else len(compiled.LAUNCHES) >= before + 2
