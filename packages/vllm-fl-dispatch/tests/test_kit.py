"""The conformance kit: right implementations pass, and each planted fault is caught."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import OpNotSupported, Verdict
from vllm_fl_dispatch.derived import add_then_norm
from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Case, Maker
from vllm_fl_dispatch.testing import Outcome, Result, Subject, run_case
from vllm_fl_dispatch.testing.compare import mean_error, ulp_error
from vllm_fl_dispatch.testing.functional import functional_form_is_right
from vllm_fl_dispatch.testing.reproduce import described, snippet
from vllm_fl_dispatch.testing.rows import rows_stand_alone
from vllm_fl_dispatch.testing.structure import (
    predicate_bears_what_is_not_known,
    schema_is_that_of_the_contract,
    traceable_code_is_traced,
)

from .conftest import impl
from .planted import (
    FAULTS,
    RIGHT,
    changes_the_process,
    crashes_without_rows,
    ignores_row_stride,
    rms_norm,
    rotary_embedding,
    rotates_in_place,
    silu_and_mul,
)

SPEC: dict[str, OpSpec] = {spec.name: spec for spec in SPECS}
INF, NAN = float("inf"), float("nan")


def subject(op: str, fn: Callable[..., Any], **more: Any) -> Subject:
    return Subject(SPEC[op], impl("vendor.planted", fn, op=op, **more), fn)


def case_of(op: str, name: str) -> Case:
    cases = subject(op, len).cases()
    return next(case for case in cases if case.name == name)


def failures(tested: Subject) -> list[Result]:
    """The failed ones of all cases."""
    results = [run_case(tested, case) for case in tested.cases()]
    assert results
    return [result for result in results if result.outcome is Outcome.FAILED]


@pytest.mark.parametrize("op", RIGHT)
def test_a_right_implementation_passes_every_case(op: str) -> None:
    tested = subject(op, RIGHT[op])
    found = {case.name: run_case(tested, case) for case in tested.cases()}
    assert {r.outcome for r in found.values()} <= {Outcome.PASSED, Outcome.SKIPPED}, found
    assert not [r for r in found.values() if r.outcome is Outcome.SKIPPED and not r.case.heavy]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_caught(name: str) -> None:
    op, fn, message, case = FAULTS[name]
    result = run_case(subject(op, fn), case_of(op, case))
    assert result.outcome is Outcome.FAILED
    assert re.search(message, result.message), result.message


def test_a_fault_is_caught_only_where_it_shows() -> None:
    op, fn, _, _ = FAULTS["ignored interleaved flag"]
    names = {result.case.name for result in failures(subject(op, fn))}
    assert names
    assert all("gptj" in name for name in names)


# -- what is declared ---------------------------------------------------------------------------


def test_what_is_declared_unsupported_is_not_a_pass() -> None:
    def verdict(name: str, **more: Any) -> Result:
        fn = more.pop("fn", silu_and_mul)
        return run_case(subject("silu_and_mul", fn, **more), case_of("silu_and_mul", name))

    def not_half(query: Any) -> Verdict:
        return Verdict.yes() if query.dtype == torch.float32 else Verdict.no("float32 only")

    declined = verdict("bfloat16-3d", supports=not_half)
    assert (declined.outcome, declined.message) == (Outcome.UNSUPPORTED, "float32 only")
    assert verdict("float32-3d", supports=not_half).outcome is Outcome.PASSED
    assert verdict("float32-row-stride", needs_contiguous=True).message == "needs contiguous inputs"
    assert verdict("float32-wide", max_numel=100).message == "serves at most 100 elements"
    empty = verdict("float32-zero-rows", fn=crashes_without_rows, empty_ok=False)
    assert empty.message == "the core answers calls with zero rows for it"

    def declines(x: Any) -> Any:
        raise OpNotSupported("odd width")

    assert verdict("float32-odd-width", fn=declines).message == "odd width"


def test_a_predicate_that_needs_every_fact_is_caught() -> None:
    def even(query: Any) -> bool:
        return bool(query.last_dim % 2 == 0)

    def bears(query: Any) -> bool:
        return query.last_dim is None or even(query)

    check = predicate_bears_what_is_not_known
    check(subject("silu_and_mul", silu_and_mul, supports=bears))
    with pytest.raises(AssertionError, match=r"TypeError.* where last_dim is not known"):
        check(subject("silu_and_mul", silu_and_mul, supports=even))


def test_an_option_that_an_implementation_lacks_is_unsupported_or_lowered() -> None:
    def plain(x: Any, weight: Any, epsilon: float) -> Any:
        return rms_norm(x, weight, epsilon)

    tested = subject("rms_norm", plain)
    partial = run_case(tested, case_of("rms_norm", "float32-3d-partial-variance"))
    assert (partial.outcome, partial.message) == (
        Outcome.UNSUPPORTED,
        "it has no option variance_size",
    )
    assert run_case(tested, case_of("rms_norm", "float32-3d-gemma")).outcome is Outcome.PASSED


def test_declared_mutation_is_no_fault() -> None:
    tested = subject("rotary_embedding", rotates_in_place, mutates=("query", "key"))
    assert failures(tested) == []


def test_a_case_that_needs_too_much_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, width: int, *, dtype: str) -> Any:
        raise RuntimeError("can't allocate memory: you tried to allocate 4294967808 bytes.\nmore")

    monkeypatch.setattr(Maker, "far_rows", fails)
    tested = subject("silu_and_mul", silu_and_mul)
    result = run_case(tested, case_of("silu_and_mul", "float16-far-rows"))
    assert result.outcome is Outcome.SKIPPED
    assert result.message.startswith("not made: can't allocate memory")


# -- units --------------------------------------------------------------------------------------


def test_errors_are_counted_in_units_of_the_last_place() -> None:
    def worst(found: Any, expected: Any, **more: Any) -> float:
        return float(ulp_error(found, expected, **more).max())

    one = torch.ones(1, 4, dtype=torch.bfloat16)
    assert worst(one, one.double()) == 0
    assert worst(one + 2**-7, one.double()) == 1
    assert worst(one.float() + 2**-7, one.double(), unit_dtype=torch.bfloat16) == 1
    assert worst(one, one.double() * NAN) == INF
    assert worst(one * NAN, one.double() * NAN) == 0
    assert worst(one * INF, one.double()) == INF
    small = torch.tensor([[1.0, 1e-6]])
    expected = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert worst(small, expected) > 1e6
    assert worst(small, expected, floor=1.0) < 20


def test_the_mean_error_has_a_sign() -> None:
    expected = torch.full((2, 1024), 1.0 + 2**-9, dtype=torch.float64)
    low, high = torch.ones(2, 1024).bfloat16(), torch.full((2, 1024), 1.0 + 2**-7).bfloat16()
    assert mean_error(low, expected) == -0.25
    assert mean_error(high, expected) == 0.75
    assert mean_error(low[:, :8], expected[:, :8]) == 0


# -- what a person gets -------------------------------------------------------------------------


def test_a_failing_case_can_be_pasted_into_python(default_manager: Any) -> None:
    manager = default_manager(impl("vendor.planted", ignores_row_stride))
    assert manager.registry.impls("silu_and_mul")
    tested = subject("silu_and_mul", ignores_row_stride)
    result = run_case(tested, case_of("silu_and_mul", "float32-row-stride"))
    assert described(result) == "  x = float32 [5, 192], strides [384, 1]"
    space: dict[str, Any] = {}
    *lines, last = snippet(result).splitlines()
    exec("\n".join(lines), space)
    args, options, found, expected = eval(last, space)
    assert [tuple(arg.shape) for arg in args] == [(5, 192)]
    assert options == {}
    assert not torch.allclose(found.double(), expected)


def test_reproducing_names_what_it_does_not_find(default_manager: Any) -> None:
    from vllm_fl_dispatch import UnknownOp
    from vllm_fl_dispatch.errors import DispatchError
    from vllm_fl_dispatch.testing import reproduce

    default_manager(
        impl("vendor.planted", silu_and_mul),
        impl("vendor.absent", silu_and_mul, available=lambda: Verdict.no("no such device")),
    )
    with pytest.raises(UnknownOp, match="did you mean 'silu_and_mul'"):
        reproduce("silu_and_mull", "float32-3d", "vendor.planted")
    with pytest.raises(DispatchError, match=r"did you mean 'vendor\.planted'"):
        reproduce("silu_and_mul", "float32-3d", "vendor.plantd")
    with pytest.raises(DispatchError, match="did you mean 'float32-3d'"):
        reproduce("silu_and_mul", "float32-3dd", "vendor.planted")
    with pytest.raises(DispatchError, match="cannot run here: no such device"):
        reproduce("silu_and_mul", "float32-3d", "vendor.absent")


@pytest.mark.parametrize(
    ("supports", "message"),
    [
        (lambda query: query.facts["tokens"] < 64, "KeyError: 'tokens'; it sees dtype, device"),
        (lambda query: None, "TypeError: the answer None is neither"),
    ],
)
def test_a_predicate_that_goes_wrong_is_a_failure(supports: Any, message: str) -> None:
    tested = subject("silu_and_mul", silu_and_mul, supports=supports)
    result = run_case(tested, case_of("silu_and_mul", "float32-3d"))
    assert result.outcome is Outcome.FAILED
    assert result.message.startswith("its supports raised ")
    assert message in result.message


def test_what_is_declared_traceable_must_be() -> None:
    def hidden(x: torch.Tensor) -> torch.Tensor:
        ctypes.c_void_p(x.data_ptr())
        return silu_and_mul(x)

    traceable_code_is_traced(subject("silu_and_mul", hidden))
    traceable_code_is_traced(subject("silu_and_mul", silu_and_mul, traceable=True))
    with pytest.raises(AssertionError, match="is declared traceable, and cannot be traced"):
        traceable_code_is_traced(subject("silu_and_mul", hidden, traceable=True))


def test_a_promise_of_batch_invariance_is_kept() -> None:
    def depends_on_the_batch(x: torch.Tensor) -> torch.Tensor:
        return silu_and_mul(x) * (1 + 2e-7 * (len(x) > 1))

    rows_stand_alone(subject("silu_and_mul", depends_on_the_batch))
    rows_stand_alone(subject("silu_and_mul", silu_and_mul, batch_invariant=True))
    with pytest.raises(AssertionError, match="row 0 alone differs from itself in the batch"):
        rows_stand_alone(subject("silu_and_mul", depends_on_the_batch, batch_invariant=True))


@pytest.mark.parametrize("answer", ["a", [1.0], 3, (None, 2)])
def test_a_result_of_a_wrong_kind_is_a_failure_without_a_shape_function_too(answer: Any) -> None:
    spec = replace(SPEC["silu_and_mul"], fake=None)
    for contract in (spec, SPEC["silu_and_mul"]):
        tested = Subject(contract, impl("vendor.planted"), lambda x: answer)
        result = run_case(tested, case_of("silu_and_mul", "float32-3d"))
        assert result.outcome is Outcome.FAILED
        assert "expected" in result.message or "the oracle 1 tensors" in result.message


def test_a_contract_that_raises_is_named_as_the_culprit() -> None:
    def oracle(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("n is 0")

    spec = replace(SPEC["silu_and_mul"], oracle=oracle)
    tested = Subject(spec, impl("vendor.planted"), silu_and_mul)
    message = run_case(tested, case_of("silu_and_mul", "float32-3d")).message
    assert message == (
        "the contract's own oracle or shape function raised ZeroDivisionError: n is 0"
    )


@pytest.mark.parametrize("op", SPEC)
def test_the_schemas_of_the_core_are_those_of_its_contracts(op: str) -> None:
    schema_is_that_of_the_contract(subject(op, silu_and_mul))


def test_a_schema_that_lacks_a_parameter_is_caught() -> None:
    spec = replace(SPEC["gelu_and_mul"], schema="(Tensor x) -> Tensor")
    tested = Subject(spec, impl("vendor.planted", op="gelu_and_mul"), silu_and_mul)
    with pytest.raises(AssertionError, match=r"does not fit gelu_and_mul.*approximate"):
        schema_is_that_of_the_contract(tested)


def test_batch_invariance_is_checked_in_every_dtype_and_operator() -> None:
    def nudged(x: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        little = 1e-3 * (x.dtype is torch.bfloat16 and len(x) > 1)
        return (rms_norm(x.float(), *rest, **options) * (1 + little)).to(x.dtype)

    def turned(*args: Any, **options: Any) -> Any:
        query, key = rotary_embedding(*args, **options)
        return query * (1 + 1.2e-7 * (len(query) > 1)), key

    for op, fn in (("rms_norm", nudged), ("rotary_embedding", turned)):
        with pytest.raises(AssertionError, match="alone differs from itself in the batch"):
            rows_stand_alone(subject(op, fn, batch_invariant=True))


def test_what_a_kernel_changed_in_the_process_is_set_back() -> None:
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())
    run_case(subject("silu_and_mul", changes_the_process), case_of("silu_and_mul", "float32-3d"))
    assert (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled()) == before


def test_an_error_is_placed_in_the_kernels_own_code_not_in_torchs() -> None:
    def folds(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.fold(x, 3, 3)

    result = run_case(subject("silu_and_mul", folds), case_of("silu_and_mul", "float32-3d"))
    line = folds.__code__.co_firstlineno + 1
    assert result.message.endswith(f"at {__file__}:{line}, in folds")


def overwrites_the_residual(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual += x
    return rms_norm(residual, weight, epsilon), residual


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (add_then_norm(rms_norm), None),
        (overwrites_the_residual, "float32"),
        (lambda x, residual, weight, epsilon: (x, residual), "ulp"),
    ],
)
def test_the_form_for_compiled_code_is_tested_as_well(form: Any, said: str | None) -> None:
    (spec,) = (spec for spec in SPECS if spec.name == "fused_add_rms_norm")
    kernel = impl(
        "vendor.acme",
        overwrites_the_residual,
        op=spec.name,
        mutates=("x", "residual"),
        load_functional=lambda: form,
    )
    subject = Subject(spec, kernel, overwrites_the_residual)
    if said is None:
        functional_form_is_right(subject)
    else:
        with pytest.raises(AssertionError, match=said):
            functional_form_is_right(subject)


def test_a_declared_limit_keeps_strided_weights_from_a_kernel() -> None:
    def takes_weights_for_contiguous(
        x: torch.Tensor, weight: torch.Tensor | None, epsilon: float
    ) -> torch.Tensor:
        if weight is not None:
            weight = weight.as_strided(weight.shape, (1,))
        return rms_norm(x.contiguous(), weight, epsilon)

    (spec,) = (spec for spec in SPECS if spec.name == "rms_norm")

    def outcomes(**limits: Any) -> set[Outcome]:
        kernel = impl("vendor.acme", takes_weights_for_contiguous, op=spec.name, **limits)
        subject = Subject(spec, kernel, takes_weights_for_contiguous)
        cases = [case for case in subject.cases() if case.name.endswith("strided-weight")]
        assert cases
        return {run_case(subject, case).outcome for case in cases}

    assert outcomes() == {Outcome.FAILED}
    assert outcomes(needs_contiguous=True) == {Outcome.UNSUPPORTED}
