"""vLLM's own layers as calls of operators, to be measured beside implementations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vllm_fl_dispatch.errors import OpNotSupported
from vllm_fl_dispatch.vllm import compat

_LAYERS = "vllm.model_executor.layers"
Arguments = tuple[Any, ...]


def stock_call(op_name: str, args: Arguments) -> Callable[[], Any]:
    """What vLLM itself runs eagerly for these arguments of an operator, without our plugin.

    The method that a layer chose when it was built is called, as our replaced layers are called
    in its place.

    Raises:
        OpNotSupported: vLLM has no layer that is just this operator, or is not installed.
    """
    make = _TABLE.get(op_name)
    if make is None:
        raise OpNotSupported("vLLM has no layer that is just this operator")
    data = next(a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point())
    before = torch.get_default_dtype()
    torch.set_default_dtype(data.dtype)
    try:
        with compat.eager_configuration(), data.device:
            return make(args)
    except ImportError as error:
        raise OpNotSupported(f"vLLM is not installed: {error}") from None
    finally:
        torch.set_default_dtype(before)


def _layer(module: str, name: str, *args: Any, **options: Any) -> Any:
    found = compat.import_attribute(f"{_LAYERS}.{module}", name)
    if found is None:
        raise OpNotSupported(f"this release of vLLM has no {name}")
    return found(*args, **options)


def _activation(name: str) -> Callable[[Arguments], Callable[[], Any]]:
    def make(args: Arguments) -> Callable[[], Any]:
        forward = _layer("activation", name, *args[1:])._forward_method
        return lambda: forward(args[0])

    return make


def _norm(args: Arguments) -> Callable[[], Any]:
    *inputs, weight, epsilon = args
    layer = _layer("layernorm", "RMSNorm", weight.shape[0], epsilon)
    layer.weight.data = weight
    forward = layer._forward_method
    return lambda: forward(*inputs)


def _rotary(args: Arguments) -> Callable[[], Any]:
    positions, query, key, head_size, cache, is_neox_style = args
    layer = _layer("rotary_embedding", "RotaryEmbedding", head_size, cache.shape[1],
                   cache.shape[0], 10000.0, is_neox_style, query.dtype)  # fmt: skip
    forward = layer.to(query.device)._forward_method
    return lambda: forward(positions, query, key)


_TABLE: Mapping[str, Callable[[Arguments], Callable[[], Any]]] = {
    "silu_and_mul": _activation("SiluAndMul"),
    "gelu_and_mul": _activation("GeluAndMul"),
    "silu_and_mul_with_clamp": _activation("SiluAndMulWithClamp"),
    "rms_norm": _norm,
    "fused_add_rms_norm": _norm,
    "rotary_embedding": _rotary,
}
