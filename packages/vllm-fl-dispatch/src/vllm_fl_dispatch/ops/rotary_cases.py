"""Oracle and conformance cases of rotary position embedding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vllm_fl_dispatch.ops.cases import DTYPES, HALF, MANY_ROWS, Case, Maker

if TYPE_CHECKING:
    import torch


def rotary_oracle(
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
    """`rotary_embedding` in float64, from the table rounded to query's dtype."""
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


def table(
    m: Maker, rotary_dim: int, dtype: str, *, length: int = 512, base: float = 1e4
) -> torch.Tensor:
    """A table of cosines and sines, [length, rotary_dim]; another seed has other angles."""
    import torch

    powers = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    positions = torch.arange(length, dtype=torch.float64)[:, None] * (1 + 0.1 * m.seed)
    angles = positions / base**powers
    return m.to(torch.cat([angles.cos(), angles.sin()], -1), dtype)


@dataclass(frozen=True)
class Shape:
    """One shape of query and key."""

    heads: int = 4
    kv_heads: int | None = 2
    head_size: int = 64
    rotary_dim: int = 64
    neox: bool = True
    three_d: bool = False


_SHAPES = {
    "neox": Shape(),
    "gptj": Shape(neox=False),
    "neox-partial": Shape(head_size=80, rotary_dim=32),
    "gptj-partial": Shape(rotary_dim=32, neox=False),
    "neox-partial-256": Shape(2, 1, 256, 64),
    "gptj-96": Shape(3, 1, 96, 96, neox=False),
    "neox-3d": Shape(4, 1, 128, 128, three_d=True),
    "gptj-3d": Shape(4, 2, 64, 64, neox=False, three_d=True),
    "neox-partial-3d": Shape(4, 2, 128, 64, three_d=True),
    "no-key": Shape(kv_heads=None),
    "no-key-256": Shape(16, None, 256, 256),
    "zero-key-heads": Shape(kv_heads=0),
    "many-heads": Shape(66, 2, 128, 128),
}
#: name -> (shape, options), each in both styles
_OPTIONS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "offset": (Shape(2, 2, 96, 32), {"rope_dim_offset": 64}),
    "inverse": (Shape(), {"inverse": True}),
    "offset-inverse": (
        Shape(2, None, 96, 32, three_d=True),
        {"rope_dim_offset": 64, "inverse": True},
    ),
}
_POSITIONS = {"tokens": (0, 1, 7, 100, 511), "zero-rows": ()}


def rotary_cases() -> Iterable[Case]:
    """The cases of `rotary_embedding`."""
    for dtype in DTYPES:
        for name, shape in _SHAPES.items():
            for tokens, positions in _POSITIONS.items():
                yield Case(f"{dtype}-{name}-{tokens}", _maker(dtype, positions, shape), dtype=dtype)
        for style in ("neox", "gptj"):
            yield Case(f"{dtype}-split-qkv-{style}", _split(dtype, _SHAPES[style]), dtype=dtype)
        yield Case(f"{dtype}-long-positions", _long(dtype), dtype=dtype)
        for name, (shape, given) in _OPTIONS.items():
            for neox, ending in ((True, ""), (False, "-gptj")):
                make = _maker(dtype, (0, 3, 500), replace(shape, neox=neox))
                yield Case(f"{dtype}-{name}{ending}", make, _these(given), dtype)
    for dtype in HALF:
        # The table as a layer makes it before anybody rounds it.
        make = _maker(dtype, (0, 3, 500), Shape(), table_dtype="float32")
        yield Case(f"{dtype}-float32-table", make, dtype=dtype)
    make = _maker("bfloat16", _many_positions(), Shape(1, None, 32, 32))
    yield Case(f"bfloat16-{MANY_ROWS}-rows", make, dtype="bfloat16", rows=MANY_ROWS)


def _these(options: dict[str, Any]) -> Any:
    return lambda m: options


def _many_positions() -> tuple[int, ...]:
    return tuple(row % 512 for row in range(MANY_ROWS))


def _maker(
    dtype: str, positions: tuple[int, ...], shape: Shape, *, table_dtype: str | None = None
) -> Any:
    def make(m: Maker) -> tuple[Any, ...]:
        def heads(count: int) -> torch.Tensor:
            flat = m.normal(len(positions), count * shape.head_size, dtype=dtype)
            return flat.view(len(positions), count, shape.head_size) if shape.three_d else flat

        query = heads(shape.heads)
        key = None if shape.kv_heads is None else heads(shape.kv_heads)
        cache = table(m, shape.rotary_dim, table_dtype or dtype)
        return (m.integers(*positions), query, key, shape.head_size, cache, shape.neox)

    return make


def _split(dtype: str, shape: Shape) -> Any:
    """Query and key as a model has them: two slices of one projection."""

    def make(m: Maker) -> tuple[Any, ...]:
        assert shape.kv_heads is not None
        q_size, kv_size = (count * shape.head_size for count in (shape.heads, shape.kv_heads))
        qkv = m.normal(6, q_size + 2 * kv_size, dtype=dtype)
        query, key = qkv[:, :q_size], qkv[:, q_size : q_size + kv_size]
        cache = table(m, shape.rotary_dim, dtype)
        return (m.integers(5, 4, 3, 2, 1, 0), query, key, shape.head_size, cache, shape.neox)

    return make


def _long(dtype: str) -> Any:
    """Positions of a long context, with the base of such models."""

    def make(m: Maker) -> tuple[Any, ...]:
        cache = table(m, 32, dtype, length=2**17, base=1e6)
        query, key = m.normal(3, 2 * 32, dtype=dtype), m.normal(3, 32, dtype=dtype)
        return (m.integers(131071, 65536, 0), query, key, 32, cache, True)

    return make
