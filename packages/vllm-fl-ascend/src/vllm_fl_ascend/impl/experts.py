"""The experts of a mixture, and the sum over the experts of a token.

Rows are kept in row-major order, ``token * topk + k``: npu_moe_init_routing_v2 with gather
indices, and npu_moe_finalize_routing in its row-major mode. Their other modes are column-major.
"""

from __future__ import annotations

import torch

from vllm_fl_ascend.impl.activation import make_gelu_and_mul, make_silu_and_mul
from vllm_fl_ascend.library import operator
from vllm_fl_ascend.limits import FLOAT, at_most, dtype_in, within
from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call

#: `drop_pad_mode` of npu_moe_finalize_routing: all rows are kept, indices are row-major.
ROW_MAJOR = 2
#: `row_idx_type` of npu_moe_init_routing_v2: where each row went, -1 for a row of no expert here.
GATHER = 0
#: `expert_tokens_num_type`, and `group_list_type` of npu_grouped_matmul: running sums. Counts are
#: refused for one expert.
SUMS = 0
#: The inner dimensions of npu_grouped_matmul are below 65536, its weights at most 10240.
MAX_INNER = 65535
MAX_EXPERTS = 10240
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


def supports_moe_sum(query: Query) -> Verdict:
    """Half precision and float32."""
    return within(dtype_in(query, FLOAT))


def make_moe_sum() -> Call:
    """`moe_sum` through npu_moe_finalize_routing, with every row in its place."""
    finalize = operator("npu::npu_moe_finalize_routing")

    def moe_sum(x: torch.Tensor) -> torch.Tensor:
        tokens, topk, width = x.shape
        if not x.numel():
            return x.new_zeros(tokens, width)
        total: torch.Tensor = finalize(
            expanded_permuted_rows=x.contiguous().view(tokens * topk, width),
            skip1=None,
            skip2=None,
            bias=None,
            scales=x.new_ones(tokens, topk),
            expanded_src_to_dst_row=torch.arange(tokens * topk, dtype=torch.int32, device=x.device),
            export_for_source_row=None,
            drop_pad_mode=ROW_MAJOR,
        )
        return total

    return moe_sum


def supports_fused_experts(query: Query) -> Verdict:
    """Inner dimensions below 65536 and the known activations."""
    activation = query.get("activation")
    return within(
        dtype_in(query, FLOAT),
        at_most(query, "hidden_size", MAX_INNER),
        at_most(query, "intermediate_size", MAX_INNER // 2),
        at_most(query, "num_experts", MAX_EXPERTS),
        f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}"
        if activation not in (None, *ACTIVATIONS)
        else None,
    )


def make_fused_experts() -> Call:
    """`fused_experts`: rows sorted by expert, two grouped products, rows weighted and summed."""
    sort_rows = operator("npu::npu_moe_init_routing_v2")
    grouped_matmul = operator("npu::npu_grouped_matmul")
    finalize = operator("npu::npu_moe_finalize_routing")
    silu, gelu = make_silu_and_mul(), make_gelu_and_mul()

    def activate(rows: torch.Tensor, activation: str) -> torch.Tensor:
        if activation == "silu":
            return silu(rows)  # type: ignore[no-any-return]  # a Call returns anything
        if activation in ACTIVATIONS:
            return gelu(rows, "tanh" if activation == "gelu_tanh" else "none")  # type: ignore[no-any-return]  # same
        raise OpNotSupported(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")

    def product(rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = grouped_matmul(
            x=[rows],
            # [experts, out, in] -> [experts, in, out]: a view, which the kernel reads as such.
            weight=[weight.transpose(1, 2)],
            group_list=ends,
            split_item=2,
            group_type=0,
            group_list_type=SUMS,
        )[0]
        return result

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
        if w1.stride(-1) != 1 or w2.stride(-1) != 1:
            raise OpNotSupported("weights whose last dimension is not contiguous")
        if not topk_ids.numel():
            return torch.zeros_like(hidden_states)
        tokens, topk = topk_ids.shape
        experts = w1.shape[0]
        x, ids = hidden_states.contiguous(), topk_ids
        weights = topk_weights.float()
        if apply_router_weight_on_input:
            if topk != 1:
                raise ValueError(f"apply_router_weight_on_input needs topk 1, found {topk}")
            x, weights = x * weights.to(x.dtype), torch.ones_like(weights)
        if expert_map is not None:
            # Experts of other ranks become one expert more, behind the active ones.
            local = expert_map[ids.long()]
            ids = torch.where(local < 0, experts, local)
        rows, places, ends, _ = sort_rows(
            x=x,
            expert_idx=ids.to(torch.int32).contiguous(),
            active_num=tokens * topk,
            expert_num=experts + (expert_map is not None),
            drop_pad_mode=0,
            expert_tokens_num_type=SUMS,
            expert_tokens_num_flag=True,
            quant_mode=-1,
            active_expert_range=[0, experts],
            row_idx_type=GATHER,
        )
        rows = product(activate(product(rows, w1, ends), activation), w2, ends)
        absent = None
        if expert_map is not None:
            # A row of no expert here has no place, and what stands in the unused rows is
            # undefined: it takes another row of its token, times zero.
            places = places.view(tokens, topk)
            here = places >= 0
            absent = ~here.any(1, keepdim=True)
            best = places.amax(1, keepdim=True).clamp(min=0)
            places = torch.where(here, places, best).flatten()
            weights = weights * here
        # The kernel wants rows and weights of one dtype: in half precision the router's weights
        # would be rounded, which changes tokens.
        summed: torch.Tensor = finalize(
            expanded_permuted_rows=rows.float(),
            skip1=None,
            skip2=None,
            bias=None,
            scales=weights.contiguous(),
            expanded_src_to_dst_row=places,
            export_for_source_row=None,
            drop_pad_mode=ROW_MAJOR,
        )
        if absent is not None:
            summed = summed.masked_fill(absent, 0)
        return summed.to(hidden_states.dtype)

    return fused_experts
