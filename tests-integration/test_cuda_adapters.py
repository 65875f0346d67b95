"""The adapters of vllm-fl-cuda on the operators of vLLM's CPU build: the schemas are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from vllm.platforms import current_platform

from vllm_fl_cuda import schema
from vllm_fl_cuda.impl import normalization
from vllm_fl_cuda.plugin import OPERATORS, vllm_fl_register_ops
from vllm_fl_dispatch import ContractError, OpManager, Query, SelectionPolicy
from vllm_fl_dispatch.ops.cases import Case
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.testing import Subject, subjects
from vllm_fl_dispatch.testing.assertions import check, parameters
from vllm_fl_dispatch.testing.functional import functional_form
from vllm_fl_dispatch.types import Origin


def loaded_subjects() -> list[Subject]:
    """The backend's own implementations, told that they can run here, and not what device it is."""
    current_platform.import_kernels()
    planned = OpManager(SelectionPolicy(), sources=())
    planned.ensure_built()
    vllm_fl_register_ops(Registrar(planned.registry, Origin("vllm-fl-cuda")))
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    for op in planned.registry.op_names():
        for impl in planned.registry.impls(op):
            manager.registry.register_impl(
                replace(impl, available=None, installed=None, device_types=())
            )
    return subjects(manager, impl_id="vendor.cuda")[0]


# Triton's experts need a device.
SUBJECTS = [each for each in loaded_subjects() if each.spec.name != "fused_experts"]
FORMS = list(filter(None, map(functional_form, SUBJECTS)))
#: What only the CPU's kernels refuse: rows that are no whole vectors, options of the rotation.
REFUSED = ("odd", "-offset", "-inverse")
PARAMETERS = [
    each
    for each in parameters([*SUBJECTS, *FORMS])
    if not any(word in str(each.id) for word in REFUSED)
]


#: vLLM's CPU build has no operators for experts, and its own way to run them.
NOT_ON_CPU = {
    "silu_and_mul_with_clamp", "topk_softmax", "grouped_topk", "moe_align_block_size", "moe_sum",
    "fused_experts",
}  # fmt: skip


def test_every_operator_that_the_build_has_is_loaded() -> None:
    assert {subject.spec.name for subject in SUBJECTS} == set(OPERATORS) - NOT_ON_CPU


@pytest.mark.parametrize(("subject", "case"), PARAMETERS)
def test_case(subject: Subject, case: Case) -> None:
    check(subject, case)


def test_a_weight_of_another_dtype_is_declined() -> None:
    spec = next(subject.spec for subject in SUBJECTS if subject.spec.name == "rms_norm")
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    facts = spec.query(x, x[0].float(), 1e-6).facts | {"device": "cuda"}
    assert normalization.supports(Query(spec.name, {**facts, "weight_dtype": x.dtype}))
    verdict = normalization.supports(Query(spec.name, facts))
    assert not verdict
    assert "torch.float32" in verdict.reason


def test_a_missing_operator_is_a_contract_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(schema.EXPECTED, "_C::no_such_operator", ("Tensor",))
    with pytest.raises(ContractError, match="no compiled operator _C::no_such_operator"):
        schema.compiled_operator("_C::no_such_operator")


def test_a_changed_operator_is_a_contract_error_with_both_schemas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(schema.EXPECTED, "_C::rms_norm", ("Tensor", "Tensor", "int"))
    with pytest.raises(
        ContractError, match=r"expected: \(Tensor, Tensor, int\)\n  found: .*rms_norm"
    ):
        schema.compiled_operator("_C::rms_norm")
