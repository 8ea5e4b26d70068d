"""Intervals over what is independent: simulated errors whose truth is known, and how often an interval covers it."""

import numpy as np
from cells import said

from bench import measures

HEADS, TRIES = 12, 1000


def covered(name, metric, truth, errors):
    """The share of tries in which the interval of a metric covers its truth; `errors` has a table for each."""
    hits = 0
    for table, sequences in errors:
        measured = dict.fromkeys(("absolute", "relative", "exact_norm", "kernel_error", "sketch_error"), table)
        measured |= dict.fromkeys(("kernel_expected", "sketch_expected", "smallest_weight", "negative_share"))
        found = said(name, {**measured, "sequences": sequences})[metric]
        hits += found.low <= truth <= found.high
    return hits / TRIES


def tables(seed, sequences, draws, *, of_head=0.0, of_sequence=0.0, of_draw=0.0, of_entry=0.1, fixed=False):
    """Errors around 10 with effects of these sizes; heads are always the same, sequences only where they are fixed."""
    heads = np.linspace(-of_head, of_head, HEADS)
    given = np.linspace(-of_sequence, of_sequence, sequences)[:, None, None]
    generator = np.random.default_rng(seed)
    for _ in range(TRIES):
        drawn = of_sequence * generator.normal(size=(sequences, 1, 1))
        noise = of_draw * generator.normal(size=(sequences, draws, 1))
        noise = noise + of_entry * generator.normal(size=(sequences, draws, HEADS))
        yield (10 + heads + (given if fixed else drawn) + noise).reshape(-1, HEADS).tolist(), sequences


def test_spectral_norms_are_replicated_by_sequences():
    """Heads differ, and always will; they share a draw, and draws share a sequence."""
    errors = tables(0, 8, 4, of_head=5.0, of_sequence=0.5, of_draw=1.0)
    # Four binomial standard errors of 0.7 % around 95 %.
    assert 0.922 <= covered("spectral_norm", "absolute", 10, errors) <= 0.978


def test_errors_of_sketches_are_replicated_by_draws_of_the_sequences_that_are_given():
    errors = tables(1, 2, 4, of_head=2.0, of_sequence=2.0, of_draw=1.0, fixed=True)
    mean_square = 10**2 + 1.0**2 + 0.1**2 + np.square(np.linspace(-2, 2, HEADS)).mean() + 2.0**2
    assert 0.922 <= covered("sketch_error", "kernel_error", mean_square**0.5, errors) <= 0.978


def test_who_times_says_that_its_intervals_are_over_rounds():
    for benchmark in map(measures.get, measures.list_benchmarks()):
        assert benchmark.timed == (benchmark.replicates == "rounds"), benchmark.name
