"""What is said of language models, of planted records."""

import re

import pandas as pd
import pytest
from synthetic_quality import HYBRID, hybrid, run, runs, timed

from analysis.attribution import ALONE, attributions
from analysis.frame import tidy
from analysis.training import trained_cells
from tools.pages import language


def test_a_speed_whose_interval_contains_1_is_called_a_tie():
    step = pd.Series({"speed": 1.04, "speed low": 0.99, "speed high": 1.06, "timed": "interleaved"})
    assert language.speed(step) == "1.04x (0.99 to 1.06, tie)"
    assert language.speed(step.replace(0.99, 1.01)) == "1.04x (1.01 to 1.06)"


def test_losses_of_each_length_stand_with_their_differences_to_controls_and_verdicts():
    planted = {64: {"softmax": 1.9, "identity": 2.4, "local": 2.3, "performer": 2.5}}
    planted[128] = planted[64] | {"performer": 2.2}
    frame = tidy([one for n, losses in planted.items() for one in runs(losses, seq_len=n)])
    for n, word in ((64, "worse"), (128, "better")):
        table = language.losses(frame, n)
        assert list(table.index)[:: len(table) - 1] == ["softmax", "performer" if n == 64 else "identity"]
        said = table.loc["performer", "minus `identity`"]
        assert float(said.split(" (")[0]) == pytest.approx(planted[n]["performer"] - 2.4, abs=0.02)
        assert said.endswith(f"), {word}")
    pd.testing.assert_frame_equal(language.losses(frame), language.losses(frame, 64))


def test_branches_of_models_with_different_rates_are_compared_at_one_too():
    """At its own rate the hybrid gains 0.3 nats over both branches, at the one that all had nothing."""
    usual = hybrid(0.0, 0.0, base=2.4)
    faster = [run(HYBRID, seed, 2.1, without={"sketch": 2.4, "window": 2.4}, learning_rate=3e-3) for seed in range(5)]
    for records, words in ((usual, ["earns nothing"] * 2), ([*usual, *faster], ["earns"] * 2 + ["earns nothing"] * 2)):
        frame = tidy(records)
        rows = [line.split("|")[1:-1] for line in language.branches(frame).splitlines()[2:]]
        alone = [row for row in rows if ALONE in row[3]]
        assert [row[4].strip(" )").split(", ")[1] for row in alone] == words
        assert [row[3].strip() for row in alone[2:]] == [f"{ALONE}, all at a rate of 0.001"] * (len(words) - 2)
        (one,) = attributions(data := trained_cells(frame)[0])
        said = language.alone(one, frame, data)
        assert "block of softmax" not in said, "it was not trained"
        assert re.findall(r"[+-]0\.\d\d \(.*?, ([a-z ]+)\)", said) == words


def test_a_hybrid_is_compared_with_a_block_of_softmax_at_each_length_and_at_the_common_rate():
    """At its own rate it equals the block, at the one that all had and at a longer context it is worse."""
    slow = [*hybrid(0.3, 0.0, base=2.4), *runs({"local": 2.0})]
    without = {"sketch": 2.4, "window": 2.4}
    fast = [run(HYBRID, seed, 2.0, without=without, learning_rate=3e-3) for seed in range(5)]
    longer = runs({HYBRID: 2.2, "local": 2.0, "softmax": 1.9}, seq_len=128)
    data = trained_cells(frame := tidy([*slow, *fast, *longer]))[0]
    (one,) = (each for each in attributions(data) if each.n == 64)
    said = language.alone(one, frame, data[data["seq_len"] == 64]).partition("(`local`): ")[2]
    words, numbers = zip(*re.findall(r"(n = [^+-]*) ([+-]\d\.\d{3}) ", said), strict=True)
    assert words == ("n = 64", "n = 128", "n = 64 at 0.001")
    assert [float(number) for number in numbers] == pytest.approx([0.0, 0.2, 0.1], abs=0.01)


def test_of_what_is_faster_a_control_is_one_wherever_it_was_trained():
    """Of the window at 128 only the time is known: it is a control all the same, and nothing is undecided."""
    short = runs({"softmax": 1.9, "identity": 2.4, "local": 2.3}, text="sympy")
    longer = runs({"softmax": 1.9, "identity": 2.4}, seq_len=128, text="sympy")
    steps = timed(("softmax", "local"), 128, {"local": 0.1})
    said = language.faster(tidy([*short, *longer, steps]))
    assert "at n = 128: 1 controls; of these with" in said and said.endswith("csv): `local` not trained there.")


def test_models_trained_on_shorter_contexts_are_tested_beside_those_trained_on_longer_ones():
    shorter, longer = {"softmax": 1.9, "local": 2.0, "identity": 2.4}, {"softmax": 1.8, "local": 2.1, "identity": 2.5}
    tested = {"softmax": 1.85, "local": 1.95, "identity": 2.4}
    short = [run(of, seed, shorter[of], longer={128: tested[of]}) for of in shorter for seed in range(5)]
    rows = language.by_length(tidy([*short, *runs(longer, seq_len=128)])).splitlines()[2:]
    numbers = [float(one) for row in rows for one in re.findall(r"([+-]\d\.\d{3}) \(", row)]
    # The lead at 128 minus that at 64, at 128 the lead of both trained at 64, and of one trained at 128.
    assert numbers == pytest.approx([-0.2, -0.1, -0.15, -0.05, 0.15, 0.1], abs=0.02), rows
    assert [re.findall(r"`(\w+)`", row) for row in rows[3:]] == [["softmax"], ["local"], ["identity"]]
    (row,) = language.by_length(tidy([*runs(shorter), *runs(longer, seq_len=128)])).splitlines()[2:]
    assert "minus 64" in row, "not tested on the longer context"


def test_models_that_were_trained_on_more_sequences_a_step_have_columns_of_their_own():
    losses = {512: {"softmax": 1.9, "local": 2.0}, 1024: {"softmax": 1.8, "local": 2.0}}
    more = {n: {"softmax": own["softmax"] - 0.1, "local": 1.9} for n, own in losses.items()}
    frame, longer = (tidy([one for n, of in every.items() for one in runs(of, seq_len=n)]) for every in (losses, more))
    longer = longer.assign(batch_size=8)
    head, _, lead = language.by_length(frame, longer).splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-1]] == [
        *("64 x 512, 64 x 1,024", "64 x 512, 8 x 1,024", "8 x 512, 8 x 1,024")
    ]
    grows = [float(cell.split(" (")[0]) for cell in lead.split("|")[2:-1]]
    assert grows == pytest.approx([-0.1, -0.1, -0.1], abs=0.02)
    of_longer = tidy(runs(more[1024], seq_len=1024)).assign(batch_size=8)
    head, *_ = language.by_length(frame, of_longer).splitlines()
    assert "| 8 x 512" not in head and "64 x 512, 8 x 1,024" in head
