"""Informer's ProbSparse attention: Zhou et al. 2021, Informer, section 3 and algorithm 1."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from attention_zoo.base import Rows
from attention_zoo.checks import check_bool, check_int
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.fused_softmax import ENTRIES, attend, hidden_by
from attention_zoo.ops.masking import masked_softmax, visible_keys
from attention_zoo.ops.sampling import assign_rows, place_rows, take_rows
from attention_zoo.registry import register
from attention_zoo.sampled import SampledAttention
from attention_zoo.v_mean import masked_mean

# The sampled keys of all queries would take `num_samples` times the memory of K; at most this many times is gathered
# at once.
GATHERED_KEYS = 8
# A matrix product scores so many keys in the time that it takes to gather and score one.
KEYS_PER_SAMPLE = 40


@register
class Informer(SampledAttention):
    """Exact softmax rows for the queries whose weights look least uniform, the mean of V for the others.

    A query's sparsity is measured over sampled keys s: `M_i = max_s <q_i, k_s> - mean_s <q_i, k_s>` (equation
    4). The mean is over the samples; the released code divides their sum by the sequence length instead.

    Which rows are exact depends on all keys, so a causal form would leak the future; `causal` is refused.

    Args:
        num_features: u, the number of rows computed exactly; `num_features >= n` is softmax attention.
        num_samples: U, keys sampled with replacement for each query position, the same for all heads and (except
            with `mask_samples`) for the whole batch; None is `num_features`.
        mask_samples: sample only keys that are not padding. Otherwise sampled padding is left out of max
            and mean, which leaves fewer samples.
        use_sampling_factor: the paper's `u = U = c ceil(ln n)` with the sampling factor `c = ceil(num_features /
            ln max_seq_len)` (n if that is None), as Skeinformer's code gives Informer d features. For example
            num_features = 256 is 259 rows at n = max_seq_len = 1024.
    """

    info = AttentionInfo(
        name="informer",
        paper="Zhou et al. 2021, section 3, equation 4, algorithm 1",
        approximates="softmax",
        padding=True,
        random=True,
        data_dependent=True,
        complexity="O(n (U + u) h)",
        size="num_features",
        implementations=("reference", "fused"),
    )

    def __init__(
        self,
        *,
        num_features: int = 256,
        num_samples: int | None = None,
        mask_samples: bool = False,
        use_sampling_factor: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.num_features = check_int("num_features", num_features)
        self.num_samples = None if num_samples is None else check_int("num_samples", num_samples)
        self.mask_samples = check_bool("mask_samples", mask_samples)
        self.use_sampling_factor = check_bool("use_sampling_factor", use_sampling_factor)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        rows, row_weights = self._exact_rows(query, key, padding)
        mean = masked_mean(value, padding).expand_as(value)
        exact = row_weights @ value
        # Under autocast a product has another dtype.
        return mean.scatter(2, rows.expand_as(exact), exact.to(mean.dtype))

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        count, samples = self.counts(query.shape[2])
        dense = key.shape[2] < KEYS_PER_SAMPLE * samples
        rows = self.sparsity(query, key, padding, from_all_scores=dense).topk(count).indices
        hidden = hidden_by(padding)
        exact = attend(take_rows(query, rows), key, value, scale=self.head_dim**-0.5, hidden=hidden)
        mean = masked_mean(value, padding).expand_as(value)
        return assign_rows(mean, rows, exact.out.to(mean.dtype)), exact.backend

    def _matrix(self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Rows) -> Tensor:
        """Softmax rows for the selected queries, 1/n elsewhere."""
        exact_rows, row_weights = self._exact_rows(query, key, padding)
        positions = torch.arange(query.shape[2], device=query.device)[rows]
        mean = masked_softmax(key.new_zeros(()), visible_keys(1, key.shape[2], False, padding, key.device))
        return place_rows(mean, positions, exact_rows.squeeze(-1), row_weights)

    def _exact_rows(self, query: Tensor, key: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """The selected queries `(batch, heads, u, 1)` and their softmax weights `(batch, heads, u, n)`."""
        sparsity = self.sparsity(query, key, padding)
        rows = sparsity.topk(self.counts(query.shape[2])[0]).indices[..., None]
        scores = query.take_along_dim(rows, 2) @ key.transpose(-1, -2) * self.head_dim**-0.5
        return rows, masked_softmax(scores, visible_keys(1, key.shape[2], False, padding, key.device))

    def counts(self, seq_len: int) -> tuple[int, int]:
        """u, at most n, and U, for a sequence of n = `seq_len` tokens."""
        rows = self.num_features
        if self.use_sampling_factor and seq_len > 1:  # ln 1 = 0 would leave neither rows nor samples
            factor = math.ceil(rows / math.log(self.max_seq_len or seq_len))
            rows = factor * math.ceil(math.log(seq_len))
        return min(rows, seq_len), self.num_samples or rows

    @torch.no_grad()
    def sparsity(
        self, query: Tensor, key: Tensor, padding: Tensor | None = None, *, from_all_scores: bool = False
    ) -> Tensor:
        """M, `(batch, heads, seq_len)`, for scores without 1/sqrt(h); -inf at padded queries.

        A query whose samples are all padding gets 0, the least that M can be. With `from_all_scores` the scores of all
        keys are computed, some queries at a time, and the sampled ones taken, instead of gathering keys.
        """
        n = query.shape[2]
        _, samples = self.counts(n)
        noise = self._noise((n, samples), query.device)
        step = max(1, GATHERED_KEYS * n // samples)
        sampled_scores = _scores_of_gathered_keys
        if from_all_scores:
            step, sampled_scores = max(1, ENTRIES // (query.shape[:2].numel() * n)), _gathered_scores
        statistics = []
        for queries, u in zip(query.split(step, dim=2), noise.split(step), strict=True):
            indices = self._sample_keys(u, n, padding)
            statistics.append(_max_minus_mean(sampled_scores(queries, key, indices), indices, padding))
        statistic = torch.cat(statistics, dim=2)
        return statistic if padding is None else statistic.masked_fill(padding[:, None], -torch.inf)

    def _sample_keys(self, noise: Tensor, n: int, padding: Tensor | None) -> Tensor:
        """The indices of the sampled keys, `(batch or 1, queries, samples)`.

        float32 noise is at most 1 - 2^-24, so `noise n` never rounds up to n.
        """
        if padding is None or not self.mask_samples:
            return (noise * n).long()[None]
        valid_first = padding.to(torch.uint8).argsort(dim=1, stable=True)
        ranks = (noise * (~padding).sum(1)[:, None, None]).long()
        return valid_first.take_along_dim(ranks.flatten(1), 1).view_as(ranks)

    @property
    def min_test_length(self) -> int:
        """A little more than twice the exact rows: these are then so many that a test notices if they are wrong."""
        # With the sampling factor, u grows with ln n.
        return next(n for n in itertools.count(3, 2) if n > 2 * self.counts(n)[0])

    def _flops(self, seq_len: int) -> int:
        """Sampled scores, the exact rows' scores and values, and the mean of V."""
        rows, samples = self.counts(seq_len)
        return 2 * seq_len * (samples + 2 * rows + 1) * self.head_dim


def _scores_of_gathered_keys(query: Tensor, key: Tensor, indices: Tensor) -> Tensor:
    """`<q_i, k_s>` for the keys at `indices`, `(batch or 1, queries, U)`: `(batch, heads, queries, U)`."""
    flat = indices.flatten(1)
    if len(indices) == 1:
        # Copies whole rows: four to eight times as fast as element by element.
        keys = key.index_select(2, flat[0])
    else:
        keys = take_rows(key, flat[:, None].expand(-1, key.shape[1], -1))
    return (keys.unflatten(2, indices.shape[1:]) @ query[..., None]).squeeze(-1)


def _gathered_scores(query: Tensor, key: Tensor, indices: Tensor) -> Tensor:
    """The same as `_scores_of_gathered_keys`, taken from the scores of all keys."""
    scores = query @ key.mT
    return scores.gather(3, indices[:, None].expand(*query.shape[:2], -1, -1))


def _max_minus_mean(scores: Tensor, indices: Tensor, padding: Tensor | None) -> Tensor:
    """The sparsity of queries with sampled scores `(batch, heads, queries, U)`; sampled padding is left out."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if padding is None:
        return scores.amax(-1) - scores.mean(-1)
    hidden = padding.take_along_dim(indices.flatten(1), 1).unflatten(1, indices.shape[1:])[:, None]
    count = (~hidden).sum(-1)
    mean = scores.masked_fill(hidden, 0).sum(-1) / count.clamp_min(1)
    return (scores.masked_fill(hidden, -torch.inf).amax(-1) - mean).masked_fill(count == 0, 0)
