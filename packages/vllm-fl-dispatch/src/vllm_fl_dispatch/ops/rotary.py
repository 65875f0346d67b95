"""Rotary position embedding.

Source of the semantics: vllm/model_executor/layers/rotary_embedding/base.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.op_spec import OpSpec
from vllm_fl_dispatch.ops import rotary_cases as cases
from vllm_fl_dispatch.ops.cases import rows
from vllm_fl_dispatch.types import Query

if TYPE_CHECKING:
    import torch


def rotary_embedding(  # type: ignore[empty-body]  # a contract
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
    *,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Rotate `rotary_dim` channels of each head of query and key by the angle of its position.

    Args:
        positions: [tokens] (any shape with that many elements), int64.
        query: [tokens, heads * head_size] or [tokens, heads, head_size]; float32, float16 or
            bfloat16; rows may be strided. In eager mode its memory may be overwritten.
        key: like query, possibly with fewer heads, or None.
        head_size: channels of a head.
        cos_sin_cache: [positions, rotary_dim], cosines then sines; never changed. Of query's
            dtype; another dtype is rounded to it first.
        is_neox_style: True pairs channel i with i + rotary_dim / 2; False pairs 2i with 2i + 1.
        rope_dim_offset: index of the first rotated channel of a head.
        inverse: rotate by the negative angle.

    Returns:
        (query, key) of the shape and dtype of the arguments; key None stays None. Contiguous, or
        the memory of the arguments where that was overwritten. Channels outside the rotated ones
        are copied bit for bit.
    """


def _fake(
    positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor | None, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    return query.new_empty(query.shape), None if key is None else key.new_empty(key.shape)


def _pack(result: tuple[torch.Tensor, torch.Tensor | None]) -> list[torch.Tensor]:
    return [tensor for tensor in result if tensor is not None]


def _unpack(result: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor | None]:
    return result[0], result[1] if len(result) > 1 else None


def _facts(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor | None,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
    *,
    rope_dim_offset: int = 0,
    inverse: bool = False,
) -> tuple[Any, ...]:
    return (
        query.dtype,
        query.device,
        head_size,
        cos_sin_cache.shape[-1],
        cos_sin_cache.dtype,
        is_neox_style,
        key is not None,
        rope_dim_offset,
        inverse,
    )


def _example(query: Query) -> tuple[tuple[Any, ...], dict[str, Any]]:
    import torch

    size = query.get("head_size") or 64
    rotary_dim = query.get("rotary_dim") or size
    q = rows(query, 2 * size)
    key = rows(query, size) if query.get("has_key", True) else None
    cache = rows(query, rotary_dim, count=4).to(query.get("cache_dtype") or q.dtype)
    positions = torch.zeros(2, dtype=torch.int64, device=q.device)
    neox = query.get("is_neox_style", True)
    options = {
        name: query.get(name)
        for name, default in (("rope_dim_offset", 0), ("inverse", False))
        if query.get(name, default) != default
    }
    return (positions, q, key, size, cache, neox), options


SPECS = (
    OpSpec(
        "rotary_embedding",
        rotary_embedding,
        schema=(
            "(Tensor positions, Tensor query, Tensor? key, int head_size, Tensor cos_sin_cache, "
            "bool is_neox_style, *, int rope_dim_offset=0, bool inverse=False) -> Tensor[]"
        ),
        fake=_fake,
        facts=_facts,
        fact_names=(
            "dtype",
            "device",
            "head_size",
            "rotary_dim",
            "cache_dtype",
            "is_neox_style",
            "has_key",
            "rope_dim_offset",
            "inverse",
        ),
        example=_example,
        shapes={"query": "tokens *", "key": "tokens *", "cos_sin_cache": "positions 2*d"},
        data=("query", "key"),
        rows=("positions", "query", "key"),
        donates=("query", "key"),
        pack=_pack,
        unpack=_unpack,
        oracle=cases.rotary_oracle,
        cases=cases.rotary_cases,
        # vLLM's native layers compute in the query's dtype: three roundings.
        max_ulp={"float32": 3.0, "float16": 3.0, "bfloat16": 3.0},
        ulp_floor=1.0,
    ),
)
