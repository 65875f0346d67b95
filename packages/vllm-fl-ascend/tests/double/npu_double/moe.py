"""Expert routing and grouped matrix products."""

from __future__ import annotations

import torch

from .rules import FLOAT, poison, require, require_dense, require_dtype


def npu_moe_gating_top_k_softmax(
    x: torch.Tensor, finished: torch.Tensor | None = None, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    require(finished is None, "the model knows no finished rows")
    require_dtype("x", x, FLOAT)
    require(x.dim() == 2, "x has two dimensions")
    require_dense(x=x)
    require(0 < k <= min(x.shape[-1], 1024), f"k {k} is at most 1024 and the number of experts")
    scores = x.float().softmax(-1)
    ids = _best(scores, k)
    rows = torch.arange(x.shape[0] * k, dtype=torch.int32).view(k, x.shape[0]).t().contiguous()
    return scores.gather(1, ids).to(x.dtype), ids.int(), rows


def npu_moe_gating_top_k(
    x: torch.Tensor,
    k: int,
    *,
    bias: torch.Tensor | None = None,
    input_ids: torch.Tensor | None = None,
    tid2eid: torch.Tensor | None = None,
    k_group: int = 1,
    group_count: int = 1,
    group_select_mode: int = 0,
    renorm: int = 0,
    norm_type: int = 0,
    out_flag: bool = False,
    routed_scaling_factor: float = 1.0,
    eps: float = 1e-20,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    require_dtype("x", x, FLOAT)
    require(x.dim() == 2 and x.numel(), "x has two dimensions and elements")
    rows, experts = x.shape
    require(experts <= 2048, "at most 2048 experts")
    require(group_count > 0 and experts % group_count == 0, "groups are of one size")
    size = experts // group_count
    require(size > 2, "a group has more than two experts")
    require(-(-size // 32) * 32 * group_count <= 2048, "padded groups hold at most 2048 experts")
    require(1 <= k_group <= group_count and 1 <= k <= k_group * size, "k fits in the groups taken")
    require(renorm == 0, "renorm is 0")
    require(group_select_mode in (0, 1) and norm_type in (0, 1), "modes are 0 or 1")
    require(input_ids is None and tid2eid is None, "the model knows no hash mode")
    scores = x.float().softmax(-1) if norm_type == 0 else x.float().sigmoid()
    biased = scores
    if bias is not None:
        require(bias.dtype == x.dtype, "bias has x's dtype")
        require(bias.shape == (experts,), "bias has one value for each expert")
        biased = scores + bias.float()
    grouped = biased.view(rows, group_count, size)
    best = grouped.topk(2 if group_select_mode else 1, -1).values.sum(-1)
    taken = torch.zeros(rows, group_count, dtype=torch.bool)
    taken.scatter_(1, _best(best, k_group), value=True)
    ids = _best(grouped.masked_fill(~taken[..., None], -torch.inf).flatten(1), k)
    weights = scores.gather(1, ids)
    if norm_type == 1:
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
    out = scores if out_flag else poison(rows, experts, dtype=torch.float32)
    return (weights * routed_scaling_factor).to(x.dtype), ids.int(), out


def npu_moe_init_routing_v2(
    x: torch.Tensor,
    expert_idx: torch.Tensor,
    *,
    scale: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    active_num: int = -1,
    expert_capacity: int = -1,
    expert_num: int = -1,
    drop_pad_mode: int = 0,
    expert_tokens_num_type: int = 0,
    expert_tokens_num_flag: bool = False,
    quant_mode: int = -1,
    active_expert_range: list[int] | None = None,
    row_idx_type: int = 0,
    x_dtype: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    require(scale is None and offset is None and quant_mode == -1, "the model does not quantize")
    require(drop_pad_mode == 0, "the model drops no rows")
    require_dtype("x", x, (*FLOAT, torch.int8))
    require_dtype("expert_idx", expert_idx, (torch.int32,))
    require(x.dim() == expert_idx.dim() == 2, "x and expert_idx have two dimensions")
    require(x.shape[0] == expert_idx.shape[0], "a row of expert_idx for each row of x")
    require_dense(x=x, expert_idx=expert_idx)
    require(0 < expert_num <= 10240, "expert_num is 1 to 10240")
    first, end = active_expert_range or (0, expert_num)
    require(0 <= first < end <= expert_num, "active_expert_range lies within the experts")
    k, total = expert_idx.shape[1], expert_idx.numel()
    flat = expert_idx.flatten().long()
    require(bool(((flat >= 0) & (flat < expert_num)).all()), "expert ids are below expert_num")
    active = (flat >= first) & (flat < end)
    order = torch.argsort(torch.where(active, flat, expert_num), stable=True)
    count = int(active.sum())
    limit = total if active_num in (-1, 0) else min(active_num, total)
    expanded = poison(limit, x.shape[1], dtype=x.dtype)
    valid = min(count, limit)
    expanded[:valid] = x[order[:valid] // k]
    if row_idx_type == 0:
        rows = torch.full((total,), -1, dtype=torch.int32)
        rows[order[:valid]] = torch.arange(valid, dtype=torch.int32)
    else:
        rows = poison(total, dtype=torch.int32)
        rows[:valid] = order[:valid].int()
    counts = torch.bincount(flat, minlength=expert_num)[first:end]
    require(expert_tokens_num_type in (0, 1), "the model knows sums and counts")
    tokens = counts.cumsum(0) if expert_tokens_num_type == 0 else counts
    if not expert_tokens_num_flag:
        tokens = poison(end - first, dtype=torch.int64)
    # The shape of the wheel: the documentation has one scale for each row of x.
    return expanded, rows, tokens, poison(total, dtype=torch.float32)


def npu_moe_finalize_routing(
    expanded_permuted_rows: torch.Tensor,
    skip1: torch.Tensor | None,
    skip2: torch.Tensor | None,
    bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    expanded_src_to_dst_row: torch.Tensor,
    export_for_source_row: torch.Tensor | None,
    drop_pad_mode: int | None = 0,
    k: int | None = 1,
) -> torch.Tensor:
    rows = expanded_permuted_rows
    require(skip1 is None and skip2 is None and bias is None, "the model adds nothing")
    require_dtype("expanded_permuted_rows", rows, FLOAT)
    require(rows.dim() == 2, "expanded_permuted_rows has two dimensions")
    require(drop_pad_mode in (0, 2), "the model drops no rows")
    require_dtype("expanded_src_to_dst_row", expanded_src_to_dst_row, (torch.int32,))
    require_dense(rows=rows, index=expanded_src_to_dst_row)
    per_token = 1
    if scales is not None:
        require(scales.dtype == rows.dtype, "scales have the dtype of the rows")
        require(scales.dim() == 2, "scales has two dimensions")
        per_token = scales.shape[1]
    total = expanded_src_to_dst_row.numel()
    require(total == rows.shape[0] and total % per_token == 0, "an index for each row")
    tokens = total // per_token
    require(scales is None or scales.shape[0] == tokens, "a row of scales for each token")
    index = expanded_src_to_dst_row.long()
    require(bool(((index >= 0) & (index < total)).all()), "indices lie within the rows")
    index = index.view(tokens, per_token) if drop_pad_mode == 2 else index.view(per_token, -1).t()
    gathered = rows.double()[index]
    weights = torch.ones(tokens, per_token) if scales is None else scales
    return (gathered * weights.double()[..., None]).sum(1).to(rows.dtype)


def npu_grouped_matmul(
    x: list[torch.Tensor],
    weight: list[torch.Tensor],
    *,
    group_list: torch.Tensor | None = None,
    split_item: int | None = 0,
    group_type: int | None = None,
    group_list_type: int | None = 0,
    act_type: int | None = 0,
    **unknown: object,
) -> list[torch.Tensor]:
    given = [name for name, value in unknown.items() if value is not None]
    require(not given and act_type == 0, f"the model knows nothing of {given} and act_type")
    require(len(x) == len(weight) == 1, "the model takes one tensor of rows and one of weights")
    (rows,), (experts,) = x, weight
    require_dtype("x", rows, FLOAT)
    require(rows.dtype == experts.dtype, "x and weight have one dtype")
    require(rows.dim() == 2 and experts.dim() == 3, "x is [M, K], weight [E, K, N]")
    require_dense(x=rows)
    transposed = experts.transpose(1, 2).is_contiguous()
    require(experts.is_contiguous() or transposed, "weight is contiguous, or so when transposed")
    require(rows.shape[1] == experts.shape[1], "the inner dimensions agree")
    inner = experts.shape[1] if transposed else experts.shape[2]
    require(max(rows.shape[1], inner) < 65536, "inner dimensions are below 65536")
    require(split_item in (2, 3) and group_type == 0, "one result, grouped by rows")
    require(group_list is not None and group_list.dtype == torch.int64, "group_list is int64")
    assert group_list is not None
    require(group_list.shape == (experts.shape[0],), "group_list has one value for each expert")
    require(group_list_type in (0, 1), "group_list_type is 0 (sums) or 1 (counts)")
    require(group_list_type == 0 or group_list.numel() != 1, "a list of counts has not one value")
    ends = group_list if group_list_type == 0 else group_list.cumsum(0)
    ends = ends.tolist()
    require(ends == sorted(ends) and ends[0] >= 0, "sums do not fall")
    require(ends[-1] <= rows.shape[0], "the groups lie within the rows")
    out = poison(rows.shape[0], experts.shape[2], dtype=rows.dtype)
    start = 0
    for expert, end in enumerate(ends):
        out[start:end] = (rows[start:end].double() @ experts[expert].double()).to(rows.dtype)
        start = end
    return [out]


def _best(scores: torch.Tensor, k: int) -> torch.Tensor:
    """Indices of the k largest, the first of equals first."""
    return scores.argsort(dim=-1, descending=True, stable=True)[:, :k]
