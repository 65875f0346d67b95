"""The model against what the real torch_npu wheel says about the same operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from npu_double import install
from npu_double.install import overload
from scenes import kinds_of_calls

from vllm_fl_ascend.library import OPERATORS

#: Operators whose shape function is not in the wheel: only their schema can be compared.
WITHOUT_META = {name for name in OPERATORS if name.startswith("atb::")}


def test_the_backend_calls_every_operator_that_it_lists() -> None:
    assert {call.name for call in kinds_of_calls()} == set(OPERATORS)


def test_results_mutation_and_aliases_are_what_schema_and_shape_functions_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Before it warns once, one shape function asks which device there is.
    monkeypatch.setattr(
        "torch_npu.op_plugin.meta._meta_registrations._npu_fusion_attention_warning_printed", True
    )
    for call in kinds_of_calls():
        tests = ["test_schema"] if call.name in WITHOUT_META else ["test_schema", "test_faketensor"]
        torch.library.opcheck(overload(call.name), (), call.arguments, test_utils=tests)


def test_a_model_that_returns_another_dtype_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    swiglu = overload("npu::npu_swiglu")
    torch.library.opcheck(swiglu, (x,), test_utils=["test_faketensor"])
    monkeypatch.setitem(install.MODEL, "npu::npu_swiglu", lambda *_, **__: torch.ones(2, 32))
    with pytest.raises(Exception, match=r"Dtypes .* are not equal"):
        torch.library.opcheck(swiglu, (x,), test_utils=["test_faketensor"])


def test_only_the_names_of_the_schema_are_accepted() -> None:
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    with pytest.raises(RuntimeError, match="missing value for argument 'input'"):
        torch.ops.npu.npu_dynamic_quant(x=x)


def test_what_the_model_does_not_know_is_refused_by_the_dispatcher() -> None:
    x = torch.ones(1, 2, 64, dtype=torch.bfloat16)
    with pytest.raises(NotImplementedError, match="npu::npu_interleave_rope"):
        torch.ops.npu.npu_interleave_rope(x, x, x)


def test_the_recorded_schemas_are_those_of_the_wheel() -> None:
    page = (Path(__file__).parents[4] / "docs" / "ascend_schemas.md").read_text()
    sections = dict(section.split("\n", 1) for section in page.split("\n## ")[1:])
    assert set(sections) == set(OPERATORS)
    for name, text in sections.items():
        # Where a wheel has it in pieces, it must be what older wheels have as a text.
        assert str(overload(name)._schema) in text
