"""MAD's tasks: each rule restated literally, a token at a time, and the exact statistics of what is drawn."""

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy import stats
from test_generated_tasks import UNLIKELY, examples, generated

from bench.tasks import IGNORED
from bench.tasks.base import Draws

# --- noisy recall


def noisy(draws, seq_len, vocabulary, noise_tokens, noise):
    """As MAD's loop: a dictionary that grows, slot by slot, from the same independent numbers."""
    slots, rest = seq_len // 2, vocabulary - noise_tokens
    chances = draws.uniform(slots - 1).tolist()
    (never,) = draws.integers(slots - 1, 1).tolist()
    keys = draws.integers(rest // 2, slots).tolist()
    values = draws.integers(rest - rest // 2, rest // 2).tolist()
    known, inputs, targets = {}, [], []
    kept = [i == never or chances[i] >= noise for i in range(slots - 1)]
    came = sorted({keys[i] for i in range(slots - 1) if kept[i]})
    (last,) = draws.integers(len(came), 1).tolist()
    noises = draws.integers(noise_tokens, 2 * slots).tolist()
    for i in range(slots):
        if i < slots - 1 and not kept[i]:
            inputs += [rest + noises[2 * i], rest + noises[2 * i + 1]]
            targets += [IGNORED, IGNORED]
            continue
        key = keys[i] if i < slots - 1 else came[last]
        asked = key in known
        value = known.setdefault(key, rest // 2 + values[key])
        inputs += [key, value]
        targets += [value if asked else IGNORED, IGNORED]
    return inputs, targets


@pytest.mark.parametrize(
    ("seq_len", "vocabulary", "noise_tokens", "noise"), [(128, 32, 16, 0.2), (128, 9, 2, 0.8), (4, 6, 2, 0.0)]
)
def test_noisy_recall_is_the_loop_with_a_dictionary(seq_len, vocabulary, noise_tokens, noise):
    sizes = {"vocabulary": vocabulary, "noise_tokens": noise_tokens, "noise": noise}
    task = generated("noisy_recall", seq_len, **sizes)
    assert (task.vocabulary, task.causal) == (vocabulary, True)
    for index, drawn in enumerate(examples(task, 100)):
        assert drawn == noisy(Draws(0, "test", index), seq_len, **sizes)


# --- fuzzy recall


def fuzzy(draws, seq_len, vocabulary, key_tokens, value_tokens):
    """As MAD's loop, pair by pair, from the same independent numbers."""
    of_keys, of_values = range((vocabulary - 1) // 2), range((vocabulary - 1) // 2, vocabulary - 1)
    count = seq_len // 2 + 1

    def motifs(tokens, longest):
        sizes = (1 + draws.integers(longest, count)).tolist()
        orders = draws.uniform(count * len(tokens)).reshape(count, -1).argsort(1).tolist()
        return [[tokens[j] for j in order[:size]] for order, size in zip(orders, sizes, strict=True)]

    keys, values = motifs(of_keys, key_tokens), motifs(of_values, value_tokens)
    probe = keys.pop(0) + values.pop(0)
    probe_key = probe[: sum(token in of_keys for token in probe)]
    (place,) = draws.integers(max(1, seq_len - 2 * len(probe)), 1).tolist()
    inputs, targets, known = [], [], {str(probe_key): probe[len(probe_key) :]}
    presented = []

    def write(key):
        value = known[str(key)]
        inputs.extend(key + value)
        targets.extend([IGNORED] * len(key) + (value if key in presented else [IGNORED] * len(value)))
        presented.append(key)

    while True:
        if probe_key not in presented and len(inputs) >= place:
            write(probe_key)
        room = seq_len - len(inputs) - len(probe) - (0 if probe_key in presented else len(probe))
        if room < key_tokens + value_tokens:
            break
        key, value = keys.pop(0), values.pop(0)
        known.setdefault(str(key), value)
        write(key)
    if probe_key not in presented:
        write(probe_key)
    write(probe_key)
    padding = seq_len - len(inputs)
    # The logits at a token name the next one.
    shifted = [*([IGNORED] * padding), *targets, IGNORED][1:]
    return [vocabulary - 1] * padding + inputs, shifted


@pytest.mark.parametrize(
    ("seq_len", "vocabulary", "key_tokens", "value_tokens"),
    [(128, 16, 3, 3), (12, 16, 3, 3), (64, 7, 2, 1), (65, 8, 3, 4), (4, 4, 1, 1)],
)
def test_fuzzy_recall_is_the_loop_with_a_dictionary(seq_len, vocabulary, key_tokens, value_tokens):
    sizes = {"vocabulary": vocabulary, "key_tokens": key_tokens, "value_tokens": value_tokens}
    task = generated("fuzzy_recall", seq_len, **sizes)
    assert (task.vocabulary, task.causal) == (vocabulary, True)
    for index, (tokens, targets) in enumerate(examples(task, 200)):
        assert (tokens, targets) == fuzzy(Draws(0, "test", index), seq_len, **sizes)
        # It can be answered from what was read: the last pair came before, and little is padding.
        assert targets[-2] == tokens[-1] and tokens.count(vocabulary - 1) < key_tokens + value_tokens


# --- compression and memorisation


@pytest.mark.parametrize(("seq_len", "vocabulary"), [(64, 16), (2, 4), (30, 5)])
def test_compression_names_the_first_half_at_the_markers(seq_len, vocabulary):
    task = generated("compression", seq_len, vocabulary=vocabulary)
    assert (task.vocabulary, task.causal) == (vocabulary, True)
    data = []
    for tokens, targets in examples(task, 500):
        half = seq_len // 2
        assert tokens[half:] == [vocabulary - 1] * half
        assert targets == [IGNORED] * half + tokens[:half]
        data += tokens[:half]
    assert max(data) == vocabulary - 2 and stats.chisquare(np.bincount(data)).pvalue > UNLIKELY


@pytest.mark.parametrize(("seq_len", "vocabulary"), [(32, 256), (2, 4), (64, 33)])
def test_memorisation_has_one_dictionary_for_all_examples(seq_len, vocabulary):
    keys, marker = (vocabulary - 1) // 2, vocabulary - 1
    known = {}
    for seed, split in itertools.product((0, 7), ("train", "validation", "test")):
        task = generated("memorisation", seq_len, seed=seed, vocabulary=vocabulary)
        assert (task.vocabulary, task.causal) == (vocabulary, True)
        for tokens, targets in examples(task, 200, split):
            assert tokens[1::2] == [marker] * (seq_len // 2) and targets[0::2] == [IGNORED] * (seq_len // 2)
            for key, value in zip(tokens[0::2], targets[1::2], strict=True):
                assert 0 <= key < keys <= value < marker and known.setdefault(key, value) == value
    assert len(known) == len(set(known.values())) == keys
    other = generated("memorisation", seq_len, vocabulary=vocabulary, dictionary=1)
    changed = [
        target != known[token]
        for tokens, targets in examples(other, 200)
        for token, target in zip(tokens[0::2], targets[1::2], strict=True)
    ]
    assert any(changed) or keys < 3


def test_the_dictionary_is_any_and_keys_are_uniform():
    values = Counter()
    for dictionary in range(2000):
        task = generated("memorisation", 40, vocabulary=7, dictionary=dictionary)
        tokens, targets = task.example("train", 0)
        values[tuple(dict(sorted(zip(tokens[0::2].tolist(), targets[1::2].tolist(), strict=True))).values())] += 1
    whole = {pair: count for pair, count in values.items() if len(pair) == 3}
    assert set(whole) == set(itertools.permutations(range(3, 6)))
    assert stats.chisquare(list(whole.values())).pvalue > UNLIKELY
    tokens = generated("memorisation", 32).batch("test", range(500)).tokens[:, 0::2].numpy()
    assert stats.chisquare(np.bincount(tokens.reshape(-1), minlength=127)).pvalue > UNLIKELY


# --- chance


@pytest.mark.parametrize(("name", "seq_len"), [("noisy_recall", 32), ("fuzzy_recall", 48)])
def test_without_the_key_every_answer_is_as_likely(name, seq_len):
    rows = (targets for _, targets in examples(generated(name, seq_len), 2000, "train"))
    # One of each example: those of one example need not be independent.
    seen = Counter(next(target for target in row if target != IGNORED) for row in rows)
    assert len(seen) == 8 and stats.chisquare(list(seen.values())).pvalue > UNLIKELY
