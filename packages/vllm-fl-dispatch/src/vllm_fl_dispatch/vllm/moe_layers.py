"""vLLM's mixture-of-experts layers: the routers, and the experts of models without quantization.

Only on `PlatformFL` and on the CPU; elsewhere vLLM's own kernels for experts stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from vllm_fl_dispatch.errors import OpNotSupported
from vllm_fl_dispatch.logger_manager import get_logger
from vllm_fl_dispatch.vllm import compat
from vllm_fl_dispatch.vllm.binding import Binder
from vllm_fl_dispatch.vllm.layers import Dispatched

logger = get_logger(__name__)


def are_dispatched() -> bool:
    """Are experts and their routing ours to choose on this platform?"""
    return compat.is_ours() or compat.device_type() == "cpu"


class MoELayer(Dispatched):
    """What all of these have in common."""

    @classmethod
    def fl_has_stock(cls) -> bool:
        # On a vLLM without compiled kernels its own code for experts does not run.
        return not compat.is_ours()


@dataclass(frozen=True)
class Routing:
    """How a router's work is said in terms of an operator.

    Attributes:
        args: what follows `gating_output`.
        has_bias: pass the router's `e_score_correction_bias`, read at each call.
        scale: a factor of the weights that the operator does not apply.
    """

    op: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    has_bias: bool = False
    scale: float = 1.0


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
            return own(gating_output, gating_output, None)

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
        weights, ids = self._fl_op(router_logits, *routing.args, **options)
        if routing.scale != 1.0:
            weights = weights * routing.scale
        return weights, ids if indices_type is None else ids.to(indices_type)


class TopKLayer(RouterLayer):
    """FusedTopKRouter and FusedTopKBiasRouter."""

    def fl_routing(self) -> Routing | None:
        router: Any = self
        special = ("_hash_indices_table", "bias_vl", "_bias_vl")
        if router.scoring_func != "softmax" or any(getattr(self, name, None) is not None
                                                   for name in special):  # fmt: skip
            return None
        return _topk(router)


class GroupedTopKLayer(RouterLayer):
    """GroupedTopKRouter; without groups it is one of the others."""

    def fl_routing(self) -> Routing | None:
        router: Any = self
        groups, experts = router.num_expert_group, self.global_num_experts
        if experts > groups and experts % groups == 0:
            return _grouped(router)
        return _topk(router) if router.scoring_func == "softmax" else None


class CPURouterLayer(RouterLayer):
    """CPURouter: one class for all schemes."""

    def fl_routing(self) -> Routing | None:
        router: Any = self
        if router.custom_routing_function is not None:
            return None
        if router.use_grouped_topk:
            return _grouped(router)
        # A bias changes nothing here: this router does not look at it.
        plain = router.scoring_func == "softmax"
        return Routing("topk_softmax", (router.top_k, router.renormalize)) if plain else None


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


class FusedExpertsLayer(MoELayer):
    """UnquantizedFusedMoEMethod: the experts of a layer, their weights as they were loaded."""

    moe: Any
    _fl_op: Any = None

    def fl_bind(self, binder: Binder) -> None:
        reason = self._fl_objection()
        if reason is not None:
            logger.warning_once(f"experts with {reason} are left to vLLM")
            return
        stock = _own if self.fl_has_stock() else None
        moe = self.moe
        facts = {
            "dtype": moe.in_dtype,
            "device": compat.device_type(),
            "hidden_size": moe.hidden_dim,
            "intermediate_size": moe.intermediate_size_per_partition,
            "num_experts": moe.num_local_experts,
            "topk": moe.experts_per_token,
            "ids_dtype": torch.int32,
            "weights_dtype": torch.float32,
            "activation": self._fl_activation(),
            "apply_router_weight_on_input": False,
            "has_expert_map": moe.num_local_experts != moe.num_experts,
        }
        # Options are passed: the map of experts belongs to the layer, not to this object.
        bound = binder.bind("fused_experts", facts, stock, None, options=True)
        if not bound.is_stock:
            self._fl_op = bound.call
            self._forward_method = self.forward_fl

    def _fl_objection(self) -> str | None:
        """What the contract does not cover, if anything."""
        parallel = self.moe.moe_parallel_config
        for reason, found in (
            ("a bias", self.moe.has_bias),
            ("LoRA", getattr(self.moe, "is_lora_enabled", False)),
            ("load balancing", getattr(parallel, "enable_eplb", False)),
            ("clamped activations", getattr(self.moe, "swiglu_limit", None) is not None),
            ("data parallelism", parallel.dp_size > 1),
        ):
            if found:
                return reason
        return None

    def _fl_activation(self) -> str:
        return str(getattr(self.moe.activation, "value", self.moe.activation))

    @property
    def is_monolithic(self) -> bool:
        """The router's choice is passed in, not made by the experts."""
        if self._fl_op is not None:
            return False
        return bool(super().is_monolithic)  # type: ignore[misc]  # of the class that is replaced

    def process_weights_after_loading(self, layer: Any) -> None:
        """Leave the weights as they are; vLLM packs them for its own kernels."""
        if self._fl_op is None:
            super().process_weights_after_loading(layer)  # type: ignore[misc]  # same

    def forward_fl(
        self,
        layer: Any,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> Any:
        """vLLM runs shared experts itself; they are passed for kernels that overlap them."""
        return self._fl_op(
            x,
            layer.w13_weight,
            layer.w2_weight,
            topk_weights,
            topk_ids,
            self._fl_activation(),
            apply_router_weight_on_input=layer.apply_router_weight_on_input,
            global_num_experts=layer.global_num_experts,
            expert_map=layer.expert_map,
        )


def _own(*_: Any, **__: Any) -> Any:
    """Stands for vLLM's own experts where another implementation was bound and failed."""
    raise OpNotSupported("vLLM's own experts need their weights in a layout of their own")
