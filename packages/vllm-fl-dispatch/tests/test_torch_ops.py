"""The opaque operators that compiled code calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_fl_dispatch import NoImplementation, OpNotSupported, SelectionPolicy
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.torch_ops import opaque

from .conftest import impl

SPEC = {spec.name: spec for spec in SPECS}
#: How vLLM compiles.
VLLM_INDUCTOR = {"enable_auto_functionalized_v2": False}


def double(spec: Any) -> Any:
    """An implementation that a compiler could not look into: it answers through numpy."""

    def answer(*args: Any, **options: Any) -> Any:
        results = spec.oracle(*args, **options)
        results = results if isinstance(results, tuple) else (results,)
        shapes = spec.fake(*args, **options)
        shapes = shapes if isinstance(shapes, tuple) else (shapes,)
        made = tuple(
            None if r is None else torch.from_numpy(r.numpy()).to(s.dtype).contiguous()
            for r, s in zip(results, shapes, strict=True)
        )
        return made if len(made) > 1 else made[0]

    return answer


@pytest.fixture
def manager(make_manager: Any) -> Any:
    return make_manager(*(impl("vendor.numpy", double(spec), op=spec.name) for spec in SPECS))


def model(call: Any) -> Any:
    """Attention-like: query and key are views of one projection, and used again afterwards."""

    def forward(x: Any, cache: Any, positions: Any) -> Any:
        q, k, v = x.split([64, 32, 32], dim=-1)
        q2, k2 = call(positions, q, k, 32, cache, True)
        return torch.cat([q, q2, k, k2, v], dim=-1) * 2

    return forward


def test_split_views_compile_correctly_with_vllms_settings(manager: Any) -> None:
    call = opaque(manager, SPEC["rotary_embedding"])
    positions = torch.arange(5)
    cache = torch.randn(16, 32)
    compiled = torch.compile(model(call), fullgraph=True, options=VLLM_INDUCTOR, dynamic=True)
    for tokens in (5, 3):
        x = torch.randn(tokens, 128)
        before = x.clone()
        expected = model(double(SPEC["rotary_embedding"]))(x, cache, positions[:tokens])
        assert torch.allclose(compiled(x, cache, positions[:tokens]), expected)
        assert torch.equal(x, before)


def test_a_key_of_none_comes_back_as_none(manager: Any) -> None:
    call = opaque(manager, SPEC["rotary_embedding"])
    query, key = call(torch.arange(3), torch.randn(3, 64), None, 32, torch.randn(4, 32), True)
    assert query.shape == (3, 64)
    assert key is None


def in_place(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
    residual.add_(x)
    x.copy_(residual * 2)
    return x, residual


@pytest.fixture
def mutating(make_manager: Any) -> Any:
    op = "fused_add_rms_norm"
    return make_manager(impl("vendor.inplace", in_place, op=op, mutates=("x", "residual")))


def test_the_functional_operator_changes_no_argument(mutating: Any) -> None:
    call = opaque(mutating, SPEC["fused_add_rms_norm"])
    wide = torch.full((2, 16), 3.0)
    x, residual = wide[:, :8], torch.full((2, 8), 4.0)
    for _ in range(3):
        normed, total = call(x, residual, None, 1e-6)
        assert x.eq(3).all()
        assert residual.eq(4).all()
        assert normed.eq(14).all()
        assert total.eq(7).all()
        assert normed.is_contiguous()


SHAPES_OF_ARGUMENTS = {
    "whole": lambda x, w: ((x @ w).relu(), (x @ w).exp()),
    "columns": lambda x, w: ((x * 3)[..., :8], (x @ w).float()[..., :8]),
    "halves": lambda x, w: (x.sin().chunk(2, -1)[1], x.exp().chunk(2, -1)[1]),
    "rows": lambda x, w: (torch.cat([x, x])[:4] * 2, torch.stack([x, x * 2]).exp().unbind()[0]),
}


@pytest.mark.parametrize("shape", SHAPES_OF_ARGUMENTS)
@pytest.mark.parametrize("functional", [False, True])
def test_an_in_place_kernel_gives_the_numbers_of_eager_code_whatever_it_is_given(
    make_manager: Any, shape: str, functional: bool
) -> None:
    def apart(x: Any, residual: Any, weight: Any, epsilon: float) -> Any:
        total = (x + residual).contiguous()
        return total * 2, total

    more = {"load_functional": lambda: apart} if functional else {}
    mutates = ("x", "residual")
    manager = make_manager(
        impl("vendor.inplace", in_place, op="fused_add_rms_norm", mutates=mutates, **more)
    )
    add = opaque(manager, SPEC["fused_add_rms_norm"])

    def model(call: Any) -> Any:
        def forward(x: Any, w: Any) -> Any:
            first, residual = SHAPES_OF_ARGUMENTS[shape](x, w)
            for _ in range(3):
                first, residual = call(first, residual, None, 1e-6)
                first = first * 0.25
            return first, residual

        return forward

    x, w = torch.randn(4, 16), torch.randn(16, 16)
    expected = model(apart)(x, w)
    compiled = torch.compile(model(add), fullgraph=True, options=VLLM_INDUCTOR)
    for found, wanted in zip(compiled(x, w), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_behind_an_opaque_operator_the_reference_stands_for_stock(make_manager: Any) -> None:
    def declines(x: Any) -> Any:
        if len(x) > 4:
            raise OpNotSupported("at most 4 rows")
        return x[..., ::2] * 2

    policy = SelectionPolicy(per_op_order={"silu_and_mul": ("vendor:acme", "stock")})
    manager = make_manager(
        impl("vendor.acme", declines),
        impl("reference.torch", lambda x: x[..., ::2] * 3),
        policy=policy,
    )
    call = opaque(manager, SPEC["silu_and_mul"])
    assert call(torch.ones(2, 8)).eq(2).all()
    assert call(torch.ones(5, 8)).eq(3).all()
    manager.set_policy(SelectionPolicy(per_op_order={"silu_and_mul": ("vendor:acme",)}))
    with pytest.raises(NoImplementation, match="at most 4 rows"):
        call(torch.ones(5, 8))


def test_it_serves_what_the_compiled_section_says(make_manager: Any) -> None:
    policy = SelectionPolicy(
        per_op_order={"silu_and_mul": ("vendor:acme",)},
        compiled={"per_op_order": {"silu_and_mul": ("vendor:other",)}},
    )
    manager = make_manager(
        impl("vendor.acme", lambda x: x[..., ::2] * 1),
        impl("vendor.other", lambda x: x[..., ::2] * 2),
        policy=policy,
    )
    call = opaque(manager, SPEC["silu_and_mul"])
    assert call(torch.ones(2, 8)).eq(2).all()
    assert manager.get_op("silu_and_mul")(torch.ones(2, 8)).eq(1).all()


def test_the_body_falls_back_when_an_implementation_fails(make_manager: Any) -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("no symbol")

    manager = make_manager(
        impl("vendor.acme", broken), impl("reference.torch", lambda x: x[..., ::2] * 3)
    )
    call = opaque(manager, SPEC["silu_and_mul"])
    compiled = torch.compile(lambda x: call(x) + 1, fullgraph=True)
    assert compiled(torch.ones(2, 8)).eq(4).all()
    assert len(manager.failures.all()) == 1
