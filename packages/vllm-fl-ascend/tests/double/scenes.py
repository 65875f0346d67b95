"""Everything that the backend does, once each, on small inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from adapters import load
from batches import Served
from npu_double.install import Recorded, recording

from vllm_fl_ascend.impl.attention import Shape
from vllm_fl_ascend.impl.attention_plan import make_plan

BF16, FP16 = torch.bfloat16, torch.float16


def _rows(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _call(op_name: str, *args: Any, **options: Any) -> Any:
    return load(op_name)(*args, **options)


def _attention(dtype: torch.dtype, shape: Shape) -> None:
    served = Served([131, 6], shape, dtype)
    for new in ([128, 4], [2, 1], [1, 1]):
        served.check(new)


def _encoder(dtype: torch.dtype, shape: Shape) -> None:
    served = Served([5, 9], shape, dtype)
    batch = served.batch([5, 9])
    plan = make_plan(batch.starts, batch.kv_lens)
    served.kernels.over_batch(batch.query, batch.key, batch.value, plan, causal=False)


def _experts(dtype: torch.dtype, **options: Any) -> torch.Tensor:
    ids = torch.tensor([[0, 3], [2, 1], [3, 2]])
    args = (_rows(3, 64, dtype=dtype), _rows(4, 64, 64, dtype=dtype), _rows(4, 64, 32, dtype=dtype))
    result: torch.Tensor = _call("fused_experts", *args, _rows(3, 2).float().abs(), ids, **options)
    return result


_X = _rows(4, 128)
_HALF_OF_THE_EXPERTS = torch.tensor([0, -1, 1, -1], dtype=torch.int32)

SCENES: dict[str, Callable[[], Any]] = {
    "silu_and_mul": partial(_call, "silu_and_mul", _X),
    "gelu_and_mul": partial(_call, "gelu_and_mul", _X, "none"),
    "gelu_and_mul tanh": partial(_call, "gelu_and_mul", _X, "tanh"),
    "silu_and_mul_with_clamp": partial(_call, "silu_and_mul_with_clamp", _X, 7.0),
    "rms_norm": partial(_call, "rms_norm", _X, _rows(128), 1e-6),
    "rms_norm float32 weight": partial(_call, "rms_norm", _X, _rows(128).float(), 1e-6),
    "fused_add_rms_norm": partial(_call, "fused_add_rms_norm", _X, _X.clone(), _rows(128), 1e-6),
    "rotary_embedding": partial(
        _call, "rotary_embedding", torch.arange(4), _X, _X[:, :64], 64, _rows(9, 64), True
    ),
    "rotary_embedding pairs": partial(
        _call, "rotary_embedding", torch.arange(4), _X, None, 64, _rows(9, 32), False
    ),
    "topk_softmax": partial(_call, "topk_softmax", _rows(5, 8), 2),
    "topk_softmax bias": partial(
        _call, "topk_softmax", _rows(5, 8), 2, e_score_correction_bias=torch.zeros(8)
    ),
    "grouped_topk": partial(_call, "grouped_topk", _rows(5, 16), 4, True, 4, 2, "sigmoid"),
    "moe_sum": partial(_call, "moe_sum", _rows(5, 2, 32)),
    "fused_experts": partial(_experts, BF16),
    "fused_experts float16": partial(_experts, FP16, activation="gelu"),
    "dynamic_per_token_quant_int8": partial(_call, "dynamic_per_token_quant_int8", _X),
    "attention": partial(_attention, BF16, Shape(4, 2, 128, 0.1)),
    "attention window": partial(_attention, BF16, Shape(4, 2, 64, 0.1, 5)),
    "attention float16": partial(_attention, FP16, Shape(4, 2, 128, 0.1)),
    "attention float16 window": partial(_attention, FP16, Shape(4, 2, 128, 0.1, 5)),
    "attention head 256": partial(_attention, BF16, Shape(2, 1, 256, 0.1)),
    "encoder": partial(_encoder, BF16, Shape(4, 2, 128, 0.1)),
    "encoder float16": partial(_encoder, FP16, Shape(4, 2, 128, 0.1)),
}


def kinds_of_calls() -> list[Recorded]:
    """What the scenes call: one call of each kind, told apart by what a tensor looks like."""
    with recording() as made:
        for run in SCENES.values():
            run()
    kinds = {}
    for call in made:
        looks = [
            (name, tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else name
            for name, value in call.arguments.items()
        ]
        kinds.setdefault((call.name, str(looks)), call)
    return list(kinds.values())
