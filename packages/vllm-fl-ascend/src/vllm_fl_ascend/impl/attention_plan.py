"""What a batch looks like, in numbers of the host: nothing here touches the device."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise


class AttentionState(enum.Enum):
    """What the requests of a batch have in common."""

    #: Nothing was computed before: keys and values are those of the batch.
    PREFILL_NO_CACHE = "prefill without cache"
    #: All in prefill, some behind a cached prefix or an earlier chunk.
    PREFILL_CACHE_HIT = "prefill with cache hit"
    #: One new token each.
    DECODE = "decode"
    #: Prefill and decoding together.
    CHUNKED_PREFILL = "chunked prefill"
    #: One token and its drafts each.
    SPEC_DECODE = "speculative decoding"


def state_of(query_lens: Sequence[int], kv_lens: Sequence[int], drafts: int = 0) -> AttentionState:
    """The state of a batch.

    Only a batch without a single computed token may attend to its own keys alone: a batch that
    is all prefill may have prefixes in the cache.

    Args:
        query_lens: new tokens of each request, at least one each.
        kv_lens: new and computed tokens of each request.
        drafts: tokens that a draft model proposes for a request at most.
    """
    computed = [kv - query for query, kv in zip(query_lens, kv_lens, strict=True)]
    if not any(computed):
        return AttentionState.PREFILL_NO_CACHE
    if max(query_lens) == 1:
        return AttentionState.DECODE
    if drafts and all(computed) and max(query_lens) <= 1 + drafts:
        return AttentionState.SPEC_DECODE
    if min(query_lens) > 1:
        return AttentionState.PREFILL_CACHE_HIT
    return AttentionState.CHUNKED_PREFILL


@dataclass(frozen=True)
class Plan:
    """The lengths of a batch, as the kernels want them.

    Attributes:
        requests: the rows of the block table that count: those of requests with new tokens.
        query_lens, kv_lens: of these requests.
        query_ends, kv_ends: running sums; the last of `query_ends` is the number of tokens.
    """

    state: AttentionState
    requests: tuple[int, ...]
    query_lens: list[int]
    kv_lens: list[int]
    query_ends: list[int]
    kv_ends: list[int]

    @property
    def tokens(self) -> int:
        """New tokens; rows behind these are padding."""
        return self.query_ends[-1] if self.query_ends else 0


def make_plan(starts: Sequence[int], kv_lens: Sequence[int], drafts: int = 0) -> Plan:
    """The plan of a batch.

    Requests without a new token (rows that were added for a graph, or whose turn it is not) are
    left out: their lengths are zero or undefined.

    Args:
        starts: first new token of each request, and the end of the last one.
        kv_lens: new and computed tokens of each request.
        drafts: see `state_of`.
    """
    lengths = [end - start for start, end in pairwise(starts)]
    requests = tuple(row for row, length in enumerate(lengths) if length > 0)
    query_lens = [lengths[row] for row in requests]
    kept = [kv_lens[row] for row in requests]
    state = state_of(query_lens, kept, drafts) if requests else AttentionState.DECODE
    return Plan(
        state, requests, query_lens, kept, list(accumulate(query_lens)), list(accumulate(kept))
    )
