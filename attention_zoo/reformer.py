"""Reformer's LSH attention: Kitaev et al. 2020, Reformer: The Efficient Transformer, section 2 and appendix A."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.base import Rows
from attention_zoo.checks import check_int
from attention_zoo.dense import AttentionDropout
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.fused_softmax import HIDDEN, Attended, attend, is_blind, merge
from attention_zoo.ops.sampling import take_rows
from attention_zoo.registry import register
from attention_zoo.sampled import SampledAttention


@register
class Reformer(AttentionDropout, SampledAttention):
    """Softmax attention of every query to the keys that random rotations sort next to it.

    Queries and keys are shared: a key is its query's direction, `k_j = q_j / |q_j|`, and the argument `key` is not
    read. In each round positions are sorted by their bucket `argmax [x R; -x R]` and split into chunks; a query scores
    `<q_i, k_j>` for the keys of its own and of the previous chunk. The rounds are merged by their sums of exponentials:
    the weight of key j is `c_ij exp <q_i, k_j>`, normalised, where c_ij is the number of rounds in which i sees j. A
    position attends to itself only if it sees no other key in any round.

    Scores are those of trax and transformers; reformer-pytorch also divides them by sqrt(h). As in all three, a pair
    counts once for each round in which it meets; appendix A subtracts `log c_ij` from its scores. As in the paper, the
    first chunk has no previous one; in the codes it is the last chunk of the previous round. Rotations are drawn from
    the seed, per head and round; the codes draw new ones in every forward pass, also in evaluation.

    Padding is removed first: buckets and chunks are those of the sequence without padding, and so is the output.

    With `causal=True` a query attends to the past only, but which keys of the past share its chunks depends on how the
    future is sorted: a change of the future changes past outputs.

    Args:
        num_hashes: rounds of hashing.
        bucket_size: m, the length of a chunk, twice the mean length of a bucket (`m = 2n / buckets`). With m >= n it is
            dense shared-QK attention for any number of rounds, which is not softmax attention.
        dropout: probability of dropping a weight of a round in training mode, as in trax; the reference does it.
    """

    info = AttentionInfo(
        name="reformer",
        paper="Kitaev et al. 2020, section 2 and appendix A",
        padding=True,
        random=True,
        data_dependent=True,
        complexity="O(n r (m + n / m) h), r rounds",
        approximately_causal=True,
        implementations=("reference", "fused"),
    )

    def __init__(self, *, num_hashes: int = 2, bucket_size: int = 64, dropout: float = 0.0, **common: Any) -> None:
        super().__init__(dropout=dropout, **common)
        self.num_hashes = check_int("num_hashes", num_hashes)
        self.bucket_size = check_int("bucket_size", bucket_size)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        m = min(self.bucket_size, query.shape[2])
        order = self._order(query, padding)
        weights, _, alone = self._weights(query, order, padding)
        out = _unsort(self._drop(weights) @ _and_before(_chunks(_sort(value, order), m)), order).sum(2)
        itself = self._drop(alone.to(value.dtype))[..., None] * value
        return torch.where(alone[..., None], itself, out)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        precision = torch.promote_types(query.dtype, torch.float32)
        unit = F.normalize(query.to(precision), dim=-1, eps=1e-6).to(query.dtype)
        rounds = [self._round(query, unit, value, order, padding) for order in self._order(query, padding).unbind(2)]
        out, lse, backend = functools.reduce(merge, rounds)
        alone = is_blind(lse) if padding is None else is_blind(lse) & ~padding[:, None]
        return torch.where(alone[..., None], value, out), backend

    def _round(self, query: Tensor, key: Tensor, value: Tensor, order: Tensor, padding: Tensor | None) -> Attended:
        """The attention of one round, whose sorted positions are `order`, `(batch, heads, n)`."""
        batch, heads, n, h = query.shape
        m = min(self.bucket_size, n)
        of_query, *of_seen = (_chunks(take_rows(x, order), m) for x in (query, key, value))
        chunks = (of_query, *map(_and_before, of_seen))
        # Neither causal nor padded: what is hidden depends only on the place in the chunk, not on batch or head.
        places = order if self.causal or padding is not None else torch.arange(n, device=order.device)[None, None]
        hidden = self._keys_of_chunks(places, m, padding)[1].flatten(0, 1)
        out, lse, backend = attend(*(x.flatten(0, 1) for x in chunks), scale=1.0, hidden=hidden)
        back = _inverse(order)
        out = take_rows(out.reshape(batch, heads, -1, h)[:, :, :n], back)
        return Attended(out, lse.reshape(batch, heads, -1).take_along_dim(back, 2), backend)

    def _keys_of_chunks(self, order: Tensor, m: int, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """The keys of each chunk and of the chunk before it, and which of them a query does not see.

        Returns:
            Positions `(..., chunks, 1, 2m)`, -1 where there is no key, and bool `(..., chunks, m, 2m)`.
        """
        at, seen = _chunks(order[..., None], m), order
        if padding is not None:
            padding = padding.view(len(padding), *[1] * (order.dim() - 2), -1).expand_as(order)
            seen = order.masked_fill(padding.take_along_dim(order, -1), -1)
        seen = _and_before(_chunks(seen[..., None], m, fill=-1), fill=-1).mT
        return seen, (seen < 0) | (seen == at) | (seen > at if self.causal else False)

    def _matrix(self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Rows) -> Tensor:
        """The weights of all rounds, each at the position of its key; a row that sees a key sums to 1."""
        order = self._order(query, padding)
        weights, seen, alone = self._weights(query, order, padding)
        by_query = (_unsort(x, order).transpose(2, 3).flatten(3) for x in (weights, seen.expand_as(weights)))
        weights, seen = (x[:, :, rows] for x in by_query)
        positions = torch.arange(query.shape[2], device=query.device)
        itself = (positions[rows, None] == positions) & alone[:, :, rows, None]
        empty = query.new_zeros(*weights.shape[:3], query.shape[2])
        return empty.scatter_add(3, seen.clamp_min(0), weights) + itself

    @torch.no_grad()
    def _order(self, query: Tensor, padding: Tensor | None) -> Tensor:
        """The positions sorted by bucket, then position, `(batch, heads, rounds, n)`; padding comes last."""
        heads, n, h = query.shape[1:]
        m = min(self.bucket_size, n)
        columns = -(-n // m)
        normal = self._normal_noise((columns, heads * self.num_hashes * h), query.device)
        rotations = normal.view(columns, heads, self.num_hashes, h)
        precision = torch.promote_types(query.dtype, torch.float32)
        rotated = torch.einsum("bhnd,chrd->bhrnc", query.to(precision), rotations.to(precision))
        length = rotated.abs()
        if padding is not None:
            needed = ((~padding).sum(1) + m - 1) // m
            unneeded = torch.arange(columns, device=query.device) >= needed[:, None]
            length = length.masked_fill(unneeded[:, None, None, None], -1)
        column = length.argmax(-1, keepdim=True)
        bucket = (column + columns * (rotated.take_along_dim(column, -1) < 0)).squeeze(-1)
        if padding is not None:
            bucket = bucket.masked_fill(padding[:, None, None], 2 * columns)
        return bucket.argsort(dim=-1, stable=True)

    def _weights(self, query: Tensor, order: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The weights of all rounds, the positions of their keys, and which positions see no key but themselves.

        Returns:
            Weights `(batch, heads, rounds, chunks, m, 2m)`; positions of the keys `(batch, heads, rounds, chunks, 1,
            2m)`, -1 where there is no key; `(batch, heads, n)` bool.
        """
        n = query.shape[2]
        m = min(self.bucket_size, n)
        precision = torch.promote_types(query.dtype, torch.float32)
        key = F.normalize(query.to(precision), dim=-1, eps=1e-6).to(query.dtype)
        seen, hidden = self._keys_of_chunks(order, m, padding)
        scores = (_chunks(_sort(query, order), m) @ _and_before(_chunks(_sort(key, order), m)).mT).to(precision)
        scores = scores.masked_fill(hidden, HIDDEN)
        total = _unsort(scores.logsumexp(-1, keepdim=True), order).logsumexp(2)
        weights = (scores - _chunks(_sort(total, order), m)).exp().masked_fill(hidden, 0)
        alone = is_blind(total.squeeze(-1))
        return weights.to(query.dtype), seen, alone if padding is None else alone & ~padding[:, None]

    def _test_blocks(self) -> tuple[int, int]:
        return self.bucket_size, 3

    def _flops(self, seq_len: int) -> int:
        """Rotations, and both products of every chunk with two chunks of keys."""
        m = min(self.bucket_size, seq_len)
        chunks = -(-seq_len // m)
        multiply_adds = seq_len * chunks + 2 * chunks * m * 2 * m
        return self.num_hashes * 2 * multiply_adds * self.head_dim


def _sort(x: Tensor, order: Tensor) -> Tensor:
    """`x` `(batch, heads, n, ...)` in the order of each round, `(batch, heads, rounds, n, ...)`."""
    return x[:, :, None].take_along_dim(order[..., None], 3)


def _inverse(order: Tensor) -> Tensor:
    """The inverse permutations, along the last dimension."""
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def _unsort(chunks: Tensor, order: Tensor) -> Tensor:
    """Undo `_chunks` and `_sort`, without a sum over rounds: `(batch, heads, rounds, n, ...)`."""
    return chunks.flatten(3, 4)[:, :, :, : order.shape[-1]].take_along_dim(_inverse(order)[..., None], 3)


def _chunks(x: Tensor, m: int, fill: float = 0) -> Tensor:
    """Chunks of m rows: `(..., n, k)` to `(..., chunks, m, k)`."""
    return F.pad(x, (0, 0, 0, -x.shape[-2] % m), value=fill).unflatten(-2, (-1, m))


def _and_before(chunks: Tensor, fill: float = 0) -> Tensor:
    """Each chunk after the one before it: `(..., chunks, 2m, k)`."""
    before = F.pad(chunks[..., :-1, :, :], (0, 0, 0, 0, 1, 0), value=fill)
    return torch.cat([before, chunks], -2)
