"""Arguments of each operator at the sizes of a model: one row of a table per operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from vllm_fl_dispatch.benching.shapes import ModelShape
from vllm_fl_dispatch.op_spec import OpSpec

MAX_POSITION = 8192
#: Tokens per block of the expert kernels; vLLM's Triton ones take 16 to 128.
MOE_BLOCK = 64


@dataclass(frozen=True)
class Maker:
    """Makes tensors of one model on one device.

    Values are normal; the time of no operator here depends on them, except that routing should be
    spread over the experts, as random numbers do.
    """

    shape: ModelShape
    tokens: int
    dtype: torch.dtype
    device: str

    def normal(self, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normal numbers, in the model's dtype unless said otherwise."""
        return torch.randn(*size, dtype=dtype or self.dtype, device=self.device)

    def rows(self, width: int) -> torch.Tensor:
        """[tokens, width]."""
        return self.normal(self.tokens, width)

    def experts_of_tokens(self) -> torch.Tensor:
        """int32 [tokens, top_k], without repetition in a row."""
        scores = torch.rand(self.tokens, self.shape.experts, device=self.device)
        return scores.topk(self.shape.top_k).indices.int()


Arguments = tuple[Any, ...]


def _rotary(m: Maker) -> Arguments:
    s = m.shape
    positions = torch.arange(m.tokens, device=m.device) % MAX_POSITION
    query, key = m.rows(s.heads * s.head_size), m.rows(s.kv_heads * s.head_size)
    angles = m.normal(MAX_POSITION, s.rotary // 2, dtype=torch.float32)
    # Rotations keep lengths, also of what is rotated in place again and again.
    cache = torch.cat([angles.cos(), angles.sin()], dim=-1).to(m.dtype)
    return positions, query, key, s.head_size, cache, True


def _grouped_topk(m: Maker) -> Arguments:
    s = m.shape
    return m.rows(s.experts), s.top_k, True, s.expert_groups, s.top_groups, "sigmoid"


def _fused_experts(m: Maker) -> Arguments:
    s = m.shape
    weights = torch.rand(m.tokens, s.top_k, device=m.device)
    return (
        m.rows(s.hidden),
        m.normal(s.experts, 2 * s.expert_intermediate, s.hidden) / s.hidden**0.5,
        m.normal(s.experts, s.hidden, s.expert_intermediate) / s.expert_intermediate**0.5,
        weights / weights.sum(-1, keepdim=True),
        m.experts_of_tokens(),
    )


#: operator -> its arguments.
TABLE: Mapping[str, Callable[[Maker], Arguments]] = {
    "silu_and_mul": lambda m: (m.rows(2 * m.shape.intermediate),),
    "gelu_and_mul": lambda m: (m.rows(2 * m.shape.intermediate), "tanh"),
    "silu_and_mul_with_clamp": lambda m: (m.rows(2 * m.shape.intermediate), 7.0),
    "rms_norm": lambda m: (m.rows(m.shape.hidden), m.normal(m.shape.hidden), 1e-6),
    "fused_add_rms_norm": lambda m: (
        m.rows(m.shape.hidden), m.rows(m.shape.hidden), m.normal(m.shape.hidden), 1e-6,
    ),
    "rotary_embedding": _rotary,
    "topk_softmax": lambda m: (m.rows(m.shape.experts), m.shape.top_k),
    "grouped_topk": _grouped_topk,
    "moe_align_block_size": lambda m: (m.experts_of_tokens(), MOE_BLOCK, m.shape.experts),
    "moe_sum": lambda m: (m.normal(m.tokens, m.shape.top_k, m.shape.hidden),),
    "fused_experts": _fused_experts,
    "dynamic_per_token_quant_int8": lambda m: (m.rows(m.shape.hidden),),
}  # fmt: skip
#: operator -> its options; all others stay at their defaults.
OPTIONS: Mapping[str, Callable[[Maker], dict[str, Any]]] = {
    # Models that route by groups correct the choice by a bias.
    "grouped_topk": lambda m: {
        "e_score_correction_bias": m.normal(m.shape.experts, dtype=torch.float32)
    },
}
_NEED_EXPERTS = {"topk_softmax", "grouped_topk", "moe_align_block_size", "moe_sum", "fused_experts"}
#: Bound by arithmetic or by latency: bytes say nothing.
_NO_BANDWIDTH = {"fused_experts", "moe_align_block_size"}


def known(spec: OpSpec) -> bool:
    """Has this operator arguments in a model: of the table, or of its own?"""
    return spec.bench_inputs is not None or spec.name in TABLE


def make(spec: OpSpec, maker: Maker) -> tuple[Arguments, dict[str, Any]]:
    """New arguments and options of an operator."""
    if spec.bench_inputs is not None:
        return spec.bench_inputs(maker)
    options = OPTIONS.get(spec.name)
    return TABLE[spec.name](maker), options(maker) if options else {}


def objection(spec: OpSpec, shape: ModelShape) -> str | None:
    """Why an operator has no arguments in this model."""
    if not known(spec):
        return "its arguments in a model are not known: its OpSpec has no bench_inputs"
    if spec.name in _NEED_EXPERTS and not shape.experts:
        return "the model has no experts"
    if spec.name == "grouped_topk" and not shape.expert_groups:
        return "the model does not route by groups"
    return None


def moved_bytes(op: str, args: Arguments, result: Any) -> int | None:
    """What a call moves at least: tensors read once and results written once."""
    if op in _NO_BANDWIDTH:
        return None
    results = result if isinstance(result, tuple) else (result,)
    if op == "rotary_embedding":
        positions, query, key, _, cache, _ = args
        read = (positions, query, key, cache[: len(positions)])
    else:
        read = args
    tensors = [t for t in (*read, *results) if isinstance(t, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)
