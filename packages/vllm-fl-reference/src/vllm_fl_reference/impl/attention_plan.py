"""How the requests of a batch are attended together: in pieces, each padded to one shape.

A batch mixes requests with one new token (decoding) and with thousands (prefill), over caches of
any length. Padding all of them to one shape would waste most of the work, one call per request
most of the time. So requests of about the same shape share a piece: the number of pieces grows
with the logarithm of the lengths, not with the number of requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

#: Query-key pairs in one piece, per head. It bounds the memory of masks and scores: 8 MiB for a
#: float32 mask, that times the number of heads for float32 scores.
MAX_PAIRS = 1 << 21
#: As many pairs a key counts for at least: the keys and values of a piece are gathered, which in
#: decoding takes far more memory than the scores.
PAIRS_PER_KEY = 16


@dataclass(frozen=True)
class Piece:
    """R requests with up to Q query tokens each, over up to K keys.

    Attributes:
        requests: [R], rows of the block table.
        tokens: [R, Q], rows of the query; where a request has fewer, its last one is repeated.
        positions: [R, Q], the positions of those tokens in their requests.
        kept: [N], which of the R * Q (flattened) are no repetition; None: all.
        lengths: [R], keys of each request, new tokens included.
        max_length: the largest of them, K.
        uniform: all requests have K keys.
        last: every token is the last one of its request.
        first_tokens: [R], the row of each request's first new token.
    """

    requests: torch.Tensor
    tokens: torch.Tensor
    positions: torch.Tensor
    kept: torch.Tensor | None
    lengths: torch.Tensor
    max_length: int
    uniform: bool
    last: bool
    first_tokens: torch.Tensor

    def padding(self) -> torch.Tensor | None:
        """[R, K], True behind the keys of a request; None where there is no padding."""
        if self.uniform:
            return None
        return torch.arange(self.max_length, device=self.lengths.device) >= self.lengths[:, None]


def make_plan(
    starts: Sequence[int],
    lengths: Sequence[int],
    device: torch.device | str = "cpu",
    max_pairs: int = MAX_PAIRS,
) -> tuple[Piece, ...]:
    """Cut a batch into pieces that cover every query token once.

    Args:
        starts: [R + 1], where the new tokens of each request begin in the query.
        lengths: [R], keys of each request, its new tokens included; 0 for rows that only pad the
            batch, whose tokens then attend to nothing.
        device: where the tensors of the plan go.
        max_pairs: see `MAX_PAIRS`; a single query row may exceed it.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for request, length in enumerate(lengths):
        new = starts[request + 1] - starts[request]
        if new > 0:
            groups.setdefault((_ceiling(new), _ceiling(length)), []).append(request)
    pieces = []
    for requests in groups.values():
        for some, first, last in _cuts(requests, starts, lengths, max_pairs):
            pieces.append(_piece(some, first, last, starts, lengths, device))  # clearer
    return tuple(pieces)


def _ceiling(size: int) -> int:
    """The next power of two; 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


def _cuts(
    requests: list[int], starts: Sequence[int], lengths: Sequence[int], max_pairs: int
) -> Iterator[tuple[list[int], int, int]]:
    """(requests, first new token, last new token + 1): parts of a group that are small enough."""
    new = max(starts[r + 1] - starts[r] for r in requests)
    keys = max(1, *(lengths[r] for r in requests))
    together = max(1, max_pairs // (max(new, PAIRS_PER_KEY) * keys))
    rows = max(1, max_pairs // keys)
    for i in range(0, len(requests), together):
        for first in range(0, new, rows):
            some = [r for r in requests[i : i + together] if starts[r + 1] - starts[r] > first]
            if some:
                yield some, first, first + rows


def _piece(
    requests: list[int],
    first: int,
    last: int,
    starts: Sequence[int],
    lengths: Sequence[int],
    device: torch.device | str,
) -> Piece:
    begin = torch.tensor([starts[r] for r in requests])
    new = torch.tensor([starts[r + 1] - starts[r] for r in requests])
    length = torch.tensor([lengths[r] for r in requests])
    columns = torch.arange(first, min(last, int(new.max())))
    inside = columns < new[:, None]
    columns = torch.minimum(columns, new[:, None] - 1)
    full = bool(inside.all())
    largest = int(length.max())
    positions = (length - new)[:, None] + columns
    return Piece(
        requests=torch.tensor(requests, device=device),
        tokens=(begin[:, None] + columns).to(device),
        positions=positions.to(device),
        kept=None if full else inside.flatten().nonzero().flatten().to(device),
        lengths=length.to(device),
        max_length=largest,
        uniform=int(length.min()) == largest,
        last=bool((positions == length[:, None] - 1).all()),
        first_tokens=begin.to(device),
    )
