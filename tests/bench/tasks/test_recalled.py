"""Which tokens could be recalled, against a loop in the words of the definition."""

import random
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from bench.tasks import recalled


def kind_of(distance):
    low = [0, 64, 128, 256, 512]
    return 1 + max(i for i in range(5) if distance >= low[i])


def naive(window, counts):
    """The kind of each token but the first, one after the other."""
    found = []
    for t in range(1, len(window)):
        pair = (window[t - 1], window[t])
        earlier = [j for j in range(1, t) if (window[j - 1], window[j]) == pair]
        known = counts[pair] > recalled.FREQUENT
        found.append(kind_of(t - earlier[-1]) if earlier and not known else 0)
    return found


@pytest.mark.parametrize("seed", range(2))
def test_kinds_of_tokens_are_those_of_a_loop(seed):
    rng = random.Random(seed)
    train = [rng.randrange(6) for _ in range(9000)] + [rng.randrange(400) for _ in range(20000)]
    train += [0, 1] * (recalled.FREQUENT + 1)
    counts = Counter(pairwise(train))
    frequent = recalled.frequent_pairs(np.array(train, np.uint16), 1000)
    window = [rng.randrange(30) if rng.random() < 0.7 else rng.randrange(2) for _ in range(900)]
    assert recalled.kinds(np.array(window), frequent, 1000).tolist() == naive(window, counts)


def test_bytes_of_a_word_are_recalled_with_the_word_and_the_one_before():
    text = b"the red fox and the red cat saw" + b" -" * 40 + b" the red fox."
    kinds = recalled.kinds(np.frombuffer(text, np.uint8), np.array([], np.int64), None)
    spans = {i: match for i, match in enumerate(re.finditer(rb"\w+", text))}
    of_words = [{*kinds[max(match.start() - 1, 0) : match.end() - 1].tolist()} for match in spans.values()]
    # "the" after "and" and after "saw" is new; "red" after "the" came 16 bytes before, then more than 64.
    assert of_words[1:] == [{0}, {0}, {0}, {0}, {1}, {0}, {0}, {0}, {2}, {2}]
    assert kinds[text.index(b" -") - 1] == 0, "what is between words is of no word"


def test_kinds_and_places_agree():
    assert len(recalled.KINDS) == len(recalled.EDGES) + 2
