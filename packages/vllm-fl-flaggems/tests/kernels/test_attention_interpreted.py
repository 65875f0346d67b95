"""Attention, latent attention and the writing of the cache, through the interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

interpreted = pytest.importorskip("interpreted", reason="needs Triton: nox -s flaggems")
interpreted.load()

from attention_cases import Batch, batch, expected  # noqa: E402

from vllm_fl_dispatch import OpNotSupported  # noqa: E402
from vllm_fl_flaggems.impl.attention import Attention, views  # noqa: E402
from vllm_fl_flaggems.impl.mla import RANK, ROTARY, LatentAttention  # noqa: E402
from vllm_fl_flaggems.kernels import kv_cache  # noqa: E402

pytestmark = interpreted.NUMPY_IS_SILENT

#: (new tokens of each request, their lengths)
BATCHES = {
    "decode": ([1, 1, 1], [1, 17, 40]),
    "prefill": ([16, 33], [16, 33]),
    "mixed": ([1, 5, 17], [30, 5, 50]),
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 8},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
}


@pytest.mark.parametrize("size", [64, 80])
@pytest.mark.parametrize("requests", BATCHES)
@pytest.mark.parametrize("layer", LAYERS)
def test_attention_is_that_of_the_definition(size: int, requests: str, layer: str) -> None:
    given = batch(*BATCHES[requests], size=size)
    ours = Attention(size**-0.5, **LAYERS[layer])
    torch.testing.assert_close(
        given.attend(ours).double(), expected(given, ours), atol=2e-3, rtol=2e-3
    )


def test_every_head_may_have_keys_of_its_own() -> None:
    given = batch([1, 7], [20, 7], heads=(4, 4))
    ours = Attention(0.125)
    torch.testing.assert_close(
        given.attend(ours).double(), expected(given, ours), atol=2e-3, rtol=2e-3
    )


def test_padding_behind_single_tokens_changes_nothing() -> None:
    given = batch([1, 1], [9, 20])
    ours = Attention(0.125)
    padded = torch.cat([given.query, torch.randn_like(given.query)])
    output = torch.zeros_like(padded)
    ours(padded, *views(given.cache, 64), given.step, output)
    torch.testing.assert_close(output[:2].double(), expected(given, ours), atol=2e-3, rtol=2e-3)


def test_a_cache_with_the_heads_before_the_tokens_is_refused() -> None:
    cache = torch.zeros(4, 2, 16, 128, dtype=torch.float16)
    with pytest.raises(OpNotSupported, match="reads the layout NHD only"):
        views(cache, 64)


def test_a_cache_beyond_32_bits_is_refused() -> None:
    cache = torch.empty(2**19, 16, 2, 128, dtype=torch.float16, device="meta").transpose(1, 2)
    with pytest.raises(OpNotSupported, match="num-gpu-blocks-override 524287"):
        views(cache, 64)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3)], ids=["HND", "NHD"])
@pytest.mark.parametrize("sizes", [(64, 64), (80, 48)])
def test_the_cache_is_written_where_the_slots_say(
    order: tuple[int, ...], sizes: tuple[int, int]
) -> None:
    shape = (5, 3, 4, sum(sizes))
    memory = torch.zeros([shape[axis] for axis in order], dtype=torch.float16)
    cache = memory.permute(order)
    assert cache.shape == shape
    rows = torch.randn(6, 3, 2 * sum(sizes)).half()
    key, value = rows[..., : sizes[0]], rows[..., sizes[0] : sum(sizes)]
    slots = torch.tensor([0, 7, -1, 19, 4])  # fewer than tokens, one of them padding
    kv_cache.write(*cache.transpose(1, 2).split(sizes, dim=-1), key, value, slots)
    truth = torch.zeros(shape, dtype=torch.float16)
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            truth[slot // 4, :, slot % 4] = torch.cat([key, value], dim=-1)[token]
    assert torch.equal(cache, truth)


def test_latent_attention_takes_the_scale_of_the_model() -> None:
    given: Batch = batch([1, 1], [5, 70], heads=(16, 1), size=RANK + ROTARY, block=16)
    cache = given.cache[..., : RANK + ROTARY].squeeze(1).contiguous()
    layer = LatentAttention(0.03)
    found = layer(given.query, cache, given.step.block_table, given.step.lengths)
    given.values = [key[..., :RANK] for key in given.keys]
    truth = expected(given, Attention(0.03))
    torch.testing.assert_close(found.double(), truth, atol=2e-3, rtol=2e-3)
