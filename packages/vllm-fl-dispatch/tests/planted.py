"""Implementations for the tests of the kit: right ones, and one for each kind of fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from vllm_fl_dispatch import OpNotSupported
from vllm_fl_dispatch.ops.experts_cases import experts_oracle

# -- right implementations, as a kernel author would write them ---------------------------------


def silu_and_mul(x: Any) -> Any:
    gate, up = x.float().chunk(2, -1)
    return (functional.silu(gate) * up).to(x.dtype).contiguous()


def rms_norm(
    x: Any, weight: Any, epsilon: float, *, variance_size: Any = None, weight_offset: float = 0.0
) -> Any:
    return normed(x.float(), weight, epsilon, variance_size, weight_offset).to(x.dtype).contiguous()


def normed(wide: Any, weight: Any, epsilon: float, size: Any, offset: float) -> Any:
    variance = wide[..., :size].square().mean(-1, keepdim=True)
    wide = wide * torch.rsqrt(variance + epsilon)
    return wide if weight is None else wide * (weight.float() + offset)


def fused_add_rms_norm(
    x: Any,
    residual: Any,
    weight: Any,
    epsilon: float,
    *,
    variance_size: Any = None,
    weight_offset: float = 0.0,
) -> Any:
    total = x.float() + residual.float()
    result = normed(total, weight, epsilon, variance_size, weight_offset)
    return result.to(x.dtype).contiguous(), total.to(x.dtype).contiguous()


def rotary_embedding(
    positions: Any,
    query: Any,
    key: Any,
    head_size: int,
    cos_sin_cache: Any,
    is_neox_style: bool,
    *,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> Any:
    rows = cos_sin_cache.to(query.dtype).float()[positions]
    cos, sin = rows[:, None].chunk(2, -1)
    sin = -sin if inverse else sin
    end = rope_dim_offset + rows.shape[-1]

    def rotated(x: Any) -> Any:
        heads = x.float().reshape(len(rows), x.shape[1:].numel() // head_size, head_size).clone()
        part = heads[..., rope_dim_offset:end]
        a, b = part.chunk(2, -1) if is_neox_style else (part[..., ::2], part[..., 1::2])
        new = (a * cos - b * sin, b * cos + a * sin)
        a.copy_(new[0])
        b.copy_(new[1])
        return heads.reshape(x.shape).to(x.dtype)

    return rotated(query), None if key is None else rotated(key)


def topk_softmax(
    gating_output: Any, topk: int, renormalize: bool = False, *, e_score_correction_bias: Any = None
) -> Any:
    scores = gating_output.float().softmax(-1)
    ranked = scores if e_score_correction_bias is None else scores + e_score_correction_bias
    ids = ranked.topk(topk, -1).indices
    weights = scores.gather(-1, ids)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, ids.int()


def grouped_topk(
    gating_output: Any,
    topk: int,
    renormalize: bool,
    num_expert_group: int,
    topk_group: int,
    scoring_func: str = "softmax",
    *,
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: Any = None,
) -> Any:
    logits, bias = gating_output.float(), e_score_correction_bias
    scores = logits.softmax(-1) if scoring_func == "softmax" else logits.sigmoid()
    groups = (scores if bias is None else scores + bias).unflatten(-1, (num_expert_group, -1))
    ranks = groups.amax(-1) if bias is None else groups.topk(2, -1).values.sum(-1)
    out = torch.ones_like(ranks).scatter(-1, ranks.topk(topk_group, -1).indices, 0).bool()
    ids = groups.masked_fill(out[..., None], -torch.inf).flatten(-2).topk(topk, -1).indices
    weights = scores.gather(-1, ids)
    weights = weights / weights.sum(-1, keepdim=True) if renormalize else weights
    return (weights * routed_scaling_factor).contiguous(), ids.int()


def dynamic_per_token_quant_int8(x: Any) -> Any:
    largest = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-10)
    return (x.float() * (127 / largest)).round().to(torch.int8).contiguous(), largest / 127


RIGHT = {
    fn.__name__: fn
    for fn in (
        silu_and_mul,
        rms_norm,
        fused_add_rms_norm,
        rotary_embedding,
        topk_softmax,
        grouped_topk,
        dynamic_per_token_quant_int8,
    )
}


# -- planted faults -----------------------------------------------------------------------------


def truncated(x: Any) -> Any:
    result = silu_and_mul(x.float())
    if x.dtype is torch.bfloat16:
        return (result.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)
    return result.to(x.dtype)


def variance_in_half_precision(x: Any, weight: Any, epsilon: float, **options: Any) -> Any:
    variance = x.float().square().mean(-1, keepdim=True).to(x.dtype).float()
    result = x.float() * torch.rsqrt(variance + epsilon)
    return (result if weight is None else result * weight.float()).to(x.dtype)


def add_with_variance_of_the_rounded_sum_of_squares(
    x: Any, residual: Any, weight: Any, epsilon: float
) -> Any:
    total = x + residual
    return variance_in_half_precision(total, weight, epsilon).to(x.dtype), total.to(x.dtype)


def rounded_offset(x: Any, weight: Any, epsilon: float, *, weight_offset: float = 0.0) -> Any:
    return rms_norm(x, None if weight is None else weight + weight_offset, epsilon)


def ignores_row_stride(x: Any) -> Any:
    packed = torch.empty(x.shape).stride()
    return silu_and_mul(x.as_strided(x.shape, packed, x.storage_offset()))


def ignores_column_stride(x: Any, weight: Any, epsilon: float) -> Any:
    strides = (*x.stride()[:-1], 1)
    normal = rms_norm(x.as_strided(x.shape, strides, x.storage_offset()), None, epsilon)
    return normal if weight is None else (normal.float() * weight.float()).to(x.dtype)


def ignores_gaps(x: Any, weight: Any, epsilon: float, **options: Any) -> Any:
    if weight is not None:
        weight = weight.as_strided(weight.shape, (1,), weight.storage_offset())
    return rms_norm(x, weight, epsilon, **options)


def ignores_gaps_of_positions(positions: Any, *rest: Any, **options: Any) -> Any:
    adjacent = positions.as_strided(positions.shape, (1,), positions.storage_offset())
    return rotary_embedding(adjacent % len(rest[3]), *rest, **options)


def ignores_style(p: Any, q: Any, k: Any, size: int, cache: Any, neox: bool, **options: Any) -> Any:
    return rotary_embedding(p, q, k, size, cache, True, **options)


def rotates_all_channels(p: Any, q: Any, k: Any, size: int, cache: Any, neox: bool) -> Any:
    wide = cache.new_zeros(cache.shape[0], size)
    half = cache.shape[-1] // 2
    wide[:, :half], wide[:, size // 2 : size // 2 + half] = cache.chunk(2, -1)
    wide[:, half : size // 2] = 1
    return rotary_embedding(p, q, k, size, wide, neox)


def promotes(p: Any, q: Any, k: Any, size: int, cache: Any, neox: bool, **options: Any) -> Any:
    results = rotary_embedding(p, q, k, size, cache, neox, **options)
    return tuple(r if r is None else r.to(cache.dtype) for r in results)


def keeps_the_first_table() -> Callable[..., Any]:
    kept: dict[Any, Any] = {}

    def rotary(p: Any, q: Any, k: Any, size: int, cache: Any, neox: bool, **options: Any) -> Any:
        table = kept.setdefault((cache.shape, cache.dtype), cache)
        return rotary_embedding(p, q, k, size, table, neox, **options)

    return rotary


def rotates_in_place(p: Any, q: Any, k: Any, size: int, cache: Any, neox: bool, **more: Any) -> Any:
    results = rotary_embedding(p, q, k, size, cache, neox, **more)
    return q.copy_(results[0]), None if k is None else k.copy_(results[1])


def writes_a_whole_row(p: Any, q: Any, k: Any, size: int, cache: Any, neox: bool, **o: Any) -> Any:
    results = rotary_embedding(p, q, k, size, cache, neox, **o)
    if q._base is not None:
        q._base[..., -1] += 1
    return results


def wraps_offsets_at_31_bits(x: Any) -> Any:
    offsets = torch.arange(x.shape[0]) * x.stride(0) + x.storage_offset()
    wrapped = offsets.to(torch.int32).long() % 2**31
    rows = [x.as_strided(x.shape[1:], x.stride()[1:], int(o)) for o in wrapped]
    return silu_and_mul(torch.stack(rows))


def crashes_without_rows(x: Any) -> Any:
    if not x.numel():
        raise RuntimeError("invalid configuration argument")
    return silu_and_mul(x)


def swallows_nan(x: Any) -> Any:
    return silu_and_mul(x).nan_to_num()


def flushes_the_tail(x: Any) -> Any:
    gate, up = x.chunk(2, -1)
    return (gate * (1 - torch.sigmoid(-gate)) * up).contiguous()


def reversed_experts(*args: Any, **options: Any) -> Any:
    weights, ids = topk_softmax(*args, **options)
    return weights, ids.flip(-1).contiguous()


def forgets_to_renormalize(gating_output: Any, topk: int, renormalize: bool = False) -> Any:
    return topk_softmax(gating_output, topk)


def weights_with_bias(
    gating: Any, topk: int, renormalize: bool = False, *, e_score_correction_bias: Any = None
) -> Any:
    scores = gating.float().softmax(-1)
    if e_score_correction_bias is not None:
        scores = scores + e_score_correction_bias
    weights, ids = scores.topk(topk, -1)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, ids.int()


def truncates_integers(x: Any) -> Any:
    largest = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-10)
    return (x.float() * (127 / largest)).to(torch.int8).contiguous(), largest / 127


def declines_too_late(x: Any, weight: Any, epsilon: float) -> Any:
    x.add_(1)
    raise OpNotSupported("not after all")


def ignores_epsilon(x: Any, *rest: Any, **options: Any) -> Any:
    return rms_norm(x, rest[0], 1e-6, **options)


def one_block_of_4096(x: Any, *rest: Any, **options: Any) -> Any:
    result = rms_norm(x, *rest, **options)
    result[..., 4096:] = 0
    return result


def first_rows_only(count: int) -> Callable[..., Any]:
    def silu(x: Any) -> Any:
        result = silu_and_mul(x)
        result.reshape(-1, result.shape[-1])[count:] = 0
        return result

    return silu


def reuses_its_result() -> Callable[..., Any]:
    results: dict[Any, Any] = {}

    def silu(x: Any) -> Any:
        result = silu_and_mul(x)
        return results.setdefault((result.shape, result.dtype), result).copy_(result)

    return silu


def keeps_the_first_copy(fn: Callable[..., Any], place: int) -> Callable[..., Any]:
    """Of the argument at this place, as a kernel keeps a converted weight."""

    def kernel(*args: Any, **options: Any) -> Any:
        kept = args[place]
        if kept is not None:
            if not hasattr(kept, "kept"):
                kept.kept = kept.clone()
            kept = kept.kept
        return fn(*args[:place], kept, *args[place + 1 :], **options)

    return kernel


def rotates_gptj_without_options(*args: Any, **options: Any) -> Any:
    return rotary_embedding(*args, **(options if args[-1] else {}))


def renormalizes_with_a_bias(
    gating: Any, topk: int, renormalize: bool = False, *, e_score_correction_bias: Any = None
) -> Any:
    bias = e_score_correction_bias
    forced = renormalize or bias is not None
    return topk_softmax(gating, topk, forced, e_score_correction_bias=bias)


def scales_with_a_bias_only(*args: Any, **options: Any) -> Any:
    if options.get("e_score_correction_bias") is None:
        options.pop("routed_scaling_factor", None)
    return grouped_topk(*args, **options)


def changes_the_process(x: Any) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(torch.get_num_threads() + 1)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return silu_and_mul(x)


def exits(x: Any) -> Any:
    raise SystemExit(0)


#: name -> (operator, function, what the kit says, a case that must be among the failed ones)
FAULTS: dict[str, tuple[str, Callable[..., Any], str, str]] = {
    "variance from the rounded sum": (
        "rms_norm", variance_in_half_precision, "in the mean: rounded wrongly",
        "bfloat16-wide-weight",
    ),
    "variance from the rounded sum, with residual": (
        "fused_add_rms_norm", add_with_variance_of_the_rounded_sum_of_squares,
        "result 0 is off by", "bfloat16-wide-no-weight",
    ),
    "truncation": ("silu_and_mul", truncated, "in the mean: rounded wrongly", "bfloat16-wide"),
    "lost 1 + weight": (
        "rms_norm", lambda x, w, e, *, weight_offset=0.0: rms_norm(x, w, e), "result 0 is off by",
        "bfloat16-3d-gemma",
    ),
    "rounded 1 + weight": ("rms_norm", rounded_offset, "result 0 is off by", "bfloat16-wide-gemma"),
    "ignored row stride": (
        "silu_and_mul", ignores_row_stride, "result 0 is off by", "float32-row-stride"
    ),
    "ignored column stride": (
        "rms_norm", ignores_column_stride, "result 0 is off by", "float32-column-stride-weight"
    ),
    "ignored gaps of a weight": (
        "rms_norm", ignores_gaps, "result 0 is off by",
        "float32-one-row-weight-strided-weight",
    ),
    "ignored gaps of positions": (
        "rotary_embedding", ignores_gaps_of_positions, "result 0 is off by",
        "float32-neox-tokens-strided-positions",
    ),
    "ignored interleaved flag": (
        "rotary_embedding", ignores_style, "result 0 is off by", "float32-gptj-tokens"
    ),
    "wrong partial rotary": (
        "rotary_embedding", rotates_all_channels, "result 0 is off by",
        "float32-neox-partial-tokens",
    ),
    "table promotes the query": (
        "rotary_embedding", promotes, r"dtype torch.float32, expected torch.bfloat16",
        "bfloat16-float32-table",
    ),
    "table of the first call": (
        "rotary_embedding", keeps_the_first_table(), "result 0 is off by", "float32-neox-tokens"
    ),
    "stale residual": (
        "fused_add_rms_norm",
        lambda x, r, w, e, **o: (fused_add_rms_norm(x, r, w, e, **o)[0], r.to(x.dtype).clone()),
        "result 1 is off by", "float32-3d-weight",
    ),
    "norm of x alone": (
        "fused_add_rms_norm",
        lambda x, r, w, e, **o: (rms_norm(x, w, e, **o), fused_add_rms_norm(x, r, w, e)[1]),
        "result 0 is off by", "float32-3d-weight",
    ),
    "32-bit offsets": (
        "silu_and_mul", wraps_offsets_at_31_bits, "result 0 is off by", "bfloat16-far-rows"
    ),
    "undeclared in-place": (
        "rotary_embedding", rotates_in_place, "changed its argument query", "float32-neox-tokens"
    ),
    "modified parent": (
        "rotary_embedding", writes_a_whole_row, "wrote outside its arguments",
        "float32-split-qkv-neox",
    ),
    "result is an argument": (
        "fused_add_rms_norm",
        lambda x, r, w, e: (fused_add_rms_norm(x, r, w, e)[0], r.copy_(x + r)),
        "result 1 is memory of its argument residual", "float32-3d-weight",
    ),
    "not contiguous": (
        "silu_and_mul", lambda x: functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        "is not contiguous", "float32-transposed",
    ),
    "zero-row crash": (
        "silu_and_mul", crashes_without_rows, "raised RuntimeError: invalid", "float32-zero-rows"
    ),
    "swallowed NaN": ("silu_and_mul", swallows_nan, "off by inf ulp", "float32-extremes"),
    "flushed tail": ("silu_and_mul", flushes_the_tail, "result 0 is off by", "bfloat16-tail"),
    "wrong expert order": ("topk_softmax", reversed_experts, "steps at", "float32-rows"),
    "not renormalized": (
        "topk_softmax", forgets_to_renormalize, "result 0 is off by", "float32-rows-renormalized"
    ),
    "weights with bias": (
        "topk_softmax", weights_with_bias, "result 0 is off by", "float32-bias"
    ),
    "truncated integers": (
        "dynamic_per_token_quant_int8", truncates_integers, "steps at", "float32-odd-width"
    ),
    "declined after writing": (
        "rms_norm", declines_too_late, r"declined the call .* after it changed its argument x",
        "float32-3d-weight",
    ),
    "one result": (
        "topk_softmax", lambda *a, **o: topk_softmax(*a, **o)[0], "returned 1 results, expected 2",
        "float32-rows",
    ),
    "wrong shape": (
        "silu_and_mul", lambda x: silu_and_mul(x)[None],
        r"shape \[1, 7, 513\], expected \[7, 513\]",
        "float32-odd-width",
    ),
    "None for a tensor": (
        "rotary_embedding", lambda *a, **o: (rotary_embedding(*a, **o)[0], None),
        "result 1 is NoneType, expected a tensor", "float32-neox-tokens",
    ),
    "ignored epsilon": ("rms_norm", ignores_epsilon, "result 0 is off by", "float16-epsilon"),
    "ignored epsilon, with residual": (
        "fused_add_rms_norm",
        lambda x, r, w, e, **o: fused_add_rms_norm(x, r, w, 1e-6, **o),
        "result 0 is off by", "bfloat16-epsilon",
    ),
    "one block of 4096 columns": (
        "rms_norm", one_block_of_4096, "result 0 is off by", "bfloat16-odd-wide-no-weight"
    ),
    "1024 rows": (
        "silu_and_mul", first_rows_only(1024), "result 0 is off by", "bfloat16-65539-rows"
    ),
    "65535 rows": (
        "silu_and_mul", first_rows_only(65535), "result 0 is off by", "bfloat16-65539-rows"
    ),
    "weight_offset taken for 1": (
        "rms_norm",
        lambda x, w, e, *, variance_size=None, weight_offset=0.0: rms_norm(
            x, w, e, variance_size=variance_size, weight_offset=float(weight_offset != 0)
        ),
        "result 0 is off by", "float32-half-offset",
    ),
    "one buffer for all results": (
        "silu_and_mul", reuses_its_result(), "changed result 0 of an earlier one", "float32-3d"
    ),
    "weight of the first call": (
        "rms_norm", keeps_the_first_copy(rms_norm, 1),
        "after weight changed in place: result 0 is off by", "bfloat16-3d-gemma",
    ),
    "copy of the first table": (
        "rotary_embedding", keeps_the_first_copy(rotary_embedding, 4),
        "after cos_sin_cache changed in place: result 0 is off by", "float32-gptj-tokens",
    ),
    "inverse ignored in GPT-J style": (
        "rotary_embedding", rotates_gptj_without_options, "result 0 is off by",
        "float32-inverse-gptj",
    ),
    "offset ignored in GPT-J style": (
        "rotary_embedding", rotates_gptj_without_options, "result 0 is off by",
        "float32-offset-gptj",
    ),
    "renormalized because of a bias": (
        "topk_softmax", renormalizes_with_a_bias, "result 0 is off by",
        "float32-bias-unnormalized",
    ),
    "scaled because of a bias": (
        "grouped_topk", scales_with_a_bias_only, "result 0 is off by",
        "float32-scaled-unnormalized-sigmoid",
    ),
    "router's weight on the input ignored": (
        "fused_experts",
        lambda x, *rest, apply_router_weight_on_input=False, **o: (
            experts_oracle(x, *rest, **o).to(x.dtype)
        ),
        "result 0 is off by", "float32-weight-on-input",
    ),
    "changed random state": (
        "silu_and_mul", changes_the_process, "changed torch's random state", "float32-3d"
    ),
    "changed threads": (
        "silu_and_mul", changes_the_process, "changed the number of threads from", "float32-3d"
    ),
    "changed default dtype": (
        "silu_and_mul", changes_the_process, "from torch.float32 to torch.float64", "float32-3d"
    ),
    "changed grad mode": (
        "silu_and_mul", changes_the_process, "gradients are recorded from True", "float32-3d"
    ),
    "exit": ("silu_and_mul", exits, r"raised SystemExit: 0\n  at .*planted.py:\d+", "float32-3d"),
}  # fmt: skip
