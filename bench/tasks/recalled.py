"""Which tokens of a text can be recalled: the pair of a token and the one before it occurred earlier in the window.

Zoology (Arora et al. 2023), section 3.1: associative recall hits are the last tokens of pairs that are repeated in the
context, except pairs that are so frequent in the training text that a model memorises them.
"""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from bench.tasks.corpus import Tokens
from bench.tasks.ngram import counted_pairs

Ids = NDArray[np.int64]

FREQUENT = 1250
"""A pair with more occurrences in the training text counts as memorised, as in Zoology."""
EDGES = (64, 128, 256, 512)
"""Limits between classes of distances to the earlier occurrence; the window of `local` is the first."""
KINDS = ("other", "recalled_below_64", "recalled_64_127", "recalled_128_255", "recalled_256_511", "recalled_from_512")


def frequent_pairs(tokens: Tokens, vocabulary: int | None) -> Ids:
    """The pairs of neighbouring tokens that occur more than `FREQUENT` times, `first * vocabulary + second`, sorted.

    Where the vocabulary is None, tokens are bytes: pairs of neighbouring words instead, numbered by `_word_pairs`.
    """
    if vocabulary is not None:
        pairs, counts = counted_pairs(tokens, vocabulary)
    else:
        pairs, counts = np.unique(_word_pairs(np.asarray(tokens))[0], return_counts=True)
    return pairs[counts > FREQUENT]


def kinds(window: NDArray[np.integer], frequent: Ids, vocabulary: int | None) -> Ids:
    """For each token except the first, `(n,)` of `(n + 1,)`: its index in `KINDS`.

    The distance is to the latest earlier occurrence of its pair, in tokens. For bytes (`vocabulary` None), all bytes of
    a word have the word's kind, which is recalled if the whole word and the one before it occurred earlier.
    """
    if vocabulary is not None:
        pairs = window[:-1].astype(np.int64) * vocabulary + window[1:]
        return _kinds(pairs, np.arange(len(pairs)), frequent)
    pairs, starts, ends = _word_pairs(window)
    found = np.zeros(len(window), np.int64)
    for kind, start, end in zip(_kinds(pairs, starts, frequent), starts, ends, strict=True):
        found[start:end] = kind
    return found[1:]


def _kinds(pairs: Ids, places: Ids, frequent: Ids) -> Ids:
    """The kind of each pair, given their places in the window."""
    order = np.argsort(pairs, kind="stable")
    again = np.flatnonzero(pairs[order[1:]] == pairs[order[:-1]])
    later, earlier = order[again + 1], order[again]
    found = np.zeros(len(pairs), np.int64)
    found[later] = 1 + np.searchsorted(EDGES, places[later] - places[earlier], side="right")
    found[np.isin(pairs, frequent)] = 0
    return found


BYTES = 256
MIX = 0x9E3779B97F4A7C15
_WORD = np.zeros(BYTES, bool)
_WORD[[*b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_'", *range(128, BYTES)]] = True


def _word_pairs(text: NDArray[np.integer]) -> tuple[Ids, Ids, Ids]:
    """The pairs of neighbouring words in bytes, as numbers, and where the second word of each begins and ends."""
    edges = np.diff(np.concatenate([[False], _WORD[text], [False]]).astype(np.int8))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    data = np.asarray(text, np.uint8).tobytes()
    # A 64-bit number for a word, the same in every process, and with high probability unique.
    hashes = (blake2b(data[start:end], digest_size=8).digest() for start, end in zip(starts, ends, strict=True))
    words = np.frombuffer(b"".join(hashes), "<u8")
    return (words[:-1] * np.uint64(MIX) + words[1:]).astype(np.int64), starts[1:], ends[1:]
