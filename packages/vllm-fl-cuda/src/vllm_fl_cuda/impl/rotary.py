"""Rotary position embedding. The kernel rotates query and key in place."""

from __future__ import annotations

import torch

from vllm_fl_cuda.schema import compiled_operator, takes_none
from vllm_fl_dispatch import OpNotSupported, Query, Verdict
from vllm_fl_dispatch.handles import Call


def supports(query: Query) -> Verdict:
    """The table must have the query's dtype: the kernel does not convert it."""
    cache = query.get("cache_dtype")
    if cache is not None and query.dtype is not None and cache != query.dtype:
        return Verdict.no(f"cos_sin_cache is {cache}, query is {query.dtype}")
    return Verdict.yes()


def make_rotary_embedding() -> Call:
    """`rotary_embedding` through ``_C::rotary_embedding``, in place."""
    op = compiled_operator("_C::rotary_embedding")
    keyless = takes_none(op, 2)
    has_options = len(op._schema.arguments) >= 8

    def rotary_embedding(
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
        # The kernel divides by the size of the key.
        rotated = key if key is not None and key.numel() else None
        if rotated is None and not keyless:
            raise OpNotSupported("the compiled operator of this vLLM needs a key")
        options: tuple[int | bool, ...] = ()
        if rope_dim_offset or inverse:
            if not has_options:
                raise OpNotSupported("the compiled operator of this vLLM has no such options")
            options = (rope_dim_offset, inverse)
        if not query.numel():
            return query, key
        # Two dimensions are what every release of the operator takes alike.
        flat_query = _flat(query)
        flat_key = None if rotated is None else _flat(rotated)
        # The kernel takes the elements of both for adjacent.
        where = (positions.flatten().contiguous(), flat_query, flat_key)
        op(*where, head_size, cos_sin_cache.contiguous(), is_neox_style, *options)
        if key is not None and flat_key is not None and flat_key is not key:
            key = flat_key.view(key.shape)
        return (query if flat_query is query else flat_query.view(query.shape)), key

    return rotary_embedding


def _flat(x: torch.Tensor) -> torch.Tensor:
    """[tokens, heads * head_size]; the kernel takes the channels of a token for adjacent."""
    flat = x.flatten(1)
    return flat if flat.stride(1) == 1 else flat.contiguous()
