"""Oracles and conformance cases of expert routing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import DTYPES, MANY_ROWS, Case, Maker

if TYPE_CHECKING:
    import torch


def topk_oracle(
    gating_output: torch.Tensor,
    topk: int,
    renormalize: bool = False,
    *,
    e_score_correction_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`topk_softmax` in float64."""
    scores = gating_output.double().softmax(-1)
    return _choose(scores, scores, e_score_correction_bias, topk, renormalize, 1.0)


def grouped_oracle(
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
    """`grouped_topk` in float64."""
    logits = gating_output.double()
    scores = logits.softmax(-1) if scoring_func == "softmax" else logits.sigmoid()
    bias = e_score_correction_bias
    biased = scores if bias is None else scores + bias.double()
    size = biased.shape[-1] // num_expert_group
    groups = biased.reshape(biased.shape[0], num_expert_group, size)
    group_scores = groups.amax(-1) if bias is None else groups.topk(2, dim=-1).values.sum(-1)
    best = group_scores.topk(topk_group, dim=-1).indices
    out = logits.new_ones(group_scores.shape).bool().scatter(-1, best, False)
    allowed = groups.masked_fill(out.unsqueeze(-1), float("-inf")).flatten(-2)
    return _choose(scores, allowed, None, topk, renormalize, routed_scaling_factor)


def _choose(
    scores: torch.Tensor,
    ranked: torch.Tensor,
    bias: torch.Tensor | None,
    topk: int,
    renormalize: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    ranked = ranked if bias is None else ranked + bias.double()
    ids = ranked.topk(topk, dim=-1).indices
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale, ids


def by_id(results: tuple[Any, ...], *_: Any, **__: Any) -> tuple[Any, ...]:
    """(weights, ids) of each token in the order of the ids: theirs is not specified."""
    weights, ids = results
    order = ids.long().argsort(-1)
    return weights.gather(-1, order), ids.gather(-1, order)


#: name -> (tokens, experts, topk)
_SHAPES = {
    "one-row": (1, 8, 2),
    "rows": (7, 64, 8),
    "many-rows": (300, 16, 4),
    "odd-experts": (5, 60, 4),
    "many-experts": (3, 256, 8),
    "one-expert": (4, 8, 1),
    "all-experts": (3, 8, 8),
    "zero-rows": (0, 8, 2),
}


def topk_cases() -> Iterable[Case]:
    """The cases of `topk_softmax`."""
    for dtype in DTYPES:
        for name, (tokens, experts, topk) in _SHAPES.items():
            for renormalize in (False, True):
                ending = "-renormalized" if renormalize else ""
                make = _gating(dtype, tokens, experts, topk, renormalize)
                yield Case(f"{dtype}-{name}{ending}", make, dtype=dtype)
        for renormalize in (False, True):
            ending = "" if renormalize else "-unnormalized"
            make = _gating(dtype, 5, 64, 6, renormalize)
            yield Case(f"{dtype}-bias{ending}", make, _OPTIONS["bias"], dtype)
        yield Case(f"{dtype}-row-stride", _strided(dtype), dtype=dtype)
    yield _many(_gating("bfloat16", _DISTINCT, 8, 2, True))


#: As many rows are made, and repeated.
_DISTINCT = 257


def _many(make: Any) -> Case:
    def many(m: Maker) -> tuple[Any, ...]:
        gating, *rest = make(m)
        return (gating.repeat(MANY_ROWS // _DISTINCT + 1, 1)[:MANY_ROWS], *rest)

    return Case(f"bfloat16-{MANY_ROWS}-rows", many, dtype="bfloat16", rows=MANY_ROWS)


def _gating(dtype: str, tokens: int, experts: int, *rest: Any) -> Any:
    """Scores a factor of at least 1.06 apart, so that half precision does not tie them."""

    def make(m: Maker) -> tuple[Any, ...]:
        return (m.to(m.separated(tokens, experts, -8.0, 7.9375), dtype), *rest)

    return make


def _strided(dtype: str) -> Any:
    def make(m: Maker) -> tuple[Any, ...]:
        wide = m.to(m.separated(6, 128, -8.0, 7.875), dtype)
        return (wide[:, 32:96], 4, True)

    return make


def _bias(m: Maker, experts: int) -> torch.Tensor:
    """Large enough to change the choice of experts."""
    return m.normal(experts, scale=0.2)


#: What may be given beside the scores of 64 experts.
_OPTIONS: dict[str, Any] = {
    "bias": lambda m: {"e_score_correction_bias": _bias(m, 64)},
    "scaled": lambda m: {"routed_scaling_factor": 2.5},
    "bias-scaled": lambda m: {
        "e_score_correction_bias": _bias(m, 64),
        "routed_scaling_factor": 2.5,
    },
}
#: name -> (tokens, experts, topk, groups, topk_group)
_GROUPS = {
    "one-row": (1, 16, 2, 4, 2),
    "rows": (7, 64, 6, 8, 3),
    "deepseek": (5, 256, 8, 8, 4),
    "one-group": (4, 32, 4, 1, 1),
    "zero-rows": (0, 16, 2, 4, 2),
}
#: Where half precision still tells neighbours apart.
_RANGES = {"softmax": (-3.0, 3.0), "sigmoid": (-6.0, 1.0)}


def grouped_cases() -> Iterable[Case]:
    """The cases of `grouped_topk`."""
    for dtype in DTYPES:
        for scoring in ("softmax", "sigmoid"):
            for name, shape in _GROUPS.items():
                make = _grouped(dtype, scoring, True, *shape)
                yield Case(f"{dtype}-{name}-{scoring}", make, dtype=dtype)
            for renormalize in (False, True):
                make = _grouped(dtype, scoring, renormalize, *_GROUPS["rows"])
                ending = scoring if renormalize else f"unnormalized-{scoring}"
                if not renormalize:
                    yield Case(f"{dtype}-{ending}", make, dtype=dtype)
                for name, options in _OPTIONS.items():
                    yield Case(f"{dtype}-{name}-{ending}", make, options, dtype)
    yield _many(_grouped("bfloat16", "softmax", True, _DISTINCT, 8, 2, 2, 1))


def _grouped(
    dtype: str,
    scoring: str,
    renormalize: bool,
    tokens: int,
    experts: int,
    topk: int,
    groups: int,
    best: int,
) -> Any:
    def make(m: Maker) -> tuple[Any, ...]:
        gating = m.to(m.separated(tokens, experts, *_RANGES[scoring]), dtype)
        return (gating, topk, renormalize, groups, best, scoring)

    return make
