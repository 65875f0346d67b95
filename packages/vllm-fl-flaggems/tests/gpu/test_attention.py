"""Attention on a device against scaled_dot_product_attention in float32, eagerly and in graphs.

`-m "gpu and smoke"` runs a selection for where time is short: Triton compiles a kernel for each
dtype, head size and layer. Of the combinations those are taken in which any two values meet.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from pairs import pairwise
from torch.nn.functional import scaled_dot_product_attention

from vllm_fl_flaggems.impl.limits import INT32_MAX

# Warnings of torch and Triton on a device are not our subject.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

LENGTHS = [1, 16, 17, 129, 1024]
HEADS = (32, 8)
#: name -> new tokens of each request of LENGTHS
PHASES = {
    "prefill": LENGTHS,
    "decode": [1] * len(LENGTHS),
    "chunked": [1, 5, 17, 64, 300],
}
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 100},
    "softcap": {"softcap": 30.0},
}
#: dtype -> what one element may be off: rounding of the products' operands and of the result
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
AXES = (tuple(TOLERANCE), (64, 80, 96, 128, 256), tuple(PHASES), tuple(LAYERS))


def combinations() -> list[Any]:
    """All of them, those of the selection marked."""
    chosen = pairwise(*AXES)
    return [
        pytest.param(
            *each, id="-".join(map(str, each)), marks=[pytest.mark.smoke] * (each in chosen)
        )
        for each in itertools.product(*AXES)
    ]


def truth(given: Any, layer: Any) -> torch.Tensor:
    """Request by request; the soft cap, which torch's function has not, by the definition."""
    from attention_cases import expected

    if layer.softcap:
        return expected(given, layer, torch.float32)
    rows = []
    starts = given.step.starts.tolist()
    for request, (key, value) in enumerate(zip(given.keys, given.values, strict=True)):
        query = given.query[starts[request] : starts[request + 1]].float().transpose(0, 1)
        key, value = key.float().transpose(0, 1), value.float().transpose(0, 1)
        length, new = key.shape[1], query.shape[1]
        at = torch.arange(length - new, length, device=key.device)[:, None]
        distance = at - torch.arange(length, device=key.device)
        seen = distance >= 0
        if layer.window is not None:
            seen &= distance < layer.window
        found = scaled_dot_product_attention(
            query[None], key[None], value[None], attn_mask=seen, scale=layer.scale, enable_gqa=True
        )
        rows.append(found[0].transpose(0, 1))
    return torch.cat(rows)


@pytest.fixture(autouse=True)
def exact_products(device: str) -> Any:
    """The truth in float32 proper, not TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("dtype", "size", "phase", "layer"), combinations())
def test_attention(dtype: torch.dtype, size: int, phase: str, layer: str) -> None:
    from attention_cases import batch

    from vllm_fl_flaggems.impl.attention import Attention

    given = batch(PHASES[phase], LENGTHS, heads=HEADS, size=size, dtype=dtype, device="cuda")
    ours = Attention(size**-0.5, **LAYERS[layer])
    for _ in range(2):  # the second call goes through flag-gems' own launcher
        found = given.attend(ours).float()
        torch.testing.assert_close(
            found, truth(given, ours), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
        )


def test_alibi() -> None:
    from attention_cases import batch, expected

    from vllm_fl_flaggems.impl.attention import Attention

    slopes = 2.0 ** -torch.arange(1, HEADS[0] + 1, dtype=torch.float32, device="cuda").div(4)
    for new in PHASES.values():
        given = batch(new, LENGTHS, heads=HEADS, size=64, dtype=torch.bfloat16, device="cuda")
        ours = Attention(0.125, alibi_slopes=slopes)
        want = expected(given, ours, torch.float32)
        torch.testing.assert_close(given.attend(ours).float(), want, atol=1.6e-2, rtol=1.6e-2)


@pytest.mark.smoke
@pytest.mark.parametrize("window", [None, 100])
def test_a_captured_decode_follows_lengths_and_blocks(window: int | None) -> None:
    """What vLLM does: capture once with length 1, then fill in what each step has."""
    from attention_cases import Batch, batch

    from vllm_fl_flaggems.impl.attention import Attention, Step, views

    given = batch([1] * 5, LENGTHS, heads=HEADS, size=128, dtype=torch.bfloat16, device="cuda")
    real = given.step
    step = Step(
        real.starts,
        torch.ones_like(real.lengths),
        torch.zeros_like(real.block_table),
        max_new=1,
        max_length=4096,
    )
    query, output = torch.zeros_like(given.query), torch.zeros_like(given.query)
    ours = Attention(128**-0.5, window)
    keys, values = views(given.cache, 128)
    ours(query, keys, values, step, output)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours(query, keys, values, step, output)
    query.copy_(given.query)
    step.lengths.copy_(real.lengths)
    step.block_table.copy_(real.block_table)
    graph.replay()
    torch.cuda.synchronize()
    assert isinstance(given, Batch)
    torch.testing.assert_close(output.float(), truth(given, ours), atol=1.6e-2, rtol=1.6e-2)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("heads", "scale"),
    [
        pytest.param(16, 192**-0.5, marks=pytest.mark.smoke),
        pytest.param(128, 0.1352337788608801, marks=pytest.mark.smoke),
        (16, 0.1352337788608801),
        (128, 192**-0.5),
    ],
)
def test_latent_attention_of_a_decode(dtype: torch.dtype, heads: int, scale: float) -> None:
    from attention_cases import batch, expected

    from vllm_fl_flaggems.impl.attention import Attention
    from vllm_fl_flaggems.impl.mla import RANK, ROTARY, LatentAttention

    size = RANK + ROTARY
    given = batch([1] * 5, LENGTHS, heads=(heads, 1), size=size, dtype=dtype, device="cuda")
    cache = given.cache[..., :size].squeeze(1).contiguous()
    given.values = [key[..., :RANK] for key in given.keys]
    want = expected(given, Attention(scale), torch.float32)
    layer, step = LatentAttention(scale), given.step
    found = layer(given.query, cache, step.block_table, step.lengths)
    torch.testing.assert_close(found.float(), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(given.query, cache, step.block_table, step.lengths)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, found)


def test_the_cache_is_written_beyond_32_bits() -> None:
    """Ours indexes in 64 bits, unlike the kernel that reads."""
    from vllm_fl_flaggems.kernels import kv_cache

    blocks = INT32_MAX // (16 * 8 * 256) + 2
    if torch.cuda.mem_get_info()[0] < 2 * blocks * 16 * 8 * 256 + 2**30:
        pytest.skip("too little memory")
    cache = torch.empty(blocks, 16, 8, 256, dtype=torch.bfloat16, device="cuda")
    key = torch.randn(1, 8, 128, dtype=torch.bfloat16, device="cuda")
    last = torch.tensor([blocks * 16 - 1], device="cuda")
    kv_cache.write(cache[..., :128], cache[..., 128:], key, -key, last)
    assert torch.equal(cache[-1, -1], torch.cat([key[0], -key[0]], dim=-1))


@pytest.mark.smoke
def test_latent_entries_are_written() -> None:
    from vllm_fl_flaggems.kernels import kv_cache

    cache = torch.zeros(4, 16, 1, 576, dtype=torch.bfloat16, device="cuda")
    latent = torch.randn(3, 1, 512, dtype=torch.bfloat16, device="cuda")
    rotated = torch.randn(3, 1, 64, dtype=torch.bfloat16, device="cuda")
    slots = torch.tensor([5, -1, 63], device="cuda")
    kv_cache.write(cache[..., :512], cache[..., 512:], latent, rotated, slots)
    flat = cache.view(64, 576)
    assert torch.equal(flat[5], torch.cat([latent[0, 0], rotated[0, 0]]))
    assert torch.equal(flat[63], torch.cat([latent[2, 0], rotated[2, 0]]))
    assert int(flat.any(-1).sum()) == 2
