"""Every operator through the conformance kit in float32 and float16, by FlagGems' own kernels.

bfloat16 is left to a device: the interpreter rounds it by truncation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils._python_dispatch import TorchDispatchMode

interpreted = pytest.importorskip("interpreted", reason="needs Triton: nox -s flaggems")
interpreted.load()

import ours  # noqa: E402

from vllm_fl_dispatch import OpNotSupported, SelectionPolicy  # noqa: E402
from vllm_fl_dispatch.ops.cases import Case  # noqa: E402
from vllm_fl_dispatch.testing import Subject  # noqa: E402
from vllm_fl_dispatch.testing.assertions import check, parameters  # noqa: E402
from vllm_fl_dispatch.testing.functional import functional_form  # noqa: E402
from vllm_fl_dispatch.testing.rows import rows_stand_alone  # noqa: E402
from vllm_fl_flaggems import aten  # noqa: E402
from vllm_fl_flaggems.kernels import normalization, rotary  # noqa: E402
from vllm_fl_flaggems.plugin import OPERATORS  # noqa: E402

ROOT = Path(__file__).parents[4]
pytestmark = interpreted.NUMPY_IS_SILENT
SUBJECTS, ABSENT = ours.load()
FORMS = list(filter(None, map(functional_form, SUBJECTS)))


def test_aten_operators_are_replaced_under_the_key_of_the_device() -> None:
    def replaced(name: str) -> bool:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA"))

    before = replaced("mm"), replaced("_softmax")
    chosen = SelectionPolicy(flagos_aten=frozenset({"mm", "softmax"}))
    assert aten.apply(chosen) == ("mm", "softmax")
    try:
        assert replaced("mm")
        assert replaced("_softmax")
    finally:
        aten.undo()
    assert (replaced("mm"), replaced("_softmax")) == before


def test_the_names_that_our_platform_files_leave_out_exist() -> None:
    path = ROOT / "packages/vllm-fl-cuda/src/vllm_fl_cuda/config/cuda.yaml"
    listed = yaml.safe_load(path.read_text())["flagos_blacklist"]
    known = {*interpreted.load().FULL_CONFIG_BY_FUNC, *OPERATORS}
    assert set(listed) - known == set()


def test_what_this_release_has_not_is_known() -> None:
    assert {each.impl.op_name for each in ABSENT} <= {"silu_and_mul_with_clamp"}, ABSENT


def _can_be_interpreted(case: Case) -> bool:
    """Wide rows take seconds each, and once shows all that they can show here; many never end."""
    once = case.dtype == "float32" or (case.dtype == "float16" and "wide" not in case.name)
    return once and case.rows == 0


@pytest.mark.parametrize(
    ("subject", "case"),
    [p for p in parameters([*SUBJECTS, *FORMS]) if _can_be_interpreted(p.values[1])],
)
def test_case(subject: Subject, case: Case) -> None:
    check(subject, case)


class Called(TorchDispatchMode):
    """The operators of torch that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("swapped", [False, True])
def test_heads_between_others_are_normed_without_a_copy(swapped: bool) -> None:
    qkv, weight = torch.randn(5, 8 * 64), torch.randn(64)
    heads = qkv[:, :256].view(5, 4, 64)
    heads = heads.transpose(0, 1) if swapped else heads
    with Called() as called:
        found = normalization.make_rms_norm()(heads, weight, 1e-6)
    assert "clone.default" not in called.names
    assert found.is_contiguous()
    assert torch.allclose(found, torch.nn.functional.rms_norm(heads, (64,), weight, 1e-6))


def test_a_shape_that_the_rotary_kernel_does_not_know_is_declined() -> None:
    rotate = rotary.make_rotary_embedding()
    positions, table = torch.zeros(2, 3, dtype=torch.int64), torch.randn(8, 64)
    with pytest.raises(OpNotSupported, match=r"shape \(2, 3, 128\); served: \[tokens, heads \* 64"):
        rotate(positions, torch.randn(2, 3, 128), None, 64, table, True)


@pytest.mark.parametrize("subject", [s for s in SUBJECTS if s.impl.batch_invariant], ids=str)
def test_rows_stand_alone(subject: Subject) -> None:
    rows_stand_alone(subject)
