"""What goes wrong on this device when an adapter is written carelessly.

Each mutant is one careless change of a function of the backend. The check beside it passes as the
function is, and must fail with the change.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from adapters import load
from batches import Served
from npu_double import rotary as model_of_rotary

from vllm_fl_ascend import library, plugin
from vllm_fl_ascend.impl import (
    activation,
    attention,
    attention_plan,
    experts,
    kv_cache,
    normalization,
    quantization,
    rotary,
    routing,
)
from vllm_fl_ascend.impl.attention import Shape
from vllm_fl_dispatch import ContractError, OpManager, SelectionPolicy
from vllm_fl_dispatch.ops import SPECS
from vllm_fl_dispatch.ops.cases import Maker
from vllm_fl_dispatch.registry import Registrar
from vllm_fl_dispatch.testing import Outcome, Subject, run_case
from vllm_fl_dispatch.types import Origin

BF16, FP16 = torch.bfloat16, torch.float16


def operator(name: str) -> None:
    """All conformance cases of an operator."""
    (spec,) = (spec for spec in SPECS if spec.name == name)
    manager = OpManager(SelectionPolicy(), sources=())
    manager.ensure_built()
    plugin.vllm_fl_register_ops(Registrar(manager.registry, Origin("vllm-fl-ascend")))
    (impl,) = manager.registry.impls(name)
    subject = Subject(spec, impl, load(name))
    for case in subject.cases():
        if case.small:
            result = run_case(subject, case)
            assert result.outcome is not Outcome.FAILED, f"{case.name}: {result.message}"


def requests(dtype: torch.dtype, shape: Shape, **options: Any) -> None:
    """Prefill, a chunk, a prefix hit and decoding, with padding."""
    served = Served([140, 30], shape, dtype, **options)
    for new in ([130, 4], [1, 20], [3, 2], [1, 1]):
        served.check(new, padding=2)


WIDE = Shape(4, 2, 128, 0.1)
fused = partial(requests, BF16, WIDE)
separate = partial(requests, FP16, WIDE)


def one_row_of_all() -> None:
    """A rank with an expert for one row of one token; the other rows of its memory are unused."""
    hidden = torch.ones(3, 32, dtype=BF16)
    w1, w2 = torch.ones(1, 32, 32, dtype=BF16), torch.ones(1, 32, 16, dtype=BF16)
    ids = torch.tensor([[1, 2], [3, 0], [2, 1]])
    weights = torch.full((3, 2), 0.5)
    here = torch.tensor([0, -1, -1, -1], dtype=torch.int32)
    experts_of_rank = load("fused_experts")
    for expert_map in (here, torch.full_like(here, -1)):
        out = experts_of_rank(hidden, w1, w2, weights, ids, expert_map=expert_map)
        assert not out[[0, 2]].any()
        assert bool(out[1].isfinite().all())
        assert bool(out[1].any()) == (expert_map is here)


class Mutant(NamedTuple):
    """A careless change: in a function of `owner`, `old` becomes `new`."""

    owner: Any
    name: str
    old: str
    new: str
    check: Callable[[], None]


_KV = "plan.kv_lens,"
MUTANTS = {
    "T2 running sums with a block table": Mutant(
        attention.Fused, "over_cache", _KV, "plan.kv_ends,", fused
    ),
    "T2 lengths without a block table": Mutant(
        attention.Fused, "over_batch", "plan.query_ends, causal", "plan.query_lens, causal", fused
    ),
    "T3 a head size that the fused kernel does not know": Mutant(
        attention,
        "is_fused",
        "and head_size in FUSED_HEAD_SIZES",
        "",
        partial(requests, BF16, Shape(2, 2, 80, 0.1)),
    ),
    "T3 a page too large for the paged kernel": Mutant(
        attention.Separate,
        "_reads_pages",
        "and size * block_size <= PAGED_MAX_PAGE",
        "",
        partial(requests, BF16, Shape(2, 1, 256, 0.1), block_size=128),
    ),
    "T3 a window that the paged kernel does not know": Mutant(
        attention.Separate,
        "_reads_pages",
        "self._shape.window is None",
        "True",
        partial(requests, FP16, Shape(4, 2, 64, 0.1, 5)),
    ),
    "T3 float16 with the fused kernel": Mutant(
        attention, "is_fused", "dtype is torch.bfloat16", "True", separate
    ),
    "T4 int64 lengths": Mutant(
        kv_cache.Pages, "context_lens", "dtype=torch.int32", "dtype=torch.int64", separate
    ),
    "T5 int64 slots": Mutant(
        kv_cache.Pages, "__init__", "slots[: plan.tokens].to(torch.int32)", "slots[:]", fused
    ),
    "T5 slots of padding": Mutant(
        kv_cache.Pages, "__init__", "slots[: plan.tokens]", "slots", separate
    ),
    "T6 int64 block table": Mutant(
        kv_cache.Pages, "__init__", "rows.to(torch.int32)", "rows", fused
    ),
    "T7 the other half activated": Mutant(
        activation,
        "make_gelu_and_mul",
        "activate_left=True",
        "activate_left=False",
        partial(operator, "gelu_and_mul"),
    ),
    "T7 always tanh": Mutant(
        activation,
        "make_gelu_and_mul",
        "approximate=APPROXIMATE[approximate]",
        "approximate=1",
        partial(operator, "gelu_and_mul"),
    ),
    "T7 even with odd channels": Mutant(
        activation,
        "make_silu_and_mul_with_clamp",
        "interleaved=False",
        "interleaved=True",
        partial(operator, "silu_and_mul_with_clamp"),
    ),
    "T9 results in another order": Mutant(
        normalization,
        "make_fused_add_rms_norm",
        "normed, _, total = fused(",
        "normed, total, _ = fused(",
        partial(operator, "fused_add_rms_norm"),
    ),
    "T9 mixed dtypes in the fused kernel": Mutant(
        normalization,
        "make_fused_add_rms_norm",
        "if x.dtype == residual.dtype == weight.dtype:",
        "if True:",
        partial(operator, "fused_add_rms_norm"),
    ),
    "T11 counts taken for sums": Mutant(
        experts,
        "make_fused_experts",
        "group_list_type=SUMS",
        "group_list_type=1",
        partial(operator, "fused_experts"),
    ),
    "T11 scatter indices taken for gather indices": Mutant(
        experts,
        "make_fused_experts",
        "row_idx_type=GATHER",
        "row_idx_type=1",
        partial(operator, "fused_experts"),
    ),
    "T11 sums that were not asked for": Mutant(
        experts,
        "make_fused_experts",
        "expert_tokens_num_flag=True",
        "expert_tokens_num_flag=False",
        partial(operator, "fused_experts"),
    ),
    "T11 column-major rows": Mutant(
        experts,
        "make_fused_experts",
        "drop_pad_mode=ROW_MAJOR",
        "drop_pad_mode=0",
        partial(operator, "fused_experts"),
    ),
    "T11 column-major sums": Mutant(
        experts,
        "make_moe_sum",
        "drop_pad_mode=ROW_MAJOR",
        "drop_pad_mode=0",
        partial(operator, "moe_sum"),
    ),
    "T11 undefined rows of absent experts": Mutant(
        experts,
        "make_fused_experts",
        "torch.where(here, places, best)",
        "places.abs()",
        one_row_of_all,
    ),
    "T11 shares instead of scores": Mutant(
        routing,
        "make_grouped_topk",
        "_, ids, scores = grouped(",
        "scores, ids, _ = grouped(",
        partial(operator, "grouped_topk"),
    ),
    "T12 no rows": Mutant(
        activation,
        "make_silu_and_mul",
        "if not x.numel():",
        "if False:",
        partial(operator, "silu_and_mul"),
    ),
    "T12 no rows in the fused norm": Mutant(
        normalization,
        "make_fused_add_rms_norm",
        "if not x.numel():",
        "if False:",
        partial(operator, "fused_add_rms_norm"),
    ),
    "T12 a row of zeros": Mutant(
        quantization,
        "make_dynamic_per_token_quant_int8",
        "values.masked_fill(scales == 0, 0)",
        "values",
        partial(operator, "dynamic_per_token_quant_int8"),
    ),
    "T15 rows of padding": Mutant(attention, "write_cache", "key=key[:tokens]", "key=key", fused),
    "T15 requests of padding": Mutant(
        attention_plan, "make_plan", "if length > 0", "if length >= 0", separate
    ),
    "T18 small blocks with the fused kernel": Mutant(
        attention,
        "is_fused",
        "and block_size in (None, *FUSED_BLOCK_SIZES)",
        "",
        partial(fused, block_size=16),
    ),
    "a prefix in the cache is forgotten": Mutant(
        attention_plan, "state_of", "if not any(computed):", "if min(query_lens) > 1:", fused
    ),
    "a window one token too wide": Mutant(
        attention.Shape,
        "sparse",
        "self.window - 1",
        "self.window",
        partial(requests, BF16, Shape(4, 2, 64, 0.1, 5)),
    ),
    "the scale of the schema": Mutant(
        attention.Fused, "_call", "scale=self._shape.scale,", "", fused
    ),
    "a strided view": Mutant(
        activation, "make_silu_and_mul", "x.contiguous()", "x", partial(operator, "silu_and_mul")
    ),
    "a pair's factors for interleaved channels": Mutant(
        rotary,
        "make_rotary_embedding",
        "sin.repeat_interleave(2, -1)",
        "torch.cat((sin, sin), -1)",
        partial(operator, "rotary_embedding"),
    ),
}


def mutate(patch: pytest.MonkeyPatch, mutant: Mutant) -> None:
    """Put the changed function in the place of the function."""
    function = inspect.getattr_static(mutant.owner, mutant.name)
    wrapper = type(function) if hasattr(function, "func") else None
    function = getattr(function, "func", function)
    source = textwrap.dedent(inspect.getsource(function)).removeprefix("@cached_property\n")
    assert source.count(mutant.old) == 1, f"{mutant.old!r} is not once in {mutant.name}"
    made: dict[str, Any] = {}
    future = "from __future__ import annotations\n"
    code = future + source.replace(mutant.old, mutant.new)
    exec(code, vars(sys.modules[function.__module__]), made)
    changed = made[mutant.name]
    if wrapper is not None:
        changed = wrapper(changed)
        changed.__set_name__(mutant.owner, mutant.name)
    patch.setattr(mutant.owner, mutant.name, changed)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_careless_change_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = MUTANTS[name]
    mutant.check()
    mutate(monkeypatch, mutant)
    with pytest.raises((AssertionError, RuntimeError, ValueError, IndexError)):
        mutant.check()


def two_caches(rotate: Callable[..., Any]) -> None:
    """Layers with different tables in one process."""
    (spec,) = (spec for spec in SPECS if spec.name == "rotary_embedding")
    assert spec.oracle is not None
    maker = Maker()
    query, key = maker.normal(5, 128, dtype="float16"), maker.normal(5, 64, dtype="float16")
    positions = torch.tensor([0, 3, 1, 8, 2])
    for seed in (0, 1):
        cache = Maker(seed=seed).normal(9, 64, dtype="float16")
        args = (positions, query, key, 64, cache, True)
        expected = spec.oracle(*args)
        for found, truth in zip(rotate(*args), expected, strict=True):
            torch.testing.assert_close(found.double(), truth, rtol=2e-3, atol=2e-3)


def test_t1_a_second_cache_is_not_the_first() -> None:
    two_caches(load("rotary_embedding"))

    def through_the_older_operator(
        positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        query, key = query.clone(), key.clone()
        torch.ops.atb._npu_rotary_embedding(positions, query, key, *rest)
        return query, key

    model_of_rotary.forget_first_cache()
    with pytest.raises(AssertionError, match="not close"):
        two_caches(through_the_older_operator)


def test_t14_names_of_the_documentation_are_refused_at_the_first_binding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(library.OPERATORS, "npu::npu_dynamic_quant", ("x",))
    with pytest.raises(ContractError, match=r"unknown \['x'\], missing \['input'\]"):
        library.operator.__wrapped__("npu::npu_dynamic_quant")
