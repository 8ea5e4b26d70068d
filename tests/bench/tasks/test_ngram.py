"""Losses of unigrams and bigrams against closed forms and a literal restatement."""

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from bench.tasks import ngram
from bench.tasks.ngram import DISCOUNTS, bigram_loss, counted_pairs, unigram_loss


def splits(tokens, dtype=np.uint8):
    cut, second = round(0.9 * len(tokens)), round(0.95 * len(tokens))
    parts = {"train": tokens[:cut], "validation": tokens[cut:second], "test": tokens[second:]}
    return {split: np.asarray(part, dtype) for split, part in parts.items()}


def uniform(alphabet, count, seed=0):
    return np.random.default_rng(seed).integers(alphabet, size=count)


def test_a_markov_chain_costs_its_entropy_rate():
    # 0 and 1 alternate with probability 0.9: the next token costs the entropy of a 0.9 coin, whichever came before.
    flips = np.random.default_rng(0).random(400_000) < 0.9
    tokens = splits(np.cumsum(flips) % 2)
    rate = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert bigram_loss(tokens, 2) == pytest.approx(rate, abs=0.015)
    assert unigram_loss(tokens, 2) == pytest.approx(math.log(2), abs=0.001)


def literal_bigram(train, test, vocabulary, d):
    """Kneser and Ney's bigrams, interpolated, one token after the other."""
    pairs, contexts = Counter(pairwise(train)), Counter(train[:-1])
    before = Counter(w for _, w in pairs)
    unseen = d * len(before) / vocabulary
    loss = 0.0
    for v, w in pairwise(test):
        chance = (max(before[w] - d, 0) + unseen) / len(pairs)
        if contexts[v]:
            followers = sum(first == v for first, _ in pairs)
            chance = max(pairs[v, w] - d, 0) / contexts[v] + d * followers / contexts[v] * chance
        loss -= math.log(chance) / (len(test) - 1)
    return loss


def literal_unigram(train, test, vocabulary, d):
    counts = Counter(train)
    unseen = d * len(counts) / vocabulary
    chances = [(max(counts[w] - d, 0) + unseen) / len(train) for w in test[1:]]
    return -sum(map(math.log, chances)) / len(chances)


@pytest.mark.parametrize(
    ("vocabulary", "count", "dtype"), [(30, 400, np.uint8), (200, 600, np.uint16), (5, 100, np.uint32)]
)
def test_losses_are_those_of_a_literal_computation(vocabulary, count, dtype):
    # Frequencies fall, and some ids never occur to train on.
    tokens = splits((uniform(vocabulary, count) * uniform(vocabulary, count, 1)) // vocabulary, dtype)
    train, validation, test = (tokens[split].tolist() for split in ("train", "validation", "test"))
    for loss, literal in ((unigram_loss, literal_unigram), (bigram_loss, literal_bigram)):
        by_discount = {d: literal(train, validation, vocabulary, d) for d in DISCOUNTS}
        best = min(by_discount, key=by_discount.__getitem__)
        assert loss(tokens, vocabulary) == pytest.approx(literal(train, test, vocabulary, best), rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 100])
def test_pairs_are_counted_in_parts_of_a_long_text(monkeypatch, count):
    monkeypatch.setattr(ngram, "CHUNK", 7)
    tokens = uniform(5, count).astype(np.uint16)
    pairs, counts = counted_pairs(tokens, 5)
    expected = Counter(5 * a + b for a, b in pairwise(tokens.tolist()))
    assert dict(zip(pairs.tolist(), counts.tolist(), strict=True)) == expected
    assert pairs.tolist() == sorted(pairs.tolist())
