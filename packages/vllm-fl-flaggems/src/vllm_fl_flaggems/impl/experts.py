"""The experts themselves: two grouped products with an activation between them, and the sum."""

from __future__ import annotations

import importlib

import torch

from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call
from vllm_fl_flaggems import library
from vllm_fl_flaggems.impl.activation import make_gelu_and_mul, make_silu_and_mul
from vllm_fl_flaggems.impl.limits import check_extent, on_known_ground
from vllm_fl_flaggems.impl.routing import make_moe_align_block_size


def supports(query: Query) -> Verdict:
    """`fused_experts` in half precision: on a device its products of float32 are TF32."""
    if query.op_name == "fused_experts" and query.dtype == torch.float32:
        return Verdict.no("products of float32 are computed in TF32")
    return on_known_ground(query)


def make_moe_sum() -> Call:
    """`moe_sum` through ``moe_sum``."""
    kernel = library.function("moe_sum")

    def moe_sum(x: torch.Tensor) -> torch.Tensor:
        check_extent(x)
        out = x.new_empty((x.shape[0], x.shape[2]))
        if out.numel():
            kernel(x if x.stride(2) == 1 else x.contiguous(), out)
        return out

    return moe_sum


def make_fused_experts() -> Call:
    """`fused_experts` from FlagGems' kernels.

    Its own composition, ``fused_experts_impl``, compiles a kernel for every number of tokens and
    looks up a table that the wheel does not carry, with a warning, at every call.
    """
    product = library.function("invoke_fused_moe_triton_kernel")
    details = importlib.import_module("flag_gems.fused.fused_moe")
    language = importlib.import_module("triton.language")
    align, add, gelu = make_moe_align_block_size(), make_moe_sum(), make_gelu_and_mul()
    activations: dict[str, Call] = {
        "silu": make_silu_and_mul(),
        "gelu": gelu,
        "gelu_tanh": lambda x: gelu(x, "tanh"),
    }
    compute_types = {torch.float16: language.float16, torch.bfloat16: language.bfloat16}

    def fused_experts(
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: str = "silu",
        *,
        apply_router_weight_on_input: bool = False,
        global_num_experts: int = -1,
        expert_map: torch.Tensor | None = None,
    ) -> torch.Tensor:
        dtype = hidden_states.dtype
        if activation not in activations or dtype not in compute_types:
            raise OpNotSupported(f"activation {activation!r}, {dtype}")
        if w1.stride(-1) != 1 or w2.stride(-1) != 1:
            raise OpNotSupported("weights whose last dimension is not contiguous")
        # Its elements are taken for adjacent.
        topk_weights = topk_weights.contiguous()
        tokens, topk = topk_ids.shape
        if not hidden_states.numel():
            return hidden_states.new_empty(hidden_states.shape)
        experts = w1.shape[0]
        config = details.get_default_config(
            tokens, experts, w2.shape[2], w1.shape[2], topk, None, None
        )
        order = align(
            topk_ids,
            config["BLOCK_SIZE_M"],
            experts if global_num_experts == -1 else global_num_experts,
            expert_map=expert_map,
        )

        def multiply(rows: torch.Tensor, weight: torch.Tensor, k: int, scale: bool) -> torch.Tensor:
            """One product per (token, choice): [tokens, topk, out], of rows // k."""
            out = rows.new_empty((tokens, topk, weight.shape[1]))
            product(
                rows, weight, out, None, None, topk_weights, *order, scale, k, config,
                compute_types[dtype],
            )  # fmt: skip
            return out

        on_input = apply_router_weight_on_input
        up = multiply(hidden_states.contiguous(), w1, topk, on_input)
        inner = activations[activation](up.view(tokens * topk, -1))
        result: torch.Tensor = add(multiply(inner, w2, 1, not on_input))
        return result

    return fused_experts
