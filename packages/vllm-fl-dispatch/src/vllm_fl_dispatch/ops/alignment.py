"""Mixture-of-experts layers: sorting tokens by expert, in whole blocks.

Source of the semantics: vllm/model_executor/layers/fused_moe/moe_align_block_size.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops import alignment_cases as cases
from vllm_fl_dispatch.types import Query

if TYPE_CHECKING:
    import torch


def moe_align_block_size(  # type: ignore[empty-body]  # a contract
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    *,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort the routed rows by expert and pad each expert's share to whole blocks.

    Args:
        topk_ids: [tokens, topk], int32 or int64; row ``i * topk + k`` is the k-th choice of
            token i.
        block_size: rows per block.
        num_experts: experts over all ranks.
        expert_map: [num_experts] int32, expert -> expert of this rank, or -1.
        pad_sorted_ids: round the length of the first result up to whole blocks.
        ignore_invalid_experts: with a map, leave out the rows of other ranks' experts; without
            this they are counted, and their blocks are marked -1.

    Returns:
        (sorted_token_ids, expert_ids, num_tokens_post_padded), int32, contiguous.
        sorted_token_ids [n]: row numbers by expert, their order within an expert not specified;
        padding is ``topk_ids.numel()``. expert_ids [ceil(n / block_size)]: the expert of each
        block, through the map. num_tokens_post_padded [1]: how many entries are meant; what
        stands behind them is not specified.
    """


def aligned_sizes(rows: int, block_size: int, num_experts: int, pad: bool) -> tuple[int, int]:
    """(entries, blocks) that `moe_align_block_size` makes room for; also of a symbolic `rows`.

    Args:
        rows: routed rows, tokens times choices.
        pad: round the entries up to whole blocks.
    """
    import torch

    length = rows + num_experts * (block_size - 1)
    if pad:
        length = (length + block_size - 1) // block_size * block_size
    # The smaller one is the first where there are fewer rows than experts.
    length = torch.sym_min(rows * block_size, length)  # type: ignore[no-untyped-call]  # torch
    return length, (length + block_size - 1) // block_size


def _align_fake(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    *,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    length, blocks = aligned_sizes(topk_ids.numel(), block_size, num_experts, pad_sorted_ids)
    return tuple(topk_ids.new_empty((n,), dtype=torch.int32) for n in (length, blocks, 1))  # type: ignore[return-value]  # three


def _align_facts(
    topk_ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    *,
    expert_map: torch.Tensor | None = None,
    pad_sorted_ids: bool = False,
    ignore_invalid_experts: bool = False,
) -> tuple[Any, ...]:
    return (
        topk_ids.dtype,
        topk_ids.device,
        topk_ids.shape[-1],
        block_size,
        num_experts,
        expert_map is not None,
        pad_sorted_ids,
        ignore_invalid_experts,
    )


def _align_example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    topk, experts = query.get("topk") or 2, query.get("num_experts") or 8
    ids = torch.arange(2 * topk, device=query.device_type or "cpu").reshape(2, topk) % experts
    options: dict[str, Any] = {
        name: True for name in ("pad_sorted_ids", "ignore_invalid_experts") if query.get(name)
    }
    if query.get("has_expert_map"):
        options["expert_map"] = torch.arange(experts, dtype=torch.int32, device=ids.device)
    ids = ids.to(query.dtype or torch.int32)
    return (ids, query.get("block_size") or 16, experts), options


SPECS = (
    OpSpec(
        "moe_align_block_size",
        moe_align_block_size,
        schema=(
            "(Tensor topk_ids, int block_size, int num_experts, *, Tensor? expert_map=None, "
            "bool pad_sorted_ids=False, bool ignore_invalid_experts=False) "
            "-> (Tensor, Tensor, Tensor)"
        ),
        fake=_align_fake,
        facts=_align_facts,
        fact_names=(
            "dtype",
            "device",
            "topk",
            "block_size",
            "num_experts",
            "has_expert_map",
            "pad_sorted_ids",
            "ignore_invalid_experts",
        ),
        example=_align_example,
        shapes={"topk_ids": "tokens topk"},
        oracle=cases.align_oracle,
        cases=cases.align_cases,
        canonical=cases.meant_entries,
    ),
)
