"""Expert routing as vLLM's native layers compute it."""

from __future__ import annotations

import torch


def topk_softmax(
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool = False,
    *,
    e_score_correction_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the contract of `topk_softmax`."""
    scores = torch.softmax(gating_output, dim=-1, dtype=torch.float32)
    if e_score_correction_bias is None:
        weights, ids = torch.topk(scores, topk, dim=-1)
    else:
        ids = torch.topk(scores + e_score_correction_bias, topk, dim=-1).indices
        weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, ids.to(torch.int32)


def grouped_topk(
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool,
    num_expert_group: int,
    topk_group: int,
    scoring_func: str = "softmax",
    *,
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the contract of `grouped_topk`; in gating's dtype."""
    if scoring_func == "softmax":
        scores = torch.softmax(gating_output, dim=-1)
    elif scoring_func == "sigmoid":
        scores = gating_output.sigmoid()
    else:
        raise ValueError(
            f"scoring_func={scoring_func!r} is not accepted; accepted: softmax, sigmoid"
        )
    bias = e_score_correction_bias
    ranked = scores if bias is None else scores + bias
    size = ranked.shape[-1] // num_expert_group
    groups = ranked.reshape(ranked.shape[0], num_expert_group, size)
    group_scores = groups.amax(-1) if bias is None else groups.topk(2, dim=-1).values.sum(-1)
    # Unsorted, as in vLLM: the order decides how the sum below is rounded.
    best = torch.topk(group_scores, topk_group, dim=-1, sorted=False).indices
    left_out = torch.ones_like(group_scores, dtype=torch.bool).scatter(-1, best, False)
    allowed = groups.masked_fill(left_out.unsqueeze(-1), float("-inf")).flatten(-2)
    ids = torch.topk(allowed, topk, dim=-1, sorted=False).indices
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    if routed_scaling_factor != 1.0:
        weights = weights * routed_scaling_factor
    return weights.to(torch.float32), ids.to(torch.int32)
