"""Which keys a token sees."""

from __future__ import annotations

import torch


def visible(
    positions: torch.Tensor,
    lengths: torch.Tensor,
    key_count: int,
    *,
    causal: bool | torch.Tensor = True,
    window: int | None = None,
) -> torch.Tensor:
    """[R, Q, K], True where a token may attend to a key.

    Args:
        positions: [R, Q], position of each token in its request.
        lengths: [R], keys of each request; those behind are padding.
        key_count: K, keys in the padded batch.
        causal: no key behind the token; one value, or one for each request ([R], bool).
        window: only keys that are less than this many positions away.
    """
    query = positions[:, :, None]
    key = torch.arange(key_count, device=positions.device)
    seen = (key < lengths[:, None])[:, None, :]
    if isinstance(causal, torch.Tensor):
        seen = seen & ((key <= query) | ~causal[:, None, None])
    elif causal:
        seen = seen & (key <= query)
    if window is not None:
        seen = seen & (key > query - window) & (key < query + window)
    return seen.expand(*positions.shape, key_count)
