"""What happens when an implementation fails."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from vllm_fl_dispatch import ImplementationFailed, OpNotSupported, SelectionPolicy
from vllm_fl_dispatch.errors import ContractError, in_brief
from vllm_fl_dispatch.fallback import Failure, FailureMemory, copy_arguments, may_continue
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.scopes import scoped
from vllm_fl_dispatch.shapes import misfit
from vllm_fl_dispatch.types import Origin

from .conftest import impl

X = torch.ones(2, 8)


class Failing:
    """Fails for one width; counts its attempts."""

    def __init__(self, error: Exception | None = None, width: int | None = None) -> None:
        self.error = error or RuntimeError("symbol not found")
        self.width = width
        self.attempts = 0

    def __call__(self, x: Any) -> str:
        self.attempts += 1
        if self.width in (None, x.shape[-1]):
            raise self.error
        return "vendor.acme"


def test_the_next_candidate_answers_and_the_failure_is_remembered(
    make_manager: Any, caplog: pytest.LogCaptureFixture
) -> None:
    failing = Failing()
    manager = make_manager(impl("vendor.acme", failing), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    with caplog.at_level(logging.WARNING):
        assert {op(X) for _ in range(1000)} == {"reference.torch"}
    assert failing.attempts == 1
    # A record may reach the fixture by more than one handler.
    warnings = {r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING}
    assert len(warnings) == 1
    assert "symbol not found" in warnings.pop()
    (failure,) = manager.failures.all()
    assert (failure.op_name, failure.impl_id) == ("silu_and_mul", "vendor.acme")


def test_a_failure_is_remembered_for_its_kind_of_call_only(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme", Failing(width=6)), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    served = [op(torch.ones(2, width)) for width in (8, 6, 8, 6)]
    assert served == ["vendor.acme", "reference.torch"] * 2


def test_a_kind_that_was_served_without_checks_fails_over_like_any_other(make_manager: Any) -> None:
    """Its predicate was asked once for the kind; the function still may raise."""
    asked, failing = [], Failing(width=0)

    def supports(query: Any) -> bool:
        asked.append(query.last_dim)
        return bool(query.last_dim != 4)

    manager = make_manager(impl("vendor.acme", failing, supports=supports), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    widths = (8, 8, 8, 4, 8)
    served = [op(torch.ones(2, width)) for width in widths]
    assert served == ["vendor.acme"] * 3 + ["reference.torch", "vendor.acme"]
    assert asked == [8, 4]
    failing.width = 8
    assert [op(torch.ones(2, width)) for width in (8, 8, 6)] == [
        "reference.torch", "reference.torch", "vendor.acme",
    ]  # fmt: skip
    assert failing.attempts == 6, "remembered, so not tried again"


def test_failures_can_be_cleared(make_manager: Any) -> None:
    failing = Failing()
    manager = make_manager(impl("vendor.acme", failing), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert op(X) == "reference.torch"
    failing.width = 0
    assert op(X) == "reference.torch"
    manager.clear_failures()
    assert op(X) == "vendor.acme"
    assert manager.failures.all() == ()


def test_strict_raises_at_once_with_the_owner_and_the_cause(make_manager: Any) -> None:
    policy = SelectionPolicy(strict=True)
    manager = make_manager(impl("vendor.acme", Failing()), impl("reference.torch"), policy=policy)
    with pytest.raises(ImplementationFailed, match=r"silu_and_mul\[vendor.acme\]") as caught:
        manager.get_op("silu_and_mul")(X)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert manager.failures.all() == ()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("out of memory"),
        MemoryError(),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
        RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
        ),
    ],
)
def test_trouble_of_the_device_goes_to_the_caller_and_bans_nothing(
    make_manager: Any, error: Exception
) -> None:
    manager = make_manager(impl("vendor.acme", Failing(error)), impl("reference.torch"))
    with pytest.raises(type(error)):
        manager.get_op("silu_and_mul")(X)
    assert manager.failures.all() == ()


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError(
            "CUDA error: no kernel image is available for execution on the device"
        ),
        RuntimeError("CUDA error: invalid configuration argument"),
        RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
        RuntimeError("out of resource: shared memory, Required: 294912, Hardware limit: 232448"),
    ],
)
def test_a_kernel_that_cannot_be_launched_is_no_trouble_of_the_device(
    make_manager: Any, error: Exception
) -> None:
    manager = make_manager(impl("vendor.acme", Failing(error)), impl("reference.torch"))
    assert manager.get_op("silu_and_mul")(X) == "reference.torch"
    assert len(manager.failures.all()) == 1


def test_memory_that_ran_out_is_known_as_torch_says_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**55)
    with pytest.raises(RuntimeError):
        may_continue(caught.value, impl("vendor.a"), strict=False, inputs_intact=True)


def test_when_all_fail_the_first_error_is_raised_and_nothing_remembered(make_manager: Any) -> None:
    manager = make_manager(
        impl("vendor.acme", Failing(RuntimeError("first"))),
        impl("reference.torch", Failing(ValueError("second"))),
    )
    with pytest.raises(RuntimeError, match="first"):
        manager.get_op("silu_and_mul")(X)
    assert manager.failures.all() == ()


def reference_add(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
    total = x + residual
    return total * 2, total


class InPlace:
    """Adds to the residual in place; raises after that as long as `broken`."""

    broken = True

    def __call__(self, x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
        residual.add_(x)
        if self.broken:
            raise RuntimeError("half done")
        x.copy_(residual * 2)
        return x, residual


def in_place_manager(make_manager: Any, fn: InPlace) -> Any:
    op = "fused_add_rms_norm"
    return make_manager(
        impl("vendor.acme", fn, op=op, mutates=("x", "residual")),
        impl("reference.torch", reference_add, op=op),
    )


def test_a_half_done_in_place_kernel_never_gives_a_wrong_number(make_manager: Any) -> None:
    x, residual = torch.full((2, 8), 3.0), torch.full((2, 8), 4.0)
    manager = in_place_manager(make_manager, InPlace())
    normed, total = manager.get_op("fused_add_rms_norm")(x, residual, None, 1e-6)
    assert total.eq(7).all()
    assert normed.eq(14).all()
    assert residual.eq(4).all(), "the first call runs on copies"


def test_a_proven_in_place_kernel_runs_on_the_arguments(make_manager: Any) -> None:
    fn = InPlace()
    fn.broken = False
    manager = in_place_manager(make_manager, fn)
    op = manager.get_op("fused_add_rms_norm")
    op(torch.ones(2, 8), torch.ones(2, 8), None, 1e-6)
    residual = torch.full((2, 8), 4.0)
    _, total = op(torch.full((2, 8), 3.0), residual, None, 1e-6)
    assert total is residual
    fn.broken = True
    with pytest.raises(RuntimeError, match="half done"):
        op(torch.ones(2, 8), torch.ones(2, 8), None, 1e-6)


def test_the_trial_keeps_the_layout_of_its_arguments(make_manager: Any) -> None:
    strides = []

    def record(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
        strides.append((x.stride(), residual.stride()))
        return x, residual

    manager = make_manager(
        impl("vendor.acme", record, op="fused_add_rms_norm", mutates=("x", "residual"))
    )
    op = manager.get_op("fused_add_rms_norm")
    for _ in range(2):
        op(torch.ones(4, 16)[:, :8], torch.ones(8, 4).T, None, 1e-6)
    assert strides == [((16, 1), (1, 4))] * 2


def test_one_tensor_given_twice_is_not_overwritten_twice(make_manager: Any) -> None:
    fn = InPlace()
    fn.broken = False
    op = in_place_manager(make_manager, fn).get_op("fused_add_rms_norm")
    for _ in range(2):
        x = torch.full((2, 8), 3.0)
        _, total = op(x, x, None, 1e-6)
        assert total.eq(6).all()


def test_a_failure_behind_a_bound_layer_slot_is_recovered_too(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme", Failing(width=6)), impl("reference.torch"))
    spec = manager.registry.spec("silu_and_mul")
    slot = manager.new_slot(spec, query=spec.query(X))
    assert slot.call(X) == "vendor.acme"
    assert slot.call(torch.ones(2, 6)) == "reference.torch"
    assert slot.call(X) == "vendor.acme"


def test_the_memory_of_failures_is_bounded(
    make_manager: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm_fl_dispatch import fallback

    monkeypatch.setattr(fallback, "MAX_FAILURES", 3)
    manager = make_manager(impl("vendor.acme", Failing()), impl("reference.torch"))
    for width in range(2, 20, 2):
        assert manager.get_op("silu_and_mul")(torch.ones(1, width)) == "reference.torch"
    assert len(manager.failures.all()) == 3


def test_memory_tells_new_failures_from_known_ones() -> None:
    memory = FailureMemory()
    one = impl("vendor.acme", origin=Origin("vllm-fl-acme", "0.3"))
    assert memory.add(one, ("k",), ValueError("no"))
    assert not memory.add(one, ("k",), ValueError("again"))
    (failure,) = memory.all()
    assert failure == Failure(
        "silu_and_mul", "vendor.acme", ("k",), "ValueError: no", "vllm-fl-acme 0.3"
    )
    assert memory.reason(one, ("k",)) == "ValueError: no"
    assert memory.reason(one, ("other",)) is None
    assert memory.concerns(one)
    assert not memory.concerns(impl("vendor.other"))
    assert not memory.concerns(impl("vendor.acme", op="rms_norm"))
    memory.add(impl("vendor.other"), None, ValueError("never"))
    assert memory.reason(impl("vendor.other"), ("any",)) == "ValueError: never"
    memory.clear()
    assert memory.all() == ()


def test_copies_are_new_tensors_of_the_asked_layout() -> None:
    strided, expanded = torch.ones(4, 16)[:, :8], torch.ones(1, 8).expand(4, 8)
    kept = copy_arguments((strided, None, expanded, "x"), (0, 1, 2), keep_layout=True)
    assert kept[0].stride() == (16, 1)
    assert kept[1] is None
    assert kept[2].stride() == (8, 1)
    assert kept[3] == "x"
    assert all(torch.equal(kept[i], (strided, None, expanded)[i]) for i in (0, 2))
    assert all(kept[i].data_ptr() != (strided, None, expanded)[i].data_ptr() for i in (0, 2))
    packed = copy_arguments((strided, expanded), (0,), keep_layout=False)
    assert packed[0].stride() == (8, 1)
    assert packed[1] is expanded


def test_whose_fault_it_is() -> None:
    one = impl("vendor.acme", origin=Origin("vllm-fl-acme", "0.3"))

    def judge(error: Exception, strict: bool = False, intact: bool = True) -> bool:
        return may_continue(error, one, strict=strict, inputs_intact=intact)

    assert judge(ValueError("no")) is True
    assert judge(OpNotSupported("not this")) is False
    assert judge(OpNotSupported("not this"), strict=True, intact=False) is False
    with pytest.raises(ValueError, match=r"^no$"):
        judge(ValueError("no"), intact=False)
    with pytest.raises(ImplementationFailed) as caught:
        judge(ValueError("no"), strict=True)
    assert str(caught.value) == (
        "silu_and_mul[vendor.acme] of vllm-fl-acme 0.3 raised ValueError: no "
        "(the policy is strict: no fallback)"
    )
    for text in ("CUDA error: x", "NPU error: x", "device-side assert triggered", "ACL error 1"):
        with pytest.raises(RuntimeError, match=r"error|assert"):
            judge(RuntimeError(text))
        assert judge(ValueError(text)) is True
    if hasattr(torch, "AcceleratorError"):
        with pytest.raises(torch.AcceleratorError):
            judge(torch.AcceleratorError("lost"))


@pytest.mark.parametrize("device", ["cuda", "npu"])
@pytest.mark.parametrize(("initialized", "capturing"), [(True, True), (True, False), (False, True)])
def test_nothing_goes_on_while_a_stream_is_capturing(
    monkeypatch: pytest.MonkeyPatch, device: str, initialized: bool, capturing: bool
) -> None:
    # torch_npu adds a module like that of CUDA to torch.
    module = SimpleNamespace(
        is_initialized=lambda: initialized, is_current_stream_capturing=lambda: capturing
    )
    monkeypatch.setattr(torch, device, module, raising=False)
    if initialized and capturing:
        with pytest.raises(ValueError, match="no"):
            may_continue(ValueError("no"), impl("vendor.a"), strict=False, inputs_intact=True)
    else:
        assert may_continue(ValueError("no"), impl("vendor.a"), strict=False, inputs_intact=True)


def test_what_is_kept_of_an_error_is_short_and_of_ours_whole() -> None:
    assert in_brief(ValueError("no")) == "ValueError: no"
    long = in_brief(TypeError("incompatible arguments\n" + "tensor([1.0])\n" * 1000))
    assert long.startswith("TypeError: incompatible arguments\ntensor")
    assert long.endswith(" ...")
    assert len(long) < 700
    assert len(long.splitlines()) < 10
    ours = "does not fit\n" * 20
    assert in_brief(ContractError(ours)) == f"ContractError: {ours}".rstrip()


def row_by_row(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
    """As a kernel does it: a row is read after others were written."""
    for row, other in zip(x, residual, strict=True):
        other.copy_(row + other)
        row.copy_(other * 2)
    return x, residual


@pytest.mark.parametrize(
    "residual_of",
    [
        lambda x: torch.arange(4.0).expand(3, 4),
        lambda x: x.view(3, 4),
        lambda x: x,
        lambda x: torch.ones(3, 4),
    ],
    ids=["expanded", "view of x", "x itself", "apart"],
)
def test_overwritten_arguments_that_share_memory_give_the_same_each_time(
    make_manager: Any, residual_of: Any
) -> None:
    mutates = ("x", "residual")
    manager = make_manager(
        impl("vendor.acme", row_by_row, op="fused_add_rms_norm", mutates=mutates)
    )
    op = manager.get_op("fused_add_rms_norm")
    for _ in range(3):
        x = torch.arange(12.0).reshape(3, 4)
        residual = residual_of(x)
        expected = x + residual
        assert torch.equal(op(x, residual, None, 1e-6)[1], expected)


def test_a_strict_policy_tries_again_what_failed_earlier(make_manager: Any) -> None:
    manager = make_manager(impl("vendor.acme", Failing()), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    assert op(X) == "reference.torch"
    with scoped(manager, strict=True), pytest.raises(ImplementationFailed, match=r"vendor\.acme"):
        op(X)
    manager.set_policy(SelectionPolicy(strict=True))
    with pytest.raises(ImplementationFailed, match="symbol not found"):
        op(X)
    manager.set_policy(SelectionPolicy())
    assert op(X) == "reference.torch"


def test_what_cannot_be_loaded_is_named_under_a_strict_policy(make_manager: Any) -> None:
    impls = impl("vendor.acme", load="no_such_library:make"), impl("reference.torch")
    manager = make_manager(*impls, policy=SelectionPolicy(strict=True))
    with pytest.raises(
        ImplementationFailed, match=r"silu_and_mul\[vendor\.acme\].*no_such_library"
    ):
        manager.get_op("silu_and_mul")(X)


def test_memory_that_ran_out_while_loading_bans_nobody(make_manager: Any) -> None:
    left = [torch.OutOfMemoryError("out of memory")]

    def load() -> Any:
        if left:
            raise left.pop()
        return lambda x: "vendor.acme"

    manager = make_manager(impl("vendor.acme", load=load), impl("reference.torch"))
    op = manager.get_op("silu_and_mul")
    with pytest.raises(torch.OutOfMemoryError):
        op(X)
    assert op(X) == "vendor.acme"


def test_a_call_that_does_not_fit_the_contract_bans_nobody(make_manager: Any) -> None:
    def norm(x: Any, weight: Any, epsilon: float) -> str:
        if weight.shape[-1] != x.shape[-1]:
            raise RuntimeError("sizes differ")
        return "vendor.acme"

    manager = make_manager(
        impl("vendor.acme", norm, op="rms_norm"),
        impl("reference.torch", lambda *_, **__: "reference.torch", op="rms_norm"),
    )
    op = manager.get_op("rms_norm")
    with pytest.raises(ValueError, match=r"x \[2, 8\], weight \[3\]; accepted: x \[..., n\]"):
        op(X, torch.ones(3), 1e-6)
    assert manager.failures.all() == ()
    assert op(X, torch.ones(8), 1e-6) == "vendor.acme"


def test_every_case_fits_the_shapes_of_its_contract() -> None:
    maker, seen = Maker("cpu"), 0
    for spec in SPECS:
        assert spec.shapes
        for case in [] if spec.cases is None else spec.cases():
            assert misfit(spec, case.make(maker), case.options(maker)) is None, case.name
            seen += 1
    assert seen > 100


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("silu_and_mul", [(2, 7)]),
        ("fused_add_rms_norm", [(2, 8), (2, 4), (8,), 1e-6]),
        ("moe_sum", [(2, 8)]),
        ("topk_softmax", [(8,), 2]),
        ("rotary_embedding", [(3,), (3, 64), (4, 64), 64, (9, 64), True]),
    ],
)
def test_what_does_not_fit_the_shapes(op: str, args: list[Any]) -> None:
    spec = next(spec for spec in SPECS if spec.name == op)
    made = tuple(torch.ones(a) if isinstance(a, tuple) else a for a in args)
    assert str(misfit(spec, made, {})).startswith(f"{op} was called with ")
