"""The reference attention against a plain one, request by request in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from vllm_fl_reference.impl import kv_cache
from vllm_fl_reference.impl.attention import Attention
from vllm_fl_reference.impl.attention_plan import make_plan
from vllm_fl_reference.impl.mla import latent_attention

#: dtype -> (absolute, relative): a few roundings of the inputs' dtype
TOLERANCE = {
    torch.float32: (1e-4, 1e-4),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (2e-2, 1.6e-2),
}


@dataclass
class Batch:
    """Requests over a paged cache whose unused entries are NaN."""

    starts: list[int]
    lengths: list[int]
    query: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    cache: torch.Tensor
    table: torch.Tensor

    def read(self, piece: Any) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.query.shape[-1]
        found = kv_cache.read(self.cache, self.table, piece)
        return found[..., :size], found[..., size:]


def batch(
    new: list[int],
    lengths: list[int],
    *,
    heads: tuple[int, int] = (4, 2),
    size: int = 32,
    block: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Batch:
    torch.manual_seed(sum(lengths) + size)
    blocks_of = [-(-length // block) for length in lengths]
    order = torch.randperm(sum(blocks_of) + 1)
    cache = torch.full((len(order), heads[1], block, 2 * size), float("nan"), dtype=dtype)
    table = torch.zeros(len(lengths), max([*blocks_of, 1]) + 2, dtype=torch.int32)
    keys, values, used = [], [], 0
    for request, length in enumerate(lengths):
        mine = order[used : used + blocks_of[request]]
        used += blocks_of[request]
        table[request, : len(mine)] = mine.int()
        key = torch.randn(length, heads[1], size).to(dtype)
        value = torch.randn(length, heads[1], size).to(dtype)
        position = torch.arange(length)
        slots = mine[position // block] * block + position % block
        kv_cache.write(cache, key, value, slots)
        keys.append(key)
        values.append(value)
    query = torch.randn(sum(new), heads[0], size).to(dtype)
    starts = [0, *itertools.accumulate(new)]
    return Batch(starts, lengths, query, keys, values, cache, table)


def truth(given: Batch, layer: Attention, causal: bool | torch.Tensor = True) -> torch.Tensor:
    """One request after the other, in float64."""
    out = torch.zeros(*given.query.shape[:2], given.values[0].shape[-1], dtype=torch.float64)
    for request, (key, value) in enumerate(zip(given.keys, given.values, strict=True)):
        first, last = given.starts[request : request + 2]
        length, new = given.lengths[request], last - first
        if not new or not length:
            continue
        query = given.query[first:last].double().transpose(0, 1)
        group = query.shape[0] // key.shape[1]
        k = key.double().transpose(0, 1).repeat_interleave(group, 0)
        v = value.double().transpose(0, 1).repeat_interleave(group, 0)
        scores = query @ k.transpose(1, 2) * layer.scale
        if layer.softcap:
            scores = layer.softcap * torch.tanh(scores / layer.softcap)
        at = torch.arange(length - new, length)[:, None]
        to = torch.arange(length)[None]
        if layer.alibi_slopes is not None:
            scores = scores + layer.alibi_slopes.double()[:, None, None] * (to - at)
        hidden = torch.zeros(new, length, dtype=torch.bool)
        if bool(causal if isinstance(causal, bool) else causal[request]):
            hidden |= to > at
        if layer.window is not None:
            hidden |= (to - at).abs() >= layer.window
        scores = scores.masked_fill(hidden, float("-inf"))
        if layer.sinks is not None:
            sink = layer.sinks.double()[:, None, None].expand(-1, new, 1)
            weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        else:
            weights = torch.softmax(scores, -1)
        out[first:last] = (weights @ v).transpose(0, 1)
    return out


def check(
    given: Batch, layer: Attention, causal: bool | torch.Tensor = True, **plan: Any
) -> torch.Tensor:
    found = torch.full_like(given.query, float("nan"))
    pieces = make_plan(given.starts, given.lengths, **plan)
    layer(given.query, given.read, pieces, found, causal=causal)
    absolute, relative = TOLERANCE[given.query.dtype]
    torch.testing.assert_close(
        found.double(), truth(given, layer, causal), atol=absolute, rtol=relative
    )
    return found


#: new tokens and lengths: prefill, decoding, chunks behind a prefix, and all of them at once
BATCHES = {
    "one token": ([1], [1]),
    "prefill": ([5, 40, 1, 333], [5, 40, 1, 333]),
    "decode": ([1] * 6, [1, 16, 17, 129, 400, 401]),
    "ragged decode": ([1] * 4, [33, 40, 50, 63]),
    "ragged prefill": ([33, 40, 50], [33, 40, 50]),
    "equal decode": ([1] * 3, [48] * 3),
    "chunk behind a prefix": ([64, 7, 30], [100, 300, 30]),
    "mixed": ([1, 70, 1, 3, 1, 200], [200, 70, 17, 50, 1, 264]),
}
LAYERS = {
    "plain": {},
    "window": {"window": 16},
    "softcap": {"softcap": 2.0},
    "alibi": {"alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625])},
    "sinks": {"sinks": torch.tensor([1.0, -2.0, 0.0, 3.0])},
    "all": {
        "window": 40,
        "softcap": 5.0,
        "sinks": torch.tensor([1.0, -2.0, 0.0, 3.0]),
        "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 0.0625]),
    },
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("name", BATCHES)
def test_it_equals_plain_attention(name: str, layer: str, causal: bool) -> None:
    check(batch(*BATCHES[name]), Attention(32**-0.5, **LAYERS[layer]), causal)


@pytest.mark.parametrize("max_pairs", [1, 100, 5000])
def test_small_pieces_give_the_same(max_pairs: int) -> None:
    given = batch(*BATCHES["mixed"])
    check(given, Attention(0.2, window=30), max_pairs=max_pairs)
    check(given, Attention(0.2), max_pairs=max_pairs)
    check(given, Attention(0.2), causal=False, max_pairs=max_pairs)


def test_each_request_may_be_causal_or_not() -> None:
    check(batch(*BATCHES["mixed"]), Attention(0.2), torch.tensor([True, False] * 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (512, 0.0), (512, 30.0)])
@pytest.mark.parametrize("size", [64, 80, 96, 128, 256])
def test_prefill_then_decode_equals_one_prefill(
    size: int, window: int | None, softcap: float, dtype: torch.dtype
) -> None:
    lengths = [1, 16, 17, 129, 1024]
    layer = Attention(size**-0.5, window=window, softcap=softcap)
    # The same requests: one batch computes all tokens at once, the other only the last of each.
    whole = batch(lengths, lengths, heads=(8, 2), size=size, dtype=dtype)
    prefilled = check(whole, layer)
    last = torch.tensor(whole.starts[1:]) - 1
    step = Batch(list(range(6)), lengths, whole.query[last], whole.keys, whole.values,
                 whole.cache, whole.table)  # fmt: skip
    decoded = check(step, layer)
    absolute, relative = TOLERANCE[dtype]
    torch.testing.assert_close(decoded, prefilled[last], atol=absolute, rtol=relative)


@pytest.mark.parametrize("lengths", [[17, 1, 255, 0], [0, 0, 0, 0]])
@pytest.mark.parametrize("layer", LAYERS)
def test_rows_that_pad_a_decode_batch_give_zeros(layer: str, lengths: list[int]) -> None:
    options = dict(LAYERS[layer])
    for name in ("sinks", "alibi_slopes"):
        if name in options:
            options[name] = options[name].repeat(4)
    given = batch([1] * 4, lengths, heads=(16, 2), size=128, dtype=torch.bfloat16)
    found = check(given, Attention(128**-0.5, **options))
    assert (found[3] == 0).all()


def test_a_request_without_new_tokens_changes_nothing() -> None:
    given = batch([5, 0, 7], [5, 0, 12])
    assert given.starts == [0, 5, 5, 12]
    check(given, Attention(0.2))


def test_tokens_outside_the_plan_are_left_alone() -> None:
    given = batch([3], [3])
    padded = torch.cat([given.query, given.query])
    output = torch.full_like(padded, 7.0)
    Attention(0.2)(padded, given.read, make_plan(given.starts, given.lengths), output)
    assert (output[3:] == 7.0).all()


def test_right_padded_keys_with_grouped_heads() -> None:
    """Two requests decode over 7 and 4 keys in one padded piece; a third sees nothing."""
    for dtype in TOLERANCE:
        given = batch([1, 1, 1], [7, 4, 0], heads=(16, 8), size=128, dtype=dtype)
        check(given, Attention(128**-0.5))


def test_keys_that_were_never_cached() -> None:
    new = [5, 1, 30]
    given = batch(new, new)
    key, value = torch.cat(given.keys), torch.cat(given.values)
    found = torch.zeros_like(given.query)
    layer = Attention(0.2, window=4)
    layer(
        given.query,
        lambda piece: (kv_cache.read_batch(key, piece), kv_cache.read_batch(value, piece)),
        make_plan(given.starts, given.lengths),
        found,
        causal=False,
    )
    torch.testing.assert_close(found.double(), truth(given, layer, False), atol=1e-4, rtol=1e-4)


def test_padding_slots_are_not_written() -> None:
    cache = torch.zeros(2, 1, 4, 2)
    kv_cache.write(cache, torch.ones(4, 1, 1), torch.full((4, 1, 1), 2.0),
                   torch.tensor([5, -1, -1]))  # fmt: skip
    assert cache.count_nonzero() == 2
    assert cache[1, 0, 1].tolist() == [1.0, 2.0]


def test_a_cache_of_another_dtype_and_layout() -> None:
    given = batch(*BATCHES["mixed"])
    stored = given.cache.to(torch.bfloat16)
    rounded = [key.bfloat16().float() for key in given.keys]
    # Heads before blocks in memory, as some layouts of vLLM have it.
    strided = stored.transpose(0, 1).contiguous().transpose(0, 1)
    values = [value.bfloat16().float() for value in given.values]
    layout = Batch(given.starts, given.lengths, given.query, rounded, values, strided, given.table)
    check(layout, Attention(0.2))


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("dimensions", [3, 4])
def test_latent_attention_is_attention_whose_values_are_part_of_the_keys(
    name: str, dimensions: int
) -> None:
    rank, rotary, heads, block = 48, 16, 4, 16
    given = batch(*BATCHES[name], heads=(heads, 1), size=rank + rotary, block=block)
    # [blocks, 1, block size, entry]: the first half of what `batch` stores is the entry.
    cache = given.cache[..., : rank + rotary].contiguous()
    found = latent_attention(
        given.query,
        cache.squeeze(1) if dimensions == 3 else cache,
        given.table,
        make_plan(given.starts, given.lengths),
        0.2,
        rank,
    )
    given.values = [key[..., :rank] for key in given.keys]
    expected = truth(given, Attention(0.2))
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("max_pairs", [1000, 5000, 100_000])
def test_pieces_keep_to_their_bound_and_cover_each_token_once(max_pairs: int) -> None:
    new, lengths = [70, 100, 1, 1, 90, 128], [200, 250, 180, 130, 90, 128]
    starts = [0, *itertools.accumulate(new)]
    covered = []
    for piece in make_plan(starts, lengths, max_pairs=max_pairs):
        assert piece.tokens.numel() * piece.max_length <= max_pairs
        tokens = piece.tokens.flatten()
        covered += (tokens if piece.kept is None else tokens[piece.kept]).tolist()
    assert sorted(covered) == list(range(sum(new)))


def test_the_number_of_pieces_does_not_grow_with_the_batch() -> None:
    lengths = [200 + i % 50 for i in range(256)]
    assert len(make_plan(list(range(257)), lengths)) == 1
    spread = [1 + 7 * i for i in range(256)]
    assert len(make_plan(list(range(257)), spread)) <= 12


def test_decoding_long_requests_gathers_a_bounded_part_of_the_cache_at_a_time() -> None:
    count, length = 256, 8192
    pieces = make_plan(list(range(count + 1)), [length] * count)
    assert max(piece.requests.numel() * piece.max_length for piece in pieces) <= 1 << 17
    assert sum(piece.requests.numel() for piece in pieces) == count
