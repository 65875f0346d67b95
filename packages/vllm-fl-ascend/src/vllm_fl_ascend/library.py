"""The operators of torch_npu that this backend calls: imported and checked at the first binding."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from vllm_fl_dispatch import ContractError

#: operator -> the arguments that are passed, by the names of the schema. The names in torch_npu's
#: documentation differ from these (`self`, `x`, `expert_for_source_row`) and are refused.
OPERATORS: dict[str, tuple[str, ...]] = {
    "npu::npu_swiglu": ("input", "dim"),
    "npu::npu_geglu": ("input", "dim", "approximate", "activate_left"),
    "npu::npu_clipped_swiglu": ("x", "dim", "alpha", "limit", "bias", "interleaved"),
    "npu::npu_rms_norm": ("input", "gamma", "epsilon"),
    "npu::npu_add_rms_norm": ("x1", "x2", "gamma", "epsilon"),
    "npu::npu_rotary_mul": ("input", "r1", "r2", "rotary_mode"),
    "npu::npu_moe_gating_top_k_softmax": ("x", "k"),
    "npu::npu_moe_gating_top_k": (
        "x",
        "k",
        "bias",
        "k_group",
        "group_count",
        "group_select_mode",
        "renorm",
        "norm_type",
        "out_flag",
    ),
    "npu::npu_moe_init_routing_v2": (
        "x",
        "expert_idx",
        "active_num",
        "expert_num",
        "drop_pad_mode",
        "expert_tokens_num_type",
        "expert_tokens_num_flag",
        "quant_mode",
        "active_expert_range",
        "row_idx_type",
    ),
    "npu::npu_moe_finalize_routing": (
        "expanded_permuted_rows",
        "skip1",
        "skip2",
        "bias",
        "scales",
        "expanded_src_to_dst_row",
        "export_for_source_row",  # so spelled in the schema
        "drop_pad_mode",
    ),
    "npu::npu_grouped_matmul": (
        "x",
        "weight",
        "group_list",
        "split_item",
        "group_type",
        "group_list_type",
    ),
    "npu::npu_dynamic_quant": ("input",),
    "npu::npu_fused_infer_attention_score": (
        "query",
        "key",
        "value",
        "atten_mask",
        "actual_seq_lengths",
        "actual_seq_lengths_kv",
        "block_table",
        "num_heads",
        "scale",
        "pre_tokens",
        "next_tokens",
        "input_layout",
        "num_key_value_heads",
        "sparse_mode",
        "block_size",
    ),
    "npu::npu_fusion_attention": (
        "query",
        "key",
        "value",
        "head_num",
        "input_layout",
        "atten_mask",
        "scale",
        "pre_tockens",  # so spelled in the schema
        "next_tockens",
        "actual_seq_qlen",
        "actual_seq_kvlen",
        "sparse_mode",
    ),
    "atb::_npu_reshape_and_cache": ("key", "value", "key_cache", "value_cache", "slot_indices"),
    "atb::_npu_paged_attention": (
        "query",
        "key_cache",
        "value_cache",
        "num_kv_heads",
        "num_heads",
        "scale_value",
        "block_table",
        "context_lens",
        "out",
    ),
}
#: Importing each of these registers operators.
MODULES = ("torch_npu", "torch_npu.op_plugin.atb._atb_ops")


def import_library() -> None:
    """Import torch_npu and the operators of its transformer library.

    Raises:
        ImportError: whatever importing raised stands behind it. Without CANN's libraries or a
            driver that can be nearly anything.
    """
    try:
        for name in MODULES:
            importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ImportError(f"importing torch_npu raised {type(error).__name__}: {error}") from error


@cache
def operator(name: str) -> Any:
    """The default overload of an operator in `OPERATORS`, with its arguments checked.

    Raises:
        ImportError: torch_npu cannot be imported.
        ContractError: the installed torch_npu has no such operator, or its schema lacks an
            argument that is passed; shows the schema.
    """
    import_library()
    import torch

    namespace, _, op = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    if packet is None:
        raise ContractError(f"the installed torch_npu has no operator {name}")
    schema = packet.default._schema
    known = {argument.name for argument in schema.arguments}
    unknown = [argument for argument in OPERATORS[name] if argument not in known]
    needed = [
        argument.name
        for argument in schema.arguments
        if not argument.has_default_value() and argument.name not in OPERATORS[name]
    ]
    if unknown or needed:
        raise ContractError(
            f"{name} takes other arguments than its adapter passes: "
            f"unknown {unknown}, missing {needed}\n  found: {schema}"
        )
    return packet.default
