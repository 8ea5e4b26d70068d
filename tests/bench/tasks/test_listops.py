"""ListOps: the published rules restated, and what follows from them for lengths, depths and values."""

import hashlib
import random
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from scipy import stats

from bench.tasks import settings
from bench.tasks.base import Draws
from bench.tasks.listops import _expression

WORDS = ["", *map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]"]
UNLIKELY = 1e-4


def opened(seq_len=128, seed=0, **changes):
    task = {"name": "listops", "min_length": 30, "max_length": 129, **changes}
    config = {"task": task, "seq_len": seq_len, "causal": False, "seed": seed}
    return settings(task).open(config, Path("nowhere"))


def tree(words):
    """A digit, or `[operator, *arguments]`, of words that are taken from the end of a list."""
    word = words.pop()
    if not word.startswith("["):
        return int(word)
    node = [word]
    while words[-1] != "]":
        node.append(tree(words))
    words.pop()
    return node


def evaluated(node):
    """As LRA's `to_value`."""
    if isinstance(node, int):
        return node
    operator, *arguments = node
    values = [evaluated(argument) for argument in arguments]
    return {"[MIN": min, "[MAX": max, "[MED": lambda v: int(median(v)), "[SM": lambda v: sum(v) % 10}[operator](values)


def depth(node):
    return 1 if isinstance(node, int) else 1 + max(map(depth, node[1:]))


def operators(node):
    return [] if isinstance(node, int) else [node, *(one for argument in node[1:] for one in operators(argument))]


def read(tokens):
    """The tree of padded tokens, and its length; nothing but padding follows it."""
    words = [WORDS[token] for token in tokens]
    length = len(words) - words.count("")
    assert "" not in words[:length]
    left = words[:length][::-1]
    node = tree(left)
    assert left == []
    return node, length


def check(task, count, low, high, deepest):
    """That examples are within the bounds and have the values of an independent evaluator; their trees."""
    batch = task.batch("train", range(count))
    assert batch.targets.shape == (count, 1) and np.array_equal(batch.mask, batch.tokens != 0)
    trees = []
    for tokens, (label,) in zip(batch.tokens.tolist(), batch.targets.tolist(), strict=True):
        node, length = read(tokens)
        assert low < length < high and depth(node) <= deepest and evaluated(node) == label
        assert all(3 <= len(operator) <= 11 for operator in operators(node))
        trees.append(node)
    assert len(set(map(str, trees))) == count
    return trees


def test_values_are_those_of_an_independent_evaluator():
    assert (opened().classes, opened().vocabulary, opened().causal) == (10, 32, False)
    check(opened(), 200, 30, 129, 10)
    trees = check(opened(max_depth=3), 50, 30, 129, 3)
    assert max(map(depth, trees)) == 3


@pytest.mark.slow
def test_ten_thousand_expressions_of_the_papers_size_have_the_values_of_an_independent_evaluator():
    trees = check(opened(2048, min_length=500, max_length=2000), 10_000, 500, 2000, 10)
    lengths = [len(str(node).replace("[", "").replace("]", " ]").split()) for node in trees]
    # A run of LRA's own rules, elsewhere: mean 1,042, median 965.
    assert abs(np.mean(lengths) - 1042) < 15 and abs(np.median(lengths) - 965) < 25


def test_nodes_are_drawn_by_the_published_rules():
    """Before any is rejected; depths of rejected and kept trees together are those of a branching process."""
    numbers = Draws(0, "train", 0).uniform_stream()
    count = 8000
    trees = [read(_expression(numbers, 4, 10**6))[0] for _ in range(count)]
    is_operator = [isinstance(node, list) for node in trees]
    assert stats.binomtest(sum(is_operator), count, 0.25).pvalue > UNLIKELY
    nodes = [one for node in trees for one in operators(node)]
    assert stats.chisquare(list(Counter(one[0] for one in nodes).values())).pvalue > UNLIKELY
    counts = Counter(len(one) - 1 for one in nodes)
    assert sorted(counts) == [*range(2, 11)] and stats.chisquare([*counts.values()]).pvalue > UNLIKELY
    digits = Counter(one for node in nodes for one in node[1:] if isinstance(one, int))
    assert sorted(digits) == [*range(10)] and stats.chisquare([*digits.values()]).pvalue > UNLIKELY
    # No operator at the largest depth: a node has one below it with chance 1 - E[0.75 ** arguments].
    chance = 0.25 * (1 - np.mean(0.75 ** np.arange(2, 11)))
    assert max(map(depth, trees)) == 4
    assert stats.binomtest(sum(depth(node) >= 3 for node in trees), count, chance).pvalue > UNLIKELY


def test_lengths_values_and_depths_are_those_of_trees_that_are_kept_where_their_length_fits():
    """Against an own sampler of the rules, with other random numbers."""
    generator, drawn = random.Random(1), []

    def node(level):
        if level == 5 or generator.random() > 0.25:
            return generator.randrange(10), 1
        arguments = [node(level + 1) for _ in range(generator.randint(2, 10))]
        operator = ("[MIN", "[MAX", "[MED", "[SM")[generator.randrange(4)]
        return [operator, *(one for one, _ in arguments)], 2 + sum(length for _, length in arguments)

    while len(drawn) < 150:
        one = node(1)
        if 30 < one[1] < 129:
            drawn.append(one)
    mine = [read(tokens) for tokens in opened(max_depth=5).batch("test", range(300)).tokens.tolist()]
    for seen in (lambda one: one[1], lambda one: depth(one[0]), lambda one: evaluated(one[0])):
        both = [seen(one) for one in mine], [seen(one) for one in drawn]
        assert stats.ks_2samp(*both, method="asymp").pvalue > UNLIKELY


def test_examples_are_the_same_for_ever():
    """In every process, whatever Python hashes with there."""
    batch = opened(seed=4).batch("test", range(50))
    found = hashlib.sha256(b"".join(part.numpy().tobytes() for part in batch)).hexdigest()
    assert found[:16] == "da6ec900f064cb9e"
    assert np.array_equal(opened(seed=4).batch("test", [7]).tokens[0], batch.tokens[7])
