"""What a language model has to beat: unigrams and bigrams of the same tokens."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from bench.tasks.corpus import Tokens

DISCOUNTS = np.linspace(0.05, 0.95, 19)
"""Those of which the validation split chooses."""


def unigram_loss(tokens: Mapping[str, Tokens], vocabulary: int) -> float:
    """Cross-entropy of the test split, nats per token, by the frequencies of the training split.

    Counts are discounted as those of `bigram_loss`, so that tokens never seen have a chance too.

    Args:
        tokens: of the splits train, validation and test, `(count,)` each.
        vocabulary: how many ids there are.
    """
    counts = np.bincount(tokens["train"], minlength=vocabulary)

    def loss(split: str, discount: float) -> float:
        return _cross_entropy(_discounted(counts, discount)[tokens[split][1:]])

    return loss("test", min(DISCOUNTS, key=lambda discount: loss("validation", discount)))


def bigram_loss(tokens: Mapping[str, Tokens], vocabulary: int) -> float:
    """Cross-entropy of the test split but for its first token, nats per token, by interpolated Kneser-Ney bigrams.

    p(w|v) = max(c(vw) - d, 0) / c(v) + d N(v.) / c(v) * p(w), where N(v.) is how many different tokens followed v and
    p(w) comes, discounted likewise, from how many different tokens came before w (Kneser and Ney, 1995; Chen and
    Goodman, 1999). The discount d is the one of `DISCOUNTS` that suits the validation split best.
    """
    bigrams = _Bigrams(tokens["train"], vocabulary)
    discount = min(DISCOUNTS, key=lambda discount: _cross_entropy(bigrams.chances(tokens["validation"], discount)))
    return _cross_entropy(bigrams.chances(tokens["test"], discount))


class _Bigrams:
    """Counts of pairs: their codes v * vocabulary + w, sorted, and how often each occurs."""

    def __init__(self, train: Tokens, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.codes, self.counts = np.unique(self._pairs(train), return_counts=True)
        first, second = np.divmod(self.codes, vocabulary)
        self.contexts = np.bincount(first, self.counts, vocabulary)
        self.followers = np.bincount(first, minlength=vocabulary)
        self.precedents = np.bincount(second, minlength=vocabulary)

    def _pairs(self, tokens: Tokens) -> NDArray[np.int64]:
        return tokens[:-1].astype(np.int64) * self.vocabulary + tokens[1:]

    def chances(self, tokens: Tokens, discount: float) -> NDArray[np.float64]:
        """p of each token but the first, given the one before."""
        pairs = self._pairs(tokens)
        before, after = np.divmod(pairs, self.vocabulary)
        found = np.searchsorted(self.codes, pairs).clip(max=len(self.codes) - 1)
        counts = np.where(self.codes[found] == pairs, self.counts[found], 0)
        lower = _discounted(self.precedents, discount)[after]
        context = self.contexts[before]
        higher = (counts - discount).clip(min=0) + discount * self.followers[before] * lower
        return np.where(context > 0, higher / context.clip(min=1), lower)


def _discounted(counts: NDArray[np.int64], discount: float) -> NDArray[np.float64]:
    """Shares of the counts, each less the discount; what that leaves is spread evenly over all ids."""
    spread = discount * np.count_nonzero(counts) / len(counts)
    return ((counts - discount).clip(min=0) + spread) / counts.sum()


def _cross_entropy(chances: NDArray[np.float64]) -> float:
    return float(-np.log(chances).mean())
