"""Compare the reference backend with vLLM's native layers, bit for bit, and print JSON.

usage: python native_equality.py

It runs on whatever vLLM is importable, so that several releases can be asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import torch
import vllm
from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config

from vllm_fl_reference.impl import activation, normalization, rotary, routing

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Comparison = tuple[str, Callable[[], Any], Callable[[], Any]]


def comparisons(dtype: torch.dtype) -> Iterator[Comparison]:
    """(name, what vLLM computes, what the reference computes)."""
    from vllm.model_executor.layers import activation as layers
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    torch.manual_seed(0)
    inputs = {
        "1x1024": torch.randn(1, 1024),
        "83x1026": 3 * torch.randn(83, 1026),
        "2x3x128": torch.randn(2, 3, 128),
        "strided": torch.randn(5, 400)[:, :200],
    }
    for name, raw in inputs.items():
        x, residual = raw.to(dtype), torch.randn(raw.shape).to(dtype)
        if name == "strided":
            x = torch.randn(5, 400).to(dtype)[:, :200]
        yield (
            f"silu_and_mul {name}",
            lambda x=x: layers.SiluAndMul().forward_native(x),
            lambda x=x: activation.silu_and_mul(x),
        )
        for kind in ("none", "tanh"):
            yield (
                f"gelu_and_mul {kind} {name}",
                lambda x=x, kind=kind: layers.GeluAndMul(kind).forward_native(x),
                lambda x=x, kind=kind: activation.gelu_and_mul(x, kind),
            )
        for norm, offset in ((RMSNorm(x.shape[-1]), 0.0), (GemmaRMSNorm(x.shape[-1]), 1.0)):
            weight = torch.randn(x.shape[-1]).to(dtype)
            norm.weight.data = weight
            epsilon, kind = norm.variance_epsilon, type(norm).__name__
            yield (
                f"{kind} {name}",
                lambda x=x, norm=norm: norm.forward_native(x.clone()),
                lambda x=x, w=weight, e=epsilon, o=offset: normalization.rms_norm(
                    x, w, e, weight_offset=o
                ),
            )
            yield (
                f"{kind} with residual {name}",
                lambda x=x, r=residual, norm=norm: norm.forward_native(x.clone(), r.clone()),
                lambda x=x, r=residual, w=weight, e=epsilon, o=offset: (
                    normalization.fused_add_rms_norm(x, r, w, e, weight_offset=o)
                ),
            )
    if hasattr(layers, "SiluAndMulWithClamp"):
        x = (9 * torch.randn(7, 512)).to(dtype)
        yield (
            "silu_and_mul_with_clamp",
            lambda x=x: layers.SiluAndMulWithClamp(7.0).forward_native(x),
            lambda x=x: activation.silu_and_mul_with_clamp(x, 7.0),
        )
    yield from rotary_comparisons(dtype)
    yield from routing_comparisons(dtype)


def rotary_comparisons(dtype: torch.dtype) -> Iterator[Comparison]:
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    positions = torch.tensor([0, 1, 7, 1000, 4095])
    for head_size, rotary_dim in ((64, 64), (80, 32), (128, 64)):
        for neox in (True, False):
            layer = RotaryEmbedding(head_size, rotary_dim, 4096, 10000.0, neox, dtype)
            query, key = (torch.randn(5, n * head_size).to(dtype) for n in (4, 2))
            yield (
                f"rotary_embedding {head_size}/{rotary_dim} neox={neox}",
                lambda lay=layer, q=query, k=key: lay.forward_native(
                    positions, q.clone(), k.clone()
                ),
                lambda lay=layer, q=query, k=key: rotary.rotary_embedding(
                    positions, q, k, lay.head_size, lay.cos_sin_cache, lay.is_neox_style
                ),
            )


def routing_comparisons(dtype: torch.dtype) -> Iterator[Comparison]:
    from vllm.model_executor.layers.fused_moe.router import grouped_topk_router

    compiled = grouped_topk_router.grouped_topk
    native = getattr(compiled, "_torchdynamo_orig_callable", compiled)
    # Distinct scores, so that there is one right choice.
    logits = torch.stack([torch.randperm(64) for _ in range(9)]).to(dtype) / 16 - 3
    for scoring in ("softmax", "sigmoid"):
        for bias in (None, torch.linspace(0, 0.3, 64)):
            options = {"routed_scaling_factor": 2.5, "e_score_correction_bias": bias}
            yield (
                f"grouped_topk {scoring} bias={bias is not None}",
                lambda s=scoring, o=options: by_id(native(logits, logits, 6, True, 8, 3, s, **o)),
                lambda s=scoring, o=options: by_id(
                    routing.grouped_topk(logits, 6, True, 8, 3, s, **o)
                ),
            )


def by_id(result: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The order within a row is not specified."""
    weights, ids = result
    order = ids.long().argsort(-1)
    return weights.gather(-1, order), ids.gather(-1, order)


def equal(found: Any, expected: Any) -> bool:
    """Equal in dtype and every bit, where NaN equals itself."""
    if isinstance(found, tuple | list):
        return all(equal(a, b) for a, b in zip(found, expected, strict=True))
    return found.dtype == expected.dtype and torch.equal(found, expected)


def main() -> None:
    """Compare everything and say what differs."""
    compared, different = 0, []
    compilation = CompilationConfig(mode=0, custom_ops=["all"])
    for dtype in DTYPES:
        torch.set_default_dtype(dtype)
        with set_current_vllm_config(VllmConfig(compilation_config=compilation)):
            torch.set_default_dtype(torch.float32)
            for name, theirs, ours in comparisons(dtype):
                compared += 1
                if not equal(ours(), theirs()):
                    different.append(f"{name} {dtype}")
    print(json.dumps({"vllm": vllm.__version__, "compared": compared, "different": different}))


if __name__ == "__main__":
    main()
