"""Rotary position embedding.

Through npu_rotary_mul. The older `_npu_rotary_embedding` keeps the first cache that a process ever
passed to it and ignores every later one: wrong for a model with two kinds of layers, for a draft
model and after a reload. `npu_apply_rotary_pos_emb` overwrites its arguments without saying so in
its schema, and takes heads of 64 and 128 only.
"""

from __future__ import annotations

import torch

from vllm_fl_ascend.library import operator
from vllm_fl_ascend.limits import FLOAT, at_most, dtype_in, within
from vllm_fl_dispatch import Query, Verdict
from vllm_fl_dispatch.handles import Call

#: The kernel rotates fewer channels than 896.
MAX_ROTARY_DIM = 894


def supports_rotary_embedding(query: Query) -> Verdict:
    """Half precision and float32, and the kernel's width."""
    return within(dtype_in(query, FLOAT), at_most(query, "rotary_dim", MAX_ROTARY_DIM))


def make_rotary_embedding() -> Call:
    """`rotary_embedding` through npu_rotary_mul; overwrites nothing."""
    rotary_mul = operator("npu::npu_rotary_mul")

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
        tokens, rotary_dim = positions.numel(), cos_sin_cache.shape[-1]
        rows = cos_sin_cache.index_select(0, positions.flatten()).to(query.dtype)
        cos, sin = rows.view(1, tokens, 1, rotary_dim).chunk(2, -1)
        if inverse:
            sin = -sin
        # The kernel wants a factor for each channel, not for each pair.
        if is_neox_style:
            mode, r1, r2 = "half", torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        else:
            mode = "interleave"
            r1, r2 = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        end = rope_dim_offset + rotary_dim

        def rotated(x: torch.Tensor) -> torch.Tensor:
            if not x.numel():
                return x.new_empty(x.shape)
            heads = x.reshape(1, tokens, -1, head_size)
            part = heads[..., rope_dim_offset:end].contiguous()
            turned: torch.Tensor = rotary_mul(input=part, r1=r1, r2=r2, rotary_mode=mode)
            if rotary_dim < head_size:
                before, after = heads[..., :rope_dim_offset], heads[..., end:]
                turned = torch.cat((before, turned, after), -1)
            return turned.view(x.shape)

        return rotated(query), None if key is None else rotated(key)

    return rotary_embedding
