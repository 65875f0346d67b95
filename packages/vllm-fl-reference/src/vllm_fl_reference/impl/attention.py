"""Attention of a batch of requests over keys and values in a paged cache, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from vllm_fl_reference.impl.attention_mask import visible
from vllm_fl_reference.impl.attention_plan import Piece

#: piece -> keys [R, Hkv, K, d] and values [R, Hkv, K, dv]
Read = Callable[[Piece], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Attention:
    """What a layer computes.

    Attributes:
        scale: of the products of query and key.
        window: a token attends to keys less than this many positions away; None: to all.
        softcap: products are limited by ``softcap * tanh(product / softcap)``; 0: they are not.
        alibi_slopes: [H], a product falls by its head's slope per position of distance; or None.
        sinks: [H], a logit per head that takes part in the softmax without a value; or None.
    """

    scale: float
    window: int | None = None
    softcap: float = 0.0
    alibi_slopes: torch.Tensor | None = None
    sinks: torch.Tensor | None = None

    def __call__(
        self,
        query: torch.Tensor,
        read: Read,
        plan: Iterable[Piece],
        output: torch.Tensor,
        *,
        causal: bool | torch.Tensor = True,
    ) -> torch.Tensor:
        """Attend, piece by piece.

        Softmax is computed in float32. A token sees itself at least; those of a request without
        keys give zeros.

        Args:
            query: [T, H, d]; H a multiple of the number of key heads, neighbours share one.
            read: gives the keys and values of a piece.
            plan: covers the tokens to be computed, see `make_plan`.
            output: [T, H, dv]; rows that the plan covers are overwritten.
            causal: for all requests of the batch, or for each ([requests], bool).
        """
        for piece in plan:
            if not piece.max_length:  # rows that only pad the batch
                output.index_fill_(0, piece.tokens.flatten(), 0.0)
                continue
            keys, values = read(piece)
            found = self._attend(query, keys.to(query.dtype), values.to(query.dtype), piece, causal)
            rows, tokens = found.flatten(0, 1), piece.tokens.flatten()
            if piece.kept is not None:
                rows, tokens = rows[piece.kept], tokens[piece.kept]
            output.index_copy_(0, tokens, rows.to(output.dtype))
        return output

    def _attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        piece: Piece,
        causal: bool | torch.Tensor,
    ) -> torch.Tensor:
        """[R, Q, H, dv]."""
        heads = keys.shape[1]
        group = query.shape[1] // heads
        # The query heads that share a key head become more queries of it: no key is repeated.
        count, rows = piece.tokens.shape
        queries = query[piece.tokens].view(count, rows, heads, group, -1).permute(0, 2, 3, 1, 4)
        seen = self._seen(piece, causal)
        if self.softcap or self.alibi_slopes is not None or self.sinks is not None:
            found = self._explicitly(queries, keys, values, seen, piece)
        else:
            mask = None if seen is None else seen[:, None].repeat(1, 1, group, 1)
            found = scaled_dot_product_attention(
                queries.flatten(2, 3), keys, values, attn_mask=mask, scale=self.scale
            ).view(count, heads, group, rows, -1)
        return found.permute(0, 3, 1, 2, 4).flatten(2, 3)

    def _seen(self, piece: Piece, causal: bool | torch.Tensor) -> torch.Tensor | None:
        """[R, Q, K]; None where every token sees every key, as in decoding one request."""
        narrow = self.window is not None and self.window < piece.max_length
        if (piece.last or causal is False) and piece.uniform and not narrow:
            return None
        if isinstance(causal, torch.Tensor):
            causal = causal[piece.requests]
        return visible(
            piece.positions, piece.lengths, piece.max_length, causal=causal, window=self.window
        )

    def _explicitly(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        seen: torch.Tensor | None,
        piece: Piece,
    ) -> torch.Tensor:
        """[R, Hkv, G, Q, dv] for queries [R, Hkv, G, Q, d]: what the fused function lacks."""
        per_head = (1, keys.shape[1], -1, 1, 1)
        scores = queries.float() @ keys[:, :, None].float().transpose(-1, -2) * self.scale
        if self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        if self.alibi_slopes is not None:
            distance = (
                torch.arange(piece.max_length, device=scores.device) - piece.positions[..., None]
            )
            slopes = self.alibi_slopes.float().view(per_head)
            scores = scores + slopes * distance[:, None, None]
        if seen is not None:
            scores = scores.masked_fill(~seen[:, None, None], float("-inf"))
        if self.sinks is not None:
            sinks = self.sinks.float().view(per_head).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, sinks], dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., : keys.shape[2]]
        return weights @ values[:, :, None].float()
