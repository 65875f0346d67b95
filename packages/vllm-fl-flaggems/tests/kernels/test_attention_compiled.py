"""The kernels of attention compile for every head size, and can be launched again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

compiled = pytest.importorskip("compiled", reason="needs Triton: nox -s flaggems")
compiled.load()

from attention_cases import batch  # noqa: E402

from vllm_fl_flaggems.impl.attention import Attention  # noqa: E402
from vllm_fl_flaggems.impl.mla import RANK, ROTARY, LatentAttention  # noqa: E402

pytestmark = compiled.OLD_TRITON_IS_FINE


def launched_twice(call: Any, kernel: str) -> bool:
    before = compiled.LAUNCHES.count(kernel)
    call()
    call()
    return bool(compiled.LAUNCHES.count(kernel) == before + 2)


#: Each of the four shapes of a program, by the number of rows that a processor gets.
@pytest.mark.parametrize("new", [1, 6, 12, 64, 256])
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
def test_attention(new: int, size: int) -> None:
    given = batch([new, new], [new, new + 30], heads=(8, 2), size=size, dtype=torch.bfloat16)
    layer = Attention(0.1)
    assert launched_twice(lambda: given.attend(layer), "flash_varlen_fwd_kernel")


@pytest.mark.parametrize(
    "options",
    [{"window": 8}, {"softcap": 30.0}, {"alibi_slopes": torch.ones(4)}],
    ids=lambda options: next(iter(options)),
)
def test_variants_of_attention(options: dict[str, Any]) -> None:
    given = batch([1, 33], [17, 33])
    layer = Attention(0.125, **options)
    assert launched_twice(lambda: given.attend(layer), "flash_varlen_fwd_kernel")


def test_the_cache_is_written() -> None:
    assert launched_twice(lambda: batch([1], [20]), "_store")


@pytest.mark.parametrize("heads", [16, 128])
def test_latent_attention(heads: int) -> None:
    given = batch([1, 1], [5, 70], heads=(heads, 1), size=RANK + ROTARY)
    cache = given.cache[..., : RANK + ROTARY].squeeze(1).contiguous()
    layer = LatentAttention(0.03)
    assert launched_twice(
        lambda: layer(given.query, cache, given.step.block_table, given.step.lengths),
        "flash_mla_attn_kernel",
    )
