"""Layers of vLLM, one by one and without a model: what they bind, and that nothing else changes."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.hw_agnostic.layers.layernorm import RMSNorm as AgnosticRMSNorm
from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.llama3_rope import Llama3RotaryEmbedding
from vllm.model_executor.layers.rotary_embedding.mrope import MRotaryEmbedding
from vllm.platforms import current_platform

import vllm_fl_dispatch as fl
from vllm_fl_dispatch import BackendImplKind, OpImpl, SelectionPolicy, api
from vllm_fl_dispatch.config.carried import carry
from vllm_fl_dispatch.vllm import layers, register
from vllm_fl_dispatch.vllm.layers import Dispatched
from vllm_fl_dispatch.vllm.plugin import activate
from vllm_fl_dispatch.vllm.replaceable import replaceable

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
REFERENCE = SelectionPolicy(prefer="reference")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """No replaced layer and no manager before and after each test."""

    def clear() -> None:
        for layer in replaceable():
            if issubclass(layer.site.current() or object, Dispatched):
                layer.site.remove()
        api._default = None
        carry(None)

    clear()
    yield
    clear()


@pytest.fixture
def built() -> Callable[..., Any]:
    """Builds a layer under a policy, a dtype and vLLM's custom_ops."""

    def build(
        make: Callable[[], Any],
        policy: SelectionPolicy | None = REFERENCE,
        dtype: torch.dtype = torch.float32,
        custom_ops: tuple[str, ...] = ("all",),
        mode: int = 0,
    ) -> Any:
        if policy is None:
            fl.reset_global_policy()  # what the environment says
        else:
            fl.set_global_policy(policy)
        activate()
        config = VllmConfig(
            compilation_config=CompilationConfig(mode=mode, custom_ops=list(custom_ops))
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with set_current_vllm_config(config):
                return make()
        finally:
            torch.set_default_dtype(before)

    return build


def make_rotary(cls: type = RotaryEmbedding, neox: bool = True, rotary: int = 64) -> Any:
    return RotaryEmbedding(64, rotary, 512, 10000.0, neox, torch.get_default_dtype())


def filled(layer: Any) -> Any:
    """The layer with weights that are neither 0 nor 1."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
    return layer


def rand(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return (3 * torch.randn(*shape)).to(dtype)


LAYERS: dict[str, tuple[Callable[[], Any], Callable[[torch.dtype], tuple[Any, ...]]]] = {
    "silu": (SiluAndMul, lambda d: (rand(5, 2 * 96, dtype=d),)),
    "silu-3d": (SiluAndMul, lambda d: (rand(2, 3, 2 * 33, dtype=d),)),
    "gelu": (GeluAndMul, lambda d: (rand(5, 2 * 96, dtype=d),)),
    "gelu-tanh": (lambda: GeluAndMul("tanh"), lambda d: (rand(5, 2 * 96, dtype=d),)),
    "rms": (lambda: RMSNorm(96), lambda d: (rand(5, 96, dtype=d),)),
    "rms-residual": (
        lambda: RMSNorm(96), lambda d: (rand(5, 96, dtype=d), rand(5, 96, dtype=d))
    ),
    "rms-3d-strided": (
        lambda: RMSNorm(32), lambda d: (rand(5, 256, dtype=d)[:, :128].view(5, 4, 32),)
    ),
    "rms-no-weight": (lambda: RMSNorm(96, has_weight=False), lambda d: (rand(5, 96, dtype=d),)),
    "rms-partial": (
        lambda: RMSNorm(96, var_hidden_size=48), lambda d: (rand(5, 96, dtype=d),)
    ),
    "gemma": (lambda: GemmaRMSNorm(96), lambda d: (rand(5, 96, dtype=d),)),
    "gemma-residual": (
        lambda: GemmaRMSNorm(96), lambda d: (rand(5, 96, dtype=d), rand(5, 96, dtype=d))
    ),
    "rope": (
        make_rotary,
        lambda d: (torch.tensor([0, 3, 500]), rand(3, 4 * 64, dtype=d), rand(3, 128, dtype=d)),
    ),
    "rope-gptj": (
        lambda: make_rotary(neox=False),
        lambda d: (torch.tensor([0, 3, 500]), rand(3, 4 * 64, dtype=d), rand(3, 128, dtype=d)),
    ),
    "rope-partial": (
        lambda: make_rotary(rotary=32),
        lambda d: (torch.tensor([0, 3, 500]), rand(3, 4 * 64, dtype=d), rand(3, 128, dtype=d)),
    ),
    "rope-no-key": (
        make_rotary, lambda d: (torch.tensor([0, 3, 500]), rand(3, 4 * 64, dtype=d))
    ),
    **{
        f"rope-{name}": (
            make_rotary,
            lambda d, q=query, k=key: (
                torch.tensor([[0, 3, 500], [7, 7, 9]]), rand(*q, dtype=d), rand(*k, dtype=d)
            ),
        )
        for name, (query, key) in {
            "batch": ((2, 3, 4 * 64), (2, 3, 128)),
            "batch-of-heads": ((2, 3, 4, 64), (2, 3, 2, 64)),
            "batch-of-one-head": ((2, 3, 64), (2, 3, 64)),
        }.items()
    },
}  # fmt: skip


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_the_reference_equals_the_native_layer_bit_for_bit(
    built: Callable[..., Any], name: str, dtype: torch.dtype
) -> None:
    make, arguments = LAYERS[name]
    layer = filled(built(make, dtype=dtype))
    assert isinstance(layer, Dispatched)
    torch.manual_seed(2)
    args = arguments(dtype)
    expected = layer.forward_native(*(a.clone() for a in args))
    found = layer(*(a.clone() for a in args))
    for one, other in zip(as_tuple(found), as_tuple(expected), strict=True):
        if one is None:
            assert other is None
            continue
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_can_be_served_by_a_vendor(built: Callable[..., Any], name: str) -> None:
    """A vendor that counts, and otherwise computes what the reference does."""
    calls = []
    manager = fl.get_default_manager()
    manager.ensure_built()
    for op in manager.registry.op_names():
        (reference,) = (i for i in manager.registry.impls(op) if i.impl_id == "reference.torch")
        right = manager.load(manager.registry.spec(op), reference)

        def counting(*args: Any, right: Any = right, op: str = op, **options: Any) -> Any:
            calls.append(op)
            return right(*args, **options)

        manager.registry.register_impl(
            OpImpl(op, "vendor.counting", BackendImplKind.VENDOR, counting, "counting")
        )
    make, arguments = LAYERS[name]
    layer = filled(built(make, SelectionPolicy(prefer="vendor")))
    assert calls, "each implementation is tried once when a layer binds it"
    calls.clear()
    args = arguments(torch.float32)
    expected = as_tuple(layer.forward_native(*(a.clone() for a in args)))
    found = as_tuple(layer(*(a.clone() for a in args)))
    assert len(calls) == 1
    for one, other in zip(found, expected, strict=True):
        assert one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("mode", [0, 2], ids=["eager", "compiled"])
def test_what_fails_on_a_tiny_input_is_passed_over_when_the_layer_is_built(
    built: Callable[..., Any], mode: int
) -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("no symbol")

    manager = fl.get_default_manager()
    manager.ensure_built()
    manager.registry.register_impl(
        OpImpl("silu_and_mul", "vendor.broken", BackendImplKind.VENDOR, broken, "broken")
    )
    order = {"silu_and_mul": "vendor:broken|reference"}
    layer = built(SiluAndMul, SelectionPolicy.from_dict(per_op_order=order), mode=mode)
    x = torch.randn(2, 8)
    assert torch.equal(layer(x), layer.forward_native(x))
    (failure,) = manager.failures.all()
    assert failure.impl_id == "vendor.broken"
    strict = SelectionPolicy.from_dict(per_op_order=order, strict=True)
    manager.clear_failures()
    with pytest.raises(fl.ImplementationFailed, match=r"vendor\.broken"):
        built(SiluAndMul, strict, mode=mode)


def register_in_place(add: Callable[..., Any]) -> None:
    """A kernel that overwrites both arguments of the norm with a residual."""
    manager = fl.get_default_manager()
    manager.ensure_built()
    manager.registry.register_impl(
        OpImpl("fused_add_rms_norm", "vendor.inplace", BackendImplKind.VENDOR, add, "inplace",
               mutates=("x", "residual"), empty_ok=True)
    )  # fmt: skip


def test_an_in_place_kernel_that_was_tried_runs_on_the_arguments_at_once(
    built: Callable[..., Any],
) -> None:
    def add(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
        residual.add_(x)
        return x, residual

    register_in_place(add)
    layer = built(lambda: RMSNorm(8), SelectionPolicy(prefer="vendor"))
    residual = torch.ones(2, 8)
    _, total = layer(torch.ones(2, 8), residual)
    assert total is residual


def test_an_in_place_kernel_is_right_on_columns_in_compiled_code(
    built: Callable[..., Any],
) -> None:
    def add(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
        residual.add_(x)
        x.copy_(residual * 2)
        return x, residual

    register_in_place(add)
    layer = built(lambda: RMSNorm(8), SelectionPolicy(prefer="vendor"), mode=3)

    def model(x: Any, residual: Any) -> Any:
        # As the experts of a model give their sum where its width was padded.
        normed, total = layer((x * 3)[..., :8], residual.sin()[..., :8])
        return normed + 1, total

    x, residual = torch.randn(4, 12), torch.randn(4, 12)
    total = (x * 3)[..., :8] + residual.sin()[..., :8]
    # vLLM switches it off, and then a mutating operator is not safe on views.
    options = {"enable_auto_functionalized_v2": False}
    found = torch.compile(model, fullgraph=True, options=options)(x, residual)
    torch.testing.assert_close(found, (total * 2 + 1, total))


def test_a_policy_that_leaves_everything_to_vllm_replaces_nothing(
    built: Callable[..., Any],
) -> None:
    layer = built(SiluAndMul, SelectionPolicy())
    assert type(layer) is SiluAndMul
    assert not any(issubclass(c, Dispatched) for c in op_registry_oot.values())


@pytest.mark.parametrize(
    ("variable", "value"),
    [("VLLM_FL_PREFER_ENABLED", "0"), ("VLLM_FL_ENABLED", "no"), ("VLLM_FL_OOT_ENABLED", "off")],
)
def test_switched_off_nothing_is_replaced(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "reference")
    assert isinstance(built(SiluAndMul, None), Dispatched)
    monkeypatch.setenv(variable, value)
    op_registry_oot.clear()
    assert type(built(SiluAndMul, None)) is SiluAndMul


def test_operators_can_be_left_out_one_by_one(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "reference")
    monkeypatch.setenv("VLLM_FL_OOT_BLACKLIST", "rms_norm")
    assert type(built(lambda: RMSNorm(8), None)) is RMSNorm
    assert isinstance(built(SiluAndMul, None), Dispatched)
    monkeypatch.setenv("VLLM_FL_OOT_WHITELIST", "rms_norm")
    monkeypatch.delenv("VLLM_FL_OOT_BLACKLIST")
    assert isinstance(built(lambda: RMSNorm(8), None), Dispatched)
    assert type(built(SiluAndMul, None)) is SiluAndMul


def test_activating_twice_is_the_same_as_once(built: Callable[..., Any]) -> None:
    built(SiluAndMul)
    before = dict(op_registry_oot)
    activate()
    assert dict(op_registry_oot) == before


def test_a_layer_that_another_plugin_replaced_stays_its(built: Callable[..., Any]) -> None:
    class Theirs(SiluAndMul):
        pass

    op_registry_oot["SiluAndMul"] = Theirs
    try:
        assert type(built(SiluAndMul)) is Theirs
    finally:
        del op_registry_oot["SiluAndMul"]


@pytest.mark.parametrize("custom_ops", [("all", "-silu_and_mul"), ("none", "-silu_and_mul")])
def test_the_in_tree_name_still_switches_a_layer_off(
    built: Callable[..., Any], custom_ops: tuple[str, ...]
) -> None:
    layer = built(SiluAndMul, custom_ops=custom_ops)
    assert type(layer).name == "silu_and_mul"
    assert layer._forward_method == layer.forward_native


@pytest.mark.parametrize("custom_ops", [("none",), ("all",), ("none", "+silu_and_mul")])
def test_in_compiled_modes_the_bound_implementation_is_what_is_traced(
    built: Callable[..., Any], custom_ops: tuple[str, ...]
) -> None:
    manager = fl.get_default_manager()
    manager.ensure_built()
    manager.registry.register_impl(
        OpImpl("silu_and_mul", "vendor.seven", BackendImplKind.VENDOR,
               lambda x: x[..., ::2] * 0 + 7, "seven", traceable=True)
    )  # fmt: skip
    layer = built(SiluAndMul, SelectionPolicy(prefer="vendor"), custom_ops=custom_ops, mode=2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2, 8)).eq(7).all()


def test_a_traced_implementation_without_an_option_of_the_layer_serves_it_all_the_same(
    built: Callable[..., Any],
) -> None:
    def norm(x: Any, weight: Any, epsilon: float) -> Any:
        return (x * weight * 0 + weight).contiguous()

    manager = fl.get_default_manager()
    manager.ensure_built()
    manager.registry.register_impl(
        OpImpl("rms_norm", "vendor.plain", BackendImplKind.VENDOR, norm, "plain", traceable=True)
    )
    policy = SelectionPolicy.from_dict(per_op_order={"rms_norm": "vendor:plain|reference"})
    gemma, plain = (
        built(lambda kind=kind: kind(8), policy, mode=2) for kind in (GemmaRMSNorm, RMSNorm)
    )
    for layer, expected in ((gemma, 1.5), (plain, 0.5)):
        layer.weight.data.fill_(0.5)
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        assert compiled(torch.ones(2, 8)).eq(expected).all()


def test_declared_limits_hold_in_compiled_code(built: Callable[..., Any]) -> None:
    def packed_only(x: Any) -> Any:
        return x[..., ::2] * 0 + (7 if x.is_contiguous() else -1)

    manager = fl.get_default_manager()
    manager.ensure_built()
    manager.registry.register_impl(
        OpImpl("silu_and_mul", "vendor.packed", BackendImplKind.VENDOR, packed_only, "packed",
               traceable=True, needs_contiguous=True)
    )  # fmt: skip
    layer = built(SiluAndMul, SelectionPolicy(prefer="vendor"), mode=2)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    assert compiled(torch.ones(2, 8)).eq(7).all()
    strided = torch.ones(2, 16)[:, :8]
    assert torch.equal(compiled(strided), layer.forward_native(strided))


def test_a_compiled_layer_runs_what_the_compiled_section_says(built: Callable[..., Any]) -> None:
    manager = fl.get_default_manager()
    manager.ensure_built()
    for number, vendor in enumerate(("zero", "one")):
        manager.registry.register_impl(
            OpImpl("silu_and_mul", f"vendor.{vendor}", BackendImplKind.VENDOR,
                   lambda x, number=number: x[..., ::2] * 0 + number, vendor)
        )  # fmt: skip
    policy = SelectionPolicy(
        per_op_order={"silu_and_mul": ("vendor:zero",)},
        compiled={"per_op_order": {"silu_and_mul": ("vendor:one",)}},
    )
    for mode in (0, 2):
        layer = built(SiluAndMul, policy, mode=mode)
        assert layer(torch.ones(2, 8)).eq(int(bool(mode))).all()


def test_subclasses_that_share_the_forward_are_dispatched_and_others_are_not(
    built: Callable[..., Any],
) -> None:
    built(SiluAndMul)
    assert Llama3RotaryEmbedding.__name__ in op_registry_oot
    assert MRotaryEmbedding.__name__ not in op_registry_oot


def test_the_hardware_agnostic_layers_are_dispatched_too(built: Callable[..., Any]) -> None:
    layer = filled(built(lambda: AgnosticRMSNorm(64)))
    assert isinstance(layer, Dispatched)
    x = torch.randn(3, 64)
    assert torch.equal(layer(x), layer.forward_native(x))


def test_reloaded_weights_are_seen(built: Callable[..., Any]) -> None:
    layer = filled(built(lambda: GemmaRMSNorm(32)))
    x = torch.randn(3, 32)
    first = layer(x)
    with torch.no_grad():
        layer.weight.add_(1)
    assert not torch.equal(layer(x), first)
    assert torch.equal(layer(x), layer.forward_native(x))


def test_a_layer_built_in_a_scope_keeps_it(built: Callable[..., Any]) -> None:
    def make() -> Any:
        with fl.with_preference("reference"):
            activate()
            return SiluAndMul()

    layer = built(make, SelectionPolicy())
    assert isinstance(layer, Dispatched)
    assert layer._forward_method != layer.forward_native


def test_a_fault_of_ours_never_breaks_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "vendro")
    register()
    assert not any(issubclass(c, Dispatched) for c in op_registry_oot.values())


def test_a_strict_start_does_not_go_on_without_us(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_FL_PREFER", "vendro")
    monkeypatch.setenv("VLLM_FL_STRICT", "1")
    with pytest.raises(fl.PolicyError, match="vendro"):
        register()


def test_where_nothing_fits_the_policy_vllms_own_layer_stays_or_a_strict_start_fails(
    built: Callable[..., Any],
) -> None:
    order = {"silu_and_mul": "flagos"}
    layer = built(SiluAndMul, SelectionPolicy.from_dict(per_op_order=order))
    assert type(layer) is SiluAndMul
    strict = SelectionPolicy.from_dict(per_op_order=order, strict=True)
    with pytest.raises(fl.NoImplementation, match="no implementation of 'silu_and_mul'"):
        built(SiluAndMul, strict)


def test_a_module_that_this_vllm_does_not_have_is_left_out(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("hw_agnostic.layers.layernorm", "layers.rotary_embedding"):
        monkeypatch.setitem(sys.modules, f"vllm.model_executor.{name}", None)
    assert isinstance(built(SiluAndMul), Dispatched)
    assert "RotaryEmbedding" not in op_registry_oot


OPS = ("silu_and_mul", "gelu_and_mul", "rms_norm", "fused_add_rms_norm", "rotary_embedding")
STOCK = SelectionPolicy.from_dict(per_op_order=dict.fromkeys(OPS, "stock"))


@pytest.mark.parametrize("mode", [0, 3])
@pytest.mark.parametrize("name", ["silu", "gelu", "rms", "gemma", "rope"])
def test_where_all_is_stock_nothing_stands_before_vllms_own_code(
    built: Callable[..., Any], name: str, mode: int
) -> None:
    make, _ = LAYERS[name]
    own = type(built(make, STOCK))
    family = next(each.family for each in replaceable() if each.base is own)

    def stands_before() -> bool:
        own.register_oot(layers.replacement(own, family), name=own.__name__)
        layer = built(make, STOCK, mode=mode)
        assert isinstance(layer, family)
        return bool(layer._forward_method != layer._fl_stock)

    with mock.patch.object(sys.modules[__name__], "activate"):
        assert not stands_before()
        del op_registry_oot[own.__name__]
        # Calls of vLLM's own code are counted where a report was asked for; not in a traced model.
        api.get_default_manager().report.enabled = True
        assert stands_before() is (mode == 0)


def test_rotary_layers_stay_vllms_own_where_models_want_query_and_key_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert any(layer.ops == ("rotary_embedding",) for layer in replaceable())
    monkeypatch.setattr(type(current_platform), "is_rocm", lambda _: True)
    assert not any(layer.ops == ("rotary_embedding",) for layer in replaceable())


def test_a_weight_that_is_replaced_is_the_one_that_counts(built: Callable[..., Any]) -> None:
    norm, x = built(lambda: RMSNorm(96)), torch.ones(2, 96)
    with torch.inference_mode():
        norm.weight.data = torch.full((96,), 2.0)
        assert norm(x).allclose(torch.tensor(2.0), atol=1e-4)
    norm.weight = torch.nn.Parameter(torch.full((96,), 3.0))
    found = norm(x)
    assert found.allclose(torch.tensor(3.0), atol=1e-4)
    assert not found.requires_grad


def test_a_replaced_layer_takes_what_vllms_takes(built: Callable[..., Any]) -> None:
    built(SiluAndMul)
    for layer in replaceable():
        forward = getattr(layer.family, "forward_fl", None)
        # Experts take what any release of vLLM passes.
        if forward is None or layer.ops == ("fused_experts",):
            continue
        native = list(inspect.signature(layer.base.forward_native).parameters.values())
        ours = list(inspect.signature(forward).parameters.values())
        assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in native], layer


def test_our_variables_are_known_to_vllm_and_only_the_selection_changes_its_cache_key(
    built: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import envs

    def key() -> Any:
        return {k: v for k, v in envs.compile_factors().items() if k.startswith("VLLM_FL_")}

    built(SiluAndMul)
    reference = key()
    assert set(reference) >= {"VLLM_FL_PER_OP", "VLLM_FL_FINGERPRINT"}
    monkeypatch.setenv("VLLM_FL_LOG_LEVEL", "DEBUG")
    assert key() == reference
    built(SiluAndMul, SelectionPolicy.from_dict(per_op_order={"rms_norm": "stock"}))
    assert key() != reference


def test_what_failed_when_it_was_tried_changes_the_cache_key(built: Callable[..., Any]) -> None:
    from vllm import envs

    def key(fails: bool) -> Any:
        def tried(x: Any) -> Any:
            if fails:
                raise RuntimeError("no symbol")
            return x[..., ::2].contiguous()

        manager = api._default = fl.OpManager(SelectionPolicy(prefer="vendor"))
        manager.ensure_built()
        manager.registry.register_impl(
            OpImpl("silu_and_mul", "vendor.tried", BackendImplKind.VENDOR, tried, "tried")
        )
        built(SiluAndMul, SelectionPolicy(prefer="vendor"), mode=2)
        return envs.compile_factors()["VLLM_FL_FINGERPRINT"]

    assert key(fails=False) != key(fails=True)


def test_a_second_model_of_a_process_gets_rotary_layers_of_its_own_selection(
    built: Callable[..., Any],
) -> None:
    """vLLM shares rotary layers among the models of a process."""
    from vllm.model_executor.layers.rotary_embedding import get_rope

    def make() -> Any:
        return get_rope(64, 512, rope_parameters={"rope_theta": 1e4, "rope_type": "default"})

    assert isinstance(built(make), Dispatched)
    assert type(built(make, SelectionPolicy())) is RotaryEmbedding
    assert isinstance(built(make), Dispatched)
