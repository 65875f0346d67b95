"""vLLM's routers of mixture-of-experts layers: which experts serve a token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from vllm_fl_dispatch.vllm import compat
from vllm_fl_dispatch.vllm.binding import Binder
from vllm_fl_dispatch.vllm.moe_layers import MoELayer


@dataclass(frozen=True)
class Routing:
    """How a router's work is said in terms of an operator.

    Attributes:
        args: what follows `gating_output`.
        has_bias: pass the router's `e_score_correction_bias`, read at each call.
        scale: a factor of the weights that the operator does not apply.
        in_float32: the router converts `gating_output` first.
    """

    op: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    has_bias: bool = False
    scale: float = 1.0
    in_float32: bool = False


class RouterLayer(MoELayer):
    """A router: binds the operator that does its work, if there is one."""

    _fl_op: Any = None
    _fl_routing: Routing | None = None
    global_num_experts: int
    e_score_correction_bias: torch.Tensor
    _compute_routing: Any

    def fl_routing(self) -> Routing | None:
        """The operator that does what this router does, or None."""
        raise NotImplementedError

    def fl_bind(self, binder: Binder) -> None:
        routing = self.fl_routing()
        if routing is None:
            return
        own = super()._compute_routing  # type: ignore[misc]  # of the class that is replaced

        def stock(gating_output: torch.Tensor, *_: Any, **__: Any) -> Any:
            # Of the hidden states a router looks at the number of tokens and the device alone.
            weights, ids = own(gating_output, gating_output, None)
            # It has applied what is applied to every result of the operator below.
            return (weights if routing.scale == 1.0 else weights / routing.scale), ids

        facts = {
            "device": compat.device_type(),
            "num_experts": self.global_num_experts,
            "topk": routing.args[0],
            "renormalize": routing.args[1],
            "bias_dtype": self.e_score_correction_bias.dtype if routing.has_bias else None,
        }
        if routing.op == "grouped_topk":
            names = ("num_expert_group", "topk_group", "scoring_func")
            facts |= dict(zip(names, routing.args[2:], strict=True))
            facts["routed_scaling_factor"] = routing.options.get("routed_scaling_factor", 1.0)
        has_options = routing.has_bias or bool(routing.options)
        here = stock if self.fl_has_stock() else None
        bound = binder.bind(routing.op, facts, here, None, options=has_options)
        if not bound.is_stock:
            self._fl_op, self._fl_routing = bound.call, routing
            self._compute_routing = self._fl_compute_routing

    def _fl_compute_routing(
        self,
        hidden_states: torch.Tensor,
        router_logits: torch.Tensor,
        indices_type: torch.dtype | None = None,
        **_: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        routing = self._fl_routing
        assert routing is not None
        options = routing.options
        if routing.has_bias:
            options = {**options, "e_score_correction_bias": self.e_score_correction_bias.data}
        if routing.in_float32:
            router_logits = router_logits.float()
        weights, ids = self._fl_op(router_logits, *routing.args, **options)
        if routing.scale != 1.0:
            weights = weights * routing.scale
        return weights, ids if indices_type is None else ids.to(indices_type)


class TopKLayer(RouterLayer):
    """FusedTopKRouter and FusedTopKBiasRouter."""

    def fl_routing(self) -> Routing | None:
        router: Any = self
        return None if router.scoring_func != "softmax" or _is_special(router) else _topk(router)


class GroupedTopKLayer(RouterLayer):
    """GroupedTopKRouter; without groups it is one of the others."""

    def fl_routing(self) -> Routing | None:
        router: Any = self
        groups, experts = router.num_expert_group, self.global_num_experts
        if _is_special(router):
            return None
        if experts > groups and experts % groups == 0:
            return _grouped(router)
        if router.scoring_func != "softmax":
            return None
        # Without a bias vLLM's router does not apply its factor then.
        routing = _topk(router)
        return routing if routing.has_bias else replace(routing, scale=1.0)


class CPURouterLayer(RouterLayer):
    """CPURouter: one class for all schemes."""

    def fl_routing(self) -> Routing | None:
        router: Any = self
        if router.custom_routing_function is not None:
            return None
        if router.use_grouped_topk:
            return replace(_grouped(router), in_float32=True)
        # A bias changes nothing here: this router does not look at it.
        plain = router.scoring_func == "softmax"
        return Routing("topk_softmax", (router.top_k, router.renormalize)) if plain else None


def _is_special(router: Any) -> bool:
    """Does it look at more than scores, or append experts that all tokens share?"""
    tables = ("_hash_indices_table", "bias_vl", "_bias_vl")
    found = any(getattr(router, name, None) is not None for name in tables)
    return found or getattr(router, "num_fused_shared_experts", 0) > 0


def _topk(router: Any) -> Routing:
    return Routing(
        "topk_softmax",
        (router.top_k, router.renormalize),
        has_bias=getattr(router, "e_score_correction_bias", None) is not None,
        scale=getattr(router, "routed_scaling_factor", 1.0),
    )


def _grouped(router: Any) -> Routing:
    factor = router.routed_scaling_factor
    groups = (router.num_expert_group, router.topk_group, router.scoring_func)
    return Routing(
        "grouped_topk",
        (router.top_k, router.renormalize, *groups),
        {} if factor == 1.0 else {"routed_scaling_factor": factor},
        has_bias=router.e_score_correction_bias is not None,
    )
