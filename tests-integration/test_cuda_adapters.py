"""The adapters of vllm-fl-cuda on the operators of vLLM's CPU build: the schemas are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from vllm.platforms import current_platform

from vllm_fl_cuda import schema
from vllm_fl_cuda.impl import activation, normalization, rotary
from vllm_fl_dispatch import ContractError, OpSpec
from vllm_fl_dispatch.contracts import check_contract
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.testing.compare import run_case
from vllm_fl_dispatch.types import BackendImplKind, OpImpl

MAKERS: dict[str, Callable[[], Any]] = {
    "silu_and_mul": activation.make_silu_and_mul,
    "gelu_and_mul": activation.make_gelu_and_mul,
    "rms_norm": normalization.make_rms_norm,
    "fused_add_rms_norm": normalization.make_fused_add_rms_norm,
    "rotary_embedding": rotary.make_rotary_embedding,
}
SUPPORTS = {"normalization": normalization.supports, "rotary": rotary.supports}
SPEC: dict[str, OpSpec] = {spec.name: spec for spec in SPECS}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    current_platform.import_kernels()


def cases() -> list[Any]:
    """Every case that the adapters take: no options, and widths that the CPU kernels take."""
    return [
        pytest.param(op, case, id=f"{op}-{case.name}")
        for op in MAKERS
        for case in SPEC[op].cases()
        if not case.options
        # The CPU kernels work on whole vectors; the CUDA ones do not.
        and "odd-width" not in case.name
        and not ("float32-weight" in case.name and not case.name.startswith("float32-"))
    ]


@pytest.mark.parametrize(("op", "case"), cases())
def test_every_case_is_within_tolerance(op: str, case: Any) -> None:
    error, _, _ = run_case(SPEC[op], MAKERS[op](), case)
    assert error <= SPEC[op].max_ulp[case.name.split("-")[0]]


@pytest.mark.parametrize("op", MAKERS)
def test_an_adapter_fits_its_contract(op: str) -> None:
    fn = MAKERS[op]()
    check_contract(SPEC[op], OpImpl(op, "vendor.cuda", BackendImplKind.VENDOR, fn, "cuda"), fn)


def test_a_weight_of_another_dtype_is_declined() -> None:
    spec = SPEC["rms_norm"]
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    assert normalization.supports(spec.query(x, x[0], 1e-6))
    verdict = normalization.supports(spec.query(x, x[0].float(), 1e-6))
    assert not verdict
    assert "torch.float32" in verdict.reason


def test_a_missing_operator_is_a_contract_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schema.EXPECTED, "no_such_operator", ("Tensor",))
    with pytest.raises(ContractError, match="no compiled operator _C::no_such_operator"):
        schema.compiled_operator("no_such_operator")


def test_a_changed_operator_is_a_contract_error_with_both_schemas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(schema.EXPECTED, "rms_norm", ("Tensor", "Tensor", "int"))
    with pytest.raises(
        ContractError, match=r"expected: \(Tensor, Tensor, int\)\n  found: .*rms_norm"
    ):
        schema.compiled_operator("rms_norm")
