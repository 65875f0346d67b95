"""The experts of vLLM's models without quantization.

Only on `PlatformFL` and on the CPU; elsewhere vLLM's own kernels for experts stay.
"""

from __future__ import annotations

from typing import Any

import torch

from vllm_fl_dispatch.errors import OpNotSupported
from vllm_fl_dispatch.logger_manager import get_logger, warning_once
from vllm_fl_dispatch.vllm import compat
from vllm_fl_dispatch.vllm.binding import Binder
from vllm_fl_dispatch.vllm.layers import Dispatched

logger = get_logger(__name__)


def are_dispatched() -> bool:
    """Are experts and their routing ours to choose on this platform?"""
    return compat.is_ours() or compat.device_type() == "cpu"


class MoELayer(Dispatched):
    """What experts and routers have in common."""

    @classmethod
    def fl_has_stock(cls) -> bool:
        # On a vLLM without compiled kernels its own code for experts does not run.
        return not compat.is_ours()


class FusedExpertsLayer(MoELayer):
    """UnquantizedFusedMoEMethod: the experts of a layer, their weights as they were loaded."""

    moe: Any
    _fl_op: Any = None

    def fl_bind(self, binder: Binder) -> None:
        reason = self._fl_objection()
        if reason is not None:
            warning_once(logger, f"experts with {reason} are left to vLLM")
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
