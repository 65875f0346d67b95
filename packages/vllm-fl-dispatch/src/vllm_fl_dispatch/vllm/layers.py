"""vLLM's layers, each with the operators it consists of.

A replaced layer is a subclass of vLLM's. It binds when it is built, and what it bound is what
`forward` calls in eager mode and what vLLM traces in its compiled modes: vLLM's own choice
between `forward_native`, `forward_cuda` and the others is not consulted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from vllm_fl_dispatch.api import get_default_manager
from vllm_fl_dispatch.handles import Call
from vllm_fl_dispatch.vllm import compat
from vllm_fl_dispatch.vllm.binding import Binder


class Dispatched:
    """Mixed in before a layer class of vLLM; families fill in `fl_bind`, and `forward_fl`, which
    calls the operators with what the layer knows."""

    _forward_method: Any
    _fl_stock: Any
    forward_native: Any

    @classmethod
    def fl_has_stock(cls) -> bool:
        """Has vLLM code of its own for these layers that runs on this platform?"""
        return True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fl_stock = getattr(self, "_forward_method", None)
        self.fl_bind(Binder(get_default_manager(), self))

    def fl_bind(self, binder: Binder) -> None:
        """Bind the layer's operators."""
        raise NotImplementedError

    def fl_use(
        self,
        binder: Binder,
        op_name: str,
        facts: dict[str, Any],
        arranged: Callable[[Call], Call] = lambda forward: forward,
        *,
        options: bool = False,
    ) -> Call:
        """Bind an operator. Unless the call is vLLM's own, `forward_fl` takes the place of vLLM's
        forward, or the call itself where the layer has none.

        Args:
            facts: see `Binder.bind`; dtype and device unless they say otherwise.
            arranged: makes a function of the contract's signature of a forward of vLLM's.
        """
        common = {"dtype": torch.get_default_dtype(), "device": compat.device_type()}
        own = arranged(self._fl_stock)
        call = binder.bind(
            op_name, common | facts, own, arranged(self.forward_native), options=options
        ).call
        # Where a record is kept of vLLM's own code, something stands before it.
        if call is not own:
            self._forward_method = getattr(self, "forward_fl", call)
        return call


def _first(forward: Call) -> Call:
    """Of the contract's arguments the layer takes the first; the others it knows itself."""
    return lambda x, *_, **__: forward(x)


def _first_two(forward: Call) -> Call:
    return lambda x, residual, *_, **__: forward(x, residual)


def _first_three(forward: Call) -> Call:
    return lambda positions, query, key, *_, **__: forward(positions, query, key)


class SiluAndMulLayer(Dispatched):
    """SiluAndMul: the operator has the layer's own signature."""

    def fl_bind(self, binder: Binder) -> None:
        self.fl_use(binder, "silu_and_mul", {})


class GeluAndMulLayer(Dispatched):
    """GeluAndMul, with either approximation."""

    approximate: str

    def fl_bind(self, binder: Binder) -> None:
        facts = {"approximate": self.approximate}
        self._fl_op = self.fl_use(binder, "gelu_and_mul", facts, _first)

    def forward_fl(self, x: torch.Tensor) -> Any:
        return self._fl_op(x, self.approximate)


class RMSNormLayer(Dispatched):
    """RMSNorm, with and without residual: two operators."""

    weight: torch.Tensor
    variance_epsilon: float
    _parameters: dict[str, Any]
    #: Gemma adds 1 to the weight.
    fl_weight_offset = 0.0

    def fl_bind(self, binder: Binder) -> None:
        has_weight = getattr(self, "has_weight", True)
        variance_size = getattr(self, "variance_size_override", None)
        facts = {
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
        options, self._fl_has_weight = bool(self._fl_options), has_weight
        self._fl_norm = self.fl_use(binder, "rms_norm", facts, _first, options=options)
        facts["residual_dtype"] = torch.get_default_dtype()
        self._fl_add = self.fl_use(binder, "fused_add_rms_norm", facts, _first_two, options=options)

    def forward_fl(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        # Looked up at each call, as loading may replace it, and where that takes no time. It is
        # no part of a graph of autograd.
        weight = self._parameters["weight"] if self._fl_has_weight else None
        if weight is not None and torch.is_grad_enabled():
            weight = weight.data
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

    def fl_bind(self, binder: Binder) -> None:
        facts = {
            "dtype": self.dtype,
            "head_size": self.head_size,
            "rotary_dim": self.rotary_dim,
            "cache_dtype": self.dtype,
            "is_neox_style": self.is_neox_style,
            "rope_dim_offset": 0,
            "inverse": False,
        }
        self._fl_op = self.fl_use(binder, "rotary_embedding", facts, _first_three)

    def forward_fl(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None = None
    ) -> Any:
        cache = compat.matched_cache(self, query)
        rest = (self.head_size, cache, self.is_neox_style)
        if query.dim() == 2 or (query.shape[2:] == (self.head_size,) and positions.dim() == 1):
            return self._fl_op(positions, query, key, *rest)
        # vLLM's layer takes any shape in which the tokens come first, and counts the positions.
        tokens = positions.numel()
        rotated, rotated_key = self._fl_op(
            positions,
            query.reshape(tokens, -1),
            None if key is None else key.reshape(tokens, -1),
            *rest,
        )
        return rotated.view(query.shape), None if key is None else rotated_key.view(key.shape)


class SiluAndMulWithClampLayer(Dispatched):
    """SiluAndMulWithClamp, with the constants of the model."""

    swiglu_limit: float

    def fl_bind(self, binder: Binder) -> None:
        # The constants of releases that have no others.
        alpha, beta = getattr(self, "alpha", 1.0), getattr(self, "beta", 0.0)
        self._fl_options = {} if (alpha, beta) == (1.0, 0.0) else {"alpha": alpha, "beta": beta}
        self._fl_op = self.fl_use(
            binder,
            "silu_and_mul_with_clamp",
            {"limit": self.swiglu_limit, "alpha": alpha, "beta": beta},
            _first,
            options=bool(self._fl_options),
        )

    def forward_fl(self, x: torch.Tensor) -> Any:
        return self._fl_op(x, self.swiglu_limit, **self._fl_options)


def replacement(base: type, family: type[Dispatched]) -> type:
    """The class that takes the place of `base`."""
    return type(f"{base.__name__}FL", (family, base), {"__module__": __name__})
