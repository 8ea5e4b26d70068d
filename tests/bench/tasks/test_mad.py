"""MAD's tasks: each rule restated literally, a token at a time, and the exact statistics of what is drawn."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bench.tasks import IGNORED, open_task
from bench.tasks.base import Draws

UNLIKELY = 1e-4


def generated(name, seq_len, seed=0, **changes):
    config = {"task": {"name": name, **changes}, "seq_len": seq_len, "causal": True, "seed": seed}
    return open_task(config, Path("nowhere"))


def examples(task, count, split="test"):
    tokens, targets, _ = task.batch(split, range(count))
    return zip(tokens.tolist(), targets.tolist(), strict=True)


def first_answers(task, count):
    """One answer of each example: those of one example need not be independent."""
    rows = (targets for _, targets in examples(task, count, "train"))
    return [next(target for target in row if target != IGNORED) for row in rows]


# --- noisy recall


def noisy(draws, seq_len, vocabulary, noise_tokens, noise):
    """As MAD's loop: a dictionary that grows, slot by slot, from the same numbers."""
    slots, rest = seq_len // 2, vocabulary - noise_tokens
    chances = draws.uniform(slots - 1).tolist()
    (never,) = draws.integers(slots - 1, 1).tolist()
    keys = draws.integers(rest // 2, slots).tolist()
    values = draws.integers(rest - rest // 2, rest // 2).tolist()
    noises = []
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


def test_noisy_recall_can_be_answered_and_asks_at_every_key_that_comes_again():
    rest = 16
    for tokens, targets in examples(generated("noisy_recall", 64), 200):
        known = {}
        for place in range(0, 64, 2):
            key, value = tokens[place : place + 2]
            assert targets[place + 1] == IGNORED
            if key >= rest:
                assert value >= rest and targets[place] == IGNORED and place < 62
                continue
            assert key < rest // 2 <= value < rest
            assert targets[place] == known.get(key, IGNORED)
            assert known.setdefault(key, value) == value
        assert targets[62] == known[tokens[62]]


def test_noise_keys_and_values_of_noisy_recall_are_as_mad_says():
    count, slots = 4000, 8
    tokens = generated("noisy_recall", 2 * slots, vocabulary=12, noise_tokens=4).batch("train", range(count))[0].numpy()
    # A slot is noise with chance 0.2, unless it is the one of seven that never is.
    is_noise = tokens[:, 0:-2:2] >= 8
    chance = 0.2 * 6 / 7
    for column in is_noise.T:
        assert stats.binomtest(int(column.sum()), count, chance).pvalue > UNLIKELY
    assert stats.chisquare(np.bincount(tokens[:, 0][~is_noise[:, 0]], minlength=4)).pvalue > UNLIKELY
    assert stats.chisquare(np.bincount(tokens[:, 1][~is_noise[:, 0]], minlength=8)[4:]).pvalue > UNLIKELY
    noise = tokens[:, :-2].reshape(-1, 2)[is_noise.reshape(-1)]
    pairs = Counter(map(tuple, noise.tolist()))
    assert len(pairs) == 16 and stats.chisquare(list(pairs.values())).pvalue > UNLIKELY


def test_two_keys_of_noisy_recall_may_have_one_value_and_the_last_key_is_any_that_came():
    same, last = 0, Counter()
    for tokens, _ in examples(generated("noisy_recall", 6, vocabulary=8, noise_tokens=1, noise=0.0), 6000):
        first, second = tokens[0::2][:2]
        if first != second:
            same += tokens[1] == tokens[3]
            last[tokens[4] == first] += 1
    assert set(last) == {True, False} and stats.binomtest(last[True], sum(last.values())).pvalue > UNLIKELY
    assert stats.binomtest(same, sum(last.values()), 1 / 4).pvalue > UNLIKELY


# --- fuzzy recall


def fuzzy(draws, seq_len, vocabulary, key_tokens, value_tokens):
    """As MAD's loop, pair by pair, from the same numbers."""
    of_keys, of_values = range((vocabulary - 1) // 2), range((vocabulary - 1) // 2, vocabulary - 1)
    count = seq_len // 2 + 1

    def motifs(tokens, longest):
        sizes = (1 + draws.integers(longest, count)).tolist()
        motifs = []
        numbers = draws.uniform(count * len(tokens)).tolist()
        for i, size in enumerate(sizes):
            of_this = numbers[i * len(tokens) : (i + 1) * len(tokens)]
            motifs.append([tokens[j] for j in sorted(range(len(tokens)), key=of_this.__getitem__)[:size]])
        return motifs

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
    for index, drawn in enumerate(examples(task, 200)):
        assert drawn == fuzzy(Draws(0, "test", index), seq_len, **sizes)


def split_pairs(tokens, first_value, padding):
    """Keys and values of what is read: every run of tokens of keys, and the run of values behind it."""
    read = [token for token in tokens if token != padding]
    runs = [tuple(run) for _, run in itertools.groupby(read, lambda token: token >= first_value)]
    return [*zip(runs[0::2], runs[1::2], strict=True)]


def test_fuzzy_recall_can_be_answered_from_what_was_read():
    for tokens, targets in examples(generated("fuzzy_recall", 96), 300):
        spare = tokens.count(15)
        assert tokens[:spare] == [15] * spare and spare < 6
        known, place = {}, spare
        for key, value in split_pairs(tokens, 7, 15):
            assert len(set(key)) == len(key) <= 3 and len(set(value)) == len(value) <= 3
            expected = value if key in known else (IGNORED,) * len(value)
            asked = targets[place + len(key) - 1 : place + len(key) + len(value) - 1]
            assert tuple(asked) == expected and known.setdefault(key, value) == value
            place += len(key) + len(value)
        assert sum(target != IGNORED for target in targets[-7:]) >= 1


def test_sizes_and_tokens_of_fuzzy_recall_are_as_mad_says():
    # The first pair is the probe or one drawn; either is of uniform sizes and orders.
    firsts = [split_pairs(tokens, 7, 15)[0] for tokens, _ in examples(generated("fuzzy_recall", 60), 6000)]
    for motifs, low, half in (([key for key, _ in firsts], 0, 7), ([value for _, value in firsts], 7, 8)):
        sizes = np.bincount([len(motif) for motif in motifs], minlength=4)[1:]
        assert stats.chisquare(sizes).pvalue > UNLIKELY
        for size in (1, 2):
            seen = Counter(motif for motif in motifs if len(motif) == size)
            assert set(seen) == set(itertools.permutations(range(low, low + half), size))
            assert stats.chisquare(list(seen.values())).pvalue > UNLIKELY


def test_the_pair_drawn_first_ends_the_sequence_and_stands_anywhere_before():
    places = []
    for tokens, _ in examples(generated("fuzzy_recall", 96, vocabulary=64), 2000):
        pairs = split_pairs(tokens, 31, 63)
        assert pairs[-1] in pairs[:-1]
        places.append(pairs.index(pairs[-1]) / (len(pairs) - 2))
    # It begins where a pair ends, so its place is uniform but for the length of a pair.
    assert stats.kstest(places, "uniform").statistic < 0.07


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


@pytest.mark.parametrize(
    ("name", "seq_len", "changes", "answers"),
    [
        ("noisy_recall", 32, {}, 8),
        ("fuzzy_recall", 48, {}, 8),
        ("compression", 16, {}, 15),
        ("memorisation", 32, {"vocabulary": 24, "examples": None}, 11),
    ],
)
def test_without_the_key_every_answer_is_as_likely(name, seq_len, changes, answers):
    changes = {"examples": None, **changes}
    seen = Counter(first_answers(generated(name, seq_len, **changes), 4000))
    assert len(seen) == answers and stats.chisquare(list(seen.values())).pvalue > UNLIKELY
    shares = np.array([*seen.values()]) / 4000
    assert -(shares * np.log(shares)).sum() == pytest.approx(math.log(answers), abs=0.01)


def test_the_examples_of_mad_end():
    sizes = {name: generated(name, 32).size("train") for name in ("noisy_recall", "fuzzy_recall", "compression")}
    assert set(sizes.values()) == {12800} and generated("memorisation", 32).size("train") == 256
    assert generated("noisy_recall", 32).size("test") is None
