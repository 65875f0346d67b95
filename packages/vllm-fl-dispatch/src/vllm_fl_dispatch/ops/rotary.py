"""Rotary position embedding.

Source of the semantics: vllm/model_executor/layers/rotary_embedding/base.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import DTYPES, Case, Maker, rows
from vllm_fl_dispatch.types import OpSpec, Query

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
        (query, key), contiguous, of the shape and dtype of the arguments; key None stays None.
        Channels outside the rotated ones are copied bit for bit.
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


def _oracle(
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
    rows = cos_sin_cache.to(query.dtype).double()[positions.flatten()]
    half = rows.shape[-1] // 2
    cos, sin = rows[:, None, :half], rows[:, None, half:]
    if inverse:
        sin = -sin

    def rotate(x: torch.Tensor) -> torch.Tensor:
        count = x.shape[1:].numel() // head_size
        heads = x.double().reshape(rows.shape[0], count, head_size).clone()
        part = heads[..., rope_dim_offset : rope_dim_offset + 2 * half]
        if is_neox_style:
            first, second = part[..., :half], part[..., half:]
        else:
            first, second = part[..., 0::2], part[..., 1::2]
        a, b = first * cos - second * sin, second * cos + first * sin
        first.copy_(a)
        second.copy_(b)
        return heads.reshape(x.shape)

    return rotate(query), None if key is None else rotate(key)


def _cache(m: Maker, rotary_dim: int, dtype: str, base: float = 10000.0) -> torch.Tensor:
    import torch

    powers = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    angles = torch.arange(4096, dtype=torch.float64)[:, None] / base**powers
    cache = torch.cat([angles.cos(), angles.sin()], -1)
    made: torch.Tensor = cache.to(getattr(torch, dtype)).to(m.device)
    return made


#: (name, query heads, key heads (None: no key), head size, rotary dim, neox, 3-D?)
_SHAPES = (
    ("neox", 4, 2, 64, 64, True, False),
    ("gptj", 4, 2, 64, 64, False, False),
    ("neox-partial", 4, 2, 80, 32, True, False),
    ("gptj-partial", 4, 2, 64, 32, False, False),
    ("neox-3d", 4, 1, 128, 128, True, True),
    ("no-key", 4, None, 64, 64, True, False),
)


def _cases() -> Iterable[Case]:
    for dtype in DTYPES:
        for name, heads, kv_heads, size, rotary, neox, three_d in _SHAPES:
            for tokens, positions in (("tokens", (0, 1, 7, 1000, 4095)), ("zero", ())):
                yield Case(
                    f"{dtype}-{name}-{tokens}",
                    _maker(dtype, positions, heads, kv_heads, size, rotary, neox, three_d),
                )
        yield Case(f"{dtype}-strided", _strided(dtype))
        yield Case(
            f"{dtype}-offset-inverse",
            _maker(dtype, (0, 3, 4000), 2, 2, 96, 32, True, False),
            {"rope_dim_offset": 64, "inverse": True},
        )


def _maker(
    dtype: str,
    positions: tuple[int, ...],
    heads: int,
    kv_heads: int | None,
    size: int,
    rotary: int,
    neox: bool,
    three_d: bool,
) -> Any:
    def make(m: Maker) -> tuple[Any, ...]:
        def tensor(count: int) -> torch.Tensor:
            shape = (len(positions), count, size) if three_d else (len(positions), count * size)
            return m.normal(*shape, dtype=dtype)

        query = tensor(heads)
        key = None if kv_heads is None else tensor(kv_heads)
        return (m.positions(*positions), query, key, size, _cache(m, rotary, dtype), neox)

    return make


def _strided(dtype: str) -> Any:
    """Query and key as a model has them: two slices of one projection."""

    def make(m: Maker) -> tuple[Any, ...]:
        qkv = m.normal(6, (4 + 2 + 2) * 64, dtype=dtype)
        query, key = qkv[:, : 4 * 64], qkv[:, 4 * 64 : 6 * 64]
        return (m.positions(5, 4, 3, 2, 1, 0), query, key, 64, _cache(m, 64, dtype), True)

    return make


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
        data=("query", "key"),
        donates=("query", "key"),
        pack=_pack,
        unpack=_unpack,
        oracle=_oracle,
        cases=_cases,
        # vLLM's native layers compute in the query's dtype: three roundings.
        max_ulp={"float32": 3.0, "float16": 3.0, "bfloat16": 3.0},
        ulp_floor=1.0,
    ),
)
