"""Baselines for a language model: unigrams and bigrams of the same tokens."""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from bench.tasks.corpus import Tokens

DISCOUNTS = np.linspace(0.05, 0.95, 19)
"""Candidate discounts; the validation split chooses one."""
CHUNK = 2**24
"""Tokens whose pairs are counted at once: those of a whole library would need tens of GB."""


def counted_pairs(tokens: Tokens, vocabulary: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of neighbouring tokens, `first * vocabulary + second`, sorted, and how often each occurs."""
    seen = times = np.empty(0, np.int64)
    for start in range(0, len(tokens) - 1, CHUNK):
        part = np.asarray(tokens[start : start + CHUNK + 1], np.int64)
        pairs, counts = np.unique(part[:-1] * vocabulary + part[1:], return_counts=True)
        seen, places = np.unique(np.concatenate([seen, pairs]), return_inverse=True)
        times = np.bincount(places, np.concatenate([times, counts]), len(seen)).astype(np.int64)
    return seen, times


def unigram_loss(tokens: Mapping[str, Tokens], vocabulary: int) -> float:
    """Cross-entropy of the test split without its first token, nats per token, by the training split's frequencies.

    Counts are discounted as in `bigram_loss`, so that unseen tokens have a probability above 0.

    Args:
        tokens: of the splits train, validation and test, `(count,)` each.
        vocabulary: number of token ids.
    """
    counts = np.bincount(tokens["train"], minlength=vocabulary)
    return _loss(lambda split, discount: _discounted(counts, discount)[tokens[split][1:]])


def bigram_loss(tokens: Mapping[str, Tokens], vocabulary: int) -> float:
    """Cross-entropy of the test split without its first token, nats per token, by interpolated Kneser-Ney bigrams.

    p(w|v) = max(c(vw) - d, 0) / c(v) + d N(v.) / c(v) * p(w), where N(v.) is the number of different tokens after v,
    and p(w) is computed in the same way from the number of different tokens before w (Kneser and Ney, 1995; Chen and
    Goodman, 1999). The discount d is the one in `DISCOUNTS` with the lowest loss on the validation split.
    """
    tested = {split: tokens[split] for split in ("validation", "test")}
    pairs = {split: each[:-1].astype(np.int64) * vocabulary + each[1:] for split, each in tested.items()}
    seen, times = counted_pairs(tokens["train"], vocabulary)
    first, second = np.divmod(seen, vocabulary)
    contexts = np.bincount(first, times, vocabulary)
    followers, precedents = (np.bincount(each, minlength=vocabulary) for each in (first, second))

    def chances(split: str, discount: float) -> NDArray[np.float64]:
        before, after = np.divmod(pairs[split], vocabulary)
        found = np.searchsorted(seen, pairs[split]).clip(max=len(seen) - 1)
        counts = np.where(seen[found] == pairs[split], times[found], 0)
        lower = _discounted(precedents, discount)[after]
        context = contexts[before]
        higher = (counts - discount).clip(min=0) + discount * followers[before] * lower
        return np.where(context > 0, higher / context.clip(min=1), lower)

    return _loss(chances)


def _discounted(counts: NDArray[np.int64], discount: float) -> NDArray[np.float64]:
    """Relative counts after subtracting the discount; the freed probability is spread evenly over all ids."""
    spread = discount * np.count_nonzero(counts) / len(counts)
    return ((counts - discount).clip(min=0) + spread) / counts.sum()


def _loss(chances: Callable[[str, float], NDArray[np.float64]]) -> float:
    """The loss on the test split, with the discount that is best on the validation split."""

    def loss(split: str, discount: float) -> float:
        return float(-np.log(chances(split, discount)).mean())

    return loss("test", min(DISCOUNTS, key=lambda discount: loss("validation", discount)))
