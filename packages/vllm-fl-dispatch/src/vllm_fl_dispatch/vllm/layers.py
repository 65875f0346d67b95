"""vLLM's layers, each with the operators it consists of.

A replaced layer is a subclass of vLLM's. It binds when it is built, and what it bound is what
`forward` calls in eager mode and what vLLM traces in its compiled modes: vLLM's own choice
between `forward_native`, `forward_cuda` and the others is not consulted.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.vllm import compat
from vllm_fl_dispatch.vllm.binding import Binder


class Dispatched:
    """Mixed in before a layer class of vLLM; families fill in `fl_bind`."""

    _forward_method: Any

    @classmethod
    def fl_has_stock(cls) -> bool:
        """Has vLLM code of its own for these layers that runs on this platform?"""
        return True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fl_bind(Binder(get_default_manager(), self))

    def fl_bind(self, binder: Binder) -> None:
        """Bind the layer's operators and set `_forward_method`; leave it where all are stock."""
        raise NotImplementedError


class SiluAndMulLayer(Dispatched):
    """SiluAndMul: the operator has the layer's own signature."""

    forward_native: Any

    def fl_bind(self, binder: Binder) -> None:
        facts = {"dtype": torch.get_default_dtype(), "device": compat.device_type()}
        self._forward_method = binder.bind(
            "silu_and_mul", facts, self._forward_method, self.forward_native
        ).call


class GeluAndMulLayer(Dispatched):
    """GeluAndMul, with either approximation."""

    approximate: str
    forward_native: Any

    def fl_bind(self, binder: Binder) -> None:
        stock, native = self._forward_method, self.forward_native
        facts = {
            "dtype": torch.get_default_dtype(),
            "device": compat.device_type(),
            "approximate": self.approximate,
        }
        bound = binder.bind(
            "gelu_and_mul",
            facts,
            lambda x, approximate: stock(x),
            lambda x, approximate: native(x),
        )
        self._fl_op = bound.call
        self._forward_method = self.forward_fl

    def forward_fl(self, x: torch.Tensor) -> Any:
        return self._fl_op(x, self.approximate)


class RMSNormLayer(Dispatched):
    """RMSNorm, with and without residual: two operators."""

    weight: torch.Tensor
    variance_epsilon: float
    forward_native: Any
    #: Gemma adds 1 to the weight.
    fl_weight_offset = 0.0

    def fl_bind(self, binder: Binder) -> None:
        stock, native = self._forward_method, self.forward_native
        has_weight = getattr(self, "has_weight", True)
        variance_size = getattr(self, "variance_size_override", None)
        dtype = torch.get_default_dtype()
        facts = {
            "dtype": dtype,
            "device": compat.device_type(),
            "last_dim": self.weight.shape[-1],
            "weight_dtype": self.weight.dtype if has_weight else None,
            "variance_size": variance_size,
            "weight_offset": self.fl_weight_offset,
        }
        self._fl_options: dict[str, Any] = {}
        if variance_size is not None:
            self._fl_options["variance_size"] = variance_size
        if self.fl_weight_offset:
            self._fl_options["weight_offset"] = self.fl_weight_offset
        options = bool(self._fl_options)
        norm = binder.bind(
            "rms_norm", facts, _without_weight(stock), _without_weight(native), options=options
        )
        add = binder.bind(
            "fused_add_rms_norm",
            {**facts, "residual_dtype": dtype},
            _without_weight_but_residual(stock),
            _without_weight_but_residual(native),
            options=options,
        )
        self._fl_norm, self._fl_add, self._fl_has_weight = norm.call, add.call, has_weight
        self._forward_method = self.forward_fl

    def forward_fl(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        weight = self.weight.data if self._fl_has_weight else None
        if residual is None:
            return self._fl_norm(x, weight, self.variance_epsilon, **self._fl_options)
        return self._fl_add(x, residual, weight, self.variance_epsilon, **self._fl_options)


class GemmaRMSNormLayer(RMSNormLayer):
    """GemmaRMSNorm: multiplies by ``1 + weight``."""

    fl_weight_offset = 1.0


class RotaryEmbeddingLayer(Dispatched):
    """RotaryEmbedding and the subclasses that only make another table."""

    head_size: int
    rotary_dim: int
    is_neox_style: bool
    dtype: torch.dtype
    forward_native: Any

    def fl_bind(self, binder: Binder) -> None:
        stock, native = self._forward_method, self.forward_native
        facts = {
            "dtype": self.dtype,
            "device": compat.device_type(),
            "head_size": self.head_size,
            "rotary_dim": self.rotary_dim,
            "cache_dtype": self.dtype,
            "is_neox_style": self.is_neox_style,
            "rope_dim_offset": 0,
            "inverse": False,
        }

        def untouched(positions: Any, query: Any, key: Any, *_: Any, **__: Any) -> Any:
            return stock(positions, query, key)

        bound = binder.bind(
            "rotary_embedding",
            facts,
            untouched,
            lambda positions, query, key, *_, **__: native(positions, query, key),
        )
        self._fl_op = bound.call
        # Unless a record is kept of vLLM's own code, nothing stands before it.
        self._forward_method = stock if bound.call is untouched else self.forward_fl

    def forward_fl(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> Any:
        cache = compat.matched_cache(self, query)
        return self._fl_op(positions, query, key, self.head_size, cache, self.is_neox_style)


def _without_weight(forward: Any) -> Any:
    return lambda x, weight, epsilon, **_: forward(x)


def _without_weight_but_residual(forward: Any) -> Any:
    return lambda x, residual, weight, epsilon, **_: forward(x, residual)


class SiluAndMulWithClampLayer(Dispatched):
    """SiluAndMulWithClamp, with the constants of the model."""

    swiglu_limit: float
    forward_native: Any

    def fl_bind(self, binder: Binder) -> None:
        stock, native = self._forward_method, self.forward_native
        # The constants of releases that have no others.
        alpha, beta = getattr(self, "alpha", 1.0), getattr(self, "beta", 0.0)
        facts = {
            "dtype": torch.get_default_dtype(),
            "device": compat.device_type(),
            "limit": self.swiglu_limit,
            "alpha": alpha,
            "beta": beta,
        }
        self._fl_options = {} if (alpha, beta) == (1.0, 0.0) else {"alpha": alpha, "beta": beta}
        self._fl_op = binder.bind(
            "silu_and_mul_with_clamp",
            facts,
            lambda x, *_, **__: stock(x),
            lambda x, *_, **__: native(x),
            options=bool(self._fl_options),
        ).call
        self._forward_method = self.forward_fl

    def forward_fl(self, x: torch.Tensor) -> Any:
        return self._fl_op(x, self.swiglu_limit, **self._fl_options)


def replacement(base: type, family: type[Dispatched]) -> type:
    """The class that takes the place of `base`."""
    return type(f"{base.__name__}FL", (family, base), {"__module__": __name__})
