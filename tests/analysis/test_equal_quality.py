"""The shortest length at which a step is faster than softmax's and the loss as good is the planted one."""

import functools
import math

import numpy as np
import pandas as pd
import pytest
from drawn import caption, changed, marked
from synthetic_quality import runs, timed
from synthetic_records import train_step, under

from analysis.controls import compared, losses
from analysis.equal_quality import table
from analysis.frame import tidy
from analysis.paired import verdicts
from analysis.plots import equal_quality
from analysis.selection import MissingRecords
from analysis.training import panels, trained_cells

LENGTHS = (128, 256)
LOSSES = {"softmax": 1.9, "local": 2.0, "identity": 2.4, "performer": 1.9}
# By synthetic_records' model a step of performer takes so much longer than flash's.
SAME = {n: (0.5 + 3 * n / 1024) / 9 for n in LENGTHS}


@functools.cache
def trained(n, performer=1.9, local=2.0, **changes):
    return tidy(runs(LOSSES | {"performer": performer, "local": local}, seq_len=n, text="sympy", **changes))


def frame(faster=(), good=LENGTHS, untimed=(), **changes):
    """Performer's step is twice as fast as the best softmax's at some lengths, else half; its loss is softmax's."""
    parts = [trained(n, 1.9 if n in good else 2.05, **changes) for n in LENGTHS]
    factors = {n: SAME[n] * (0.5 if n in faster else 2) for n in LENGTHS if n not in untimed}
    steps = [timed(("softmax", "flash", "performer"), n, {"performer": factor}) for n, factor in factors.items()]
    return pd.concat([*parts, tidy(steps)], ignore_index=True)


def answer(frame):
    rows = table(frame)
    (said,) = set(rows.loc[rows["attention"] == "performer", "equal from"])
    return said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"faster": LENGTHS}, "128"),
        ({"faster": (256,)}, "256"),
        ({"faster": LENGTHS, "good": (256,)}, "256"),
        ({"faster": (128,), "good": (256,)}, "none up to n = 256"),
        ({"faster": (256,), "untimed": (128,)}, "256 (unknown at 128)"),
        ({"faster": (128,), "untimed": (256,)}, "128 (unknown at 256)"),
        ({"faster": LENGTHS, "good": (128,)}, "128 (not at 256)"),
        ({"faster": (), "untimed": (256,)}, "unknown at n = 256"),
        ({"faster": (), "untimed": LENGTHS, "good": ()}, "none up to n = 256"),
    ],
)
def test_the_answer_is_the_planted_length(changes, said):
    assert answer(frame(**changes)) == said


@pytest.mark.parametrize(("faster", "said"), [((), "none up to n = 256"), ((256,), "unknown at n = 256")])
def test_where_a_mechanism_was_not_trained_its_step_may_be_an_answer(faster, said):
    found = frame(faster)
    is_missing = (found["bench"] == "train") & (found["attention"] == "performer") & (found["seq_len"] == 256)
    assert answer(found[~is_missing]) == said


def test_what_nobody_can_tell_is_unknown():
    for changes in ({"seeds": 4}, {"local": 1.9}):
        assert answer(frame(LENGTHS, **changes)) == "unknown at n = 128 and 256"
    with pytest.raises(MissingRecords, match="losses by unit"):
        table(tidy([timed(("softmax", "performer"), 128), *runs({"performer": 1.9}, seq_len=128)]))


def test_an_undecided_loss_is_unknown_where_the_step_is_faster():
    row = performers(timed(("flash", "performer"), 128, {"performer": SAME[128] / 2}), noise=0.03)
    assert (row["step"], row["loss is"], row["equal from"]) == ("faster", "undecided", "unknown at n = 128")


def test_the_best_softmax_is_the_one_of_the_same_rounds():
    """Slower than flash, which is the best, though it is faster than softmax."""
    rows = table(frame())
    own = rows[rows["attention"] == "performer"]
    assert own["speed"].tolist() == pytest.approx([0.5] * 2, rel=0.05) and set(own["timed"]) == {"interleaved"}
    assert (own["speed low"] < own["speed"]).all() and (own["speed"] < own["speed high"]).all()


def test_a_step_of_another_batch_or_text_is_no_step_of_this_model():
    for other in ({"batch_size": 2}, {"settings": {"text": "kjv"}}, {"layers": 12}):
        assert performers(timed(("flash", "performer"), 128, **other))["equal from"] == "unknown at n = 128"


def test_polynomial_attention_is_no_softmax():
    """Though it is exact, it is compared with softmax, and nothing is compared with it."""
    known = LOSSES | {"polynomial_p4": 1.9}
    factors = {"polynomial_p4": 0.01, "performer": SAME[128]}
    steps = timed(("softmax", "flash", "polynomial_p4", "performer"), 128, factors)
    rows = table(tidy([*runs(known, seq_len=128, text="sympy"), steps])).set_index("attention")
    assert rows.loc["performer", "speed"] == pytest.approx(1, rel=0.05)
    assert rows.loc["polynomial_p4", ["step", "equal from"]].tolist() == ["faster", "128"]


def test_losses_are_corrected_for_all_lengths_of_a_task():
    found = [one for n in LENGTHS for one in runs(LOSSES | {"performer": 1.965}, noise=0.03, seq_len=n, text="sympy")]
    data, _ = trained_cells(tidy(found))
    by_length = {n: losses(rows) for (_, n), rows in panels(data)}
    names = ("identity", "local", "performer")
    every = {(n, name): compared(own[name], own["softmax"]) for n, own in by_length.items() for name in names}
    words = dict(zip(every, verdicts(every.values()), strict=True))
    for row in table(tidy(found)).to_dict("records"):
        key = row["n"], row["attention"]
        assert row["loss is"] == words[key][1], key
    for_each = {n: verdicts(every[n, name] for name in names) for n in LENGTHS}
    assert any(for_each[n][i][1] != words[n, name][1] for n in LENGTHS for i, name in enumerate(names))


def apart(label, ms, n=128, text="sympy", **fields):
    """A cell of its own: steps of so many ms, each a little less or more; that of runs has 64 sequences."""
    one = train_step(label, n, np.random.default_rng(0), tokens=64 * n, settings={"text": text})
    samples = (1e6 * ms * np.linspace(0.99, 1.01, 21)).tolist()
    parts = one.measurements["parts"] | {"step": {**one.measurements["parts"]["step"], "samples": samples}}
    return changed(one, measurements={"parts": parts}, **fields)


def performers(*steps, **changes):
    rows = table(pd.concat([trained(128, **changes), tidy(steps)], ignore_index=True))
    (row,) = rows[rows["attention"] == "performer"].to_dict("records")
    return row


@pytest.mark.parametrize(("ms", "step", "said"), [(2, "faster", "128"), (8, "slower", "none up to n = 128")])
def test_steps_of_cells_of_their_own_are_compared_minutes_apart(ms, step, said):
    """Where none were in the same rounds: with the fastest exact softmax, which is not the first."""
    row = performers(apart("softmax", 9), apart("flash", 4), apart("performer", ms))
    assert (row["timed"], row["step"], row["equal from"]) == ("minutes apart", step, said)
    assert row["speed"] == pytest.approx(4 / ms) and row["speed low"] < row["speed"] < row["speed high"]
    # At worst the slow end of one and the fast end of the other: wider than either interval by itself.
    ends = tidy([apart("flash", 4), apart("performer", ms)]).query("metric == 'step_time'").set_index("attention")
    low, high = ends["low"], ends["high"]
    expected = low["flash"] / high["performer"], high["flash"] / low["performer"]
    assert (row["speed low"], row["speed high"]) == pytest.approx(expected)
    assert low["flash"] / low["performer"] > row["speed low"]


@pytest.mark.parametrize("ms", [2.8, 3.9, 5.5])
def test_steps_apart_are_undecided_within_what_a_machine_drifts(ms):
    row = performers(apart("flash", 4), apart("performer", ms))
    assert row["step"] == "undecided" and row["equal from"] == "unknown at n = 128"


def test_steps_hours_apart_are_undecided():
    late = apart("performer", 1, ended="2026-07-31T16:00:00+00:00")
    row = performers(apart("flash", 4, ended="2026-07-31T12:00:00+00:00"), late)
    assert (row["timed"], row["step"]) == ("hours apart", "undecided") and row["speed"] == pytest.approx(4)


def test_the_same_rounds_say_more_than_cells_apart():
    rounds = timed(("flash", "performer"), 128, {"performer": SAME[128] * 2})
    cells = [apart("flash", 4), apart("performer", 2)]
    for steps in ([rounds, *cells], [*cells, rounds]):
        row = performers(*steps)
        assert row["timed"] == "interleaved" and row["step"] == "slower"


def test_apart_the_newest_cell_of_the_same_text_counts():
    old = apart("performer", 2, ended="2025-01-01T00:00:00+00:00", cell_id="0" * 64)
    row = performers(old, apart("flash", 4), apart("performer", 8))
    assert row["speed"] == pytest.approx(0.5)
    assert math.isnan(performers(apart("flash", 4, text="kjv"), apart("performer", 2))["speed"])
    assert math.isnan(performers(apart("flash", 4, n=256), apart("performer", 2))["speed"])


def test_captions_say_whether_steps_were_minutes_apart():
    cells, rounds = [apart("flash", 4), apart("performer", 2)], [timed(("flash", "performer"), 128)]
    for steps, is_said in ((cells, True), (rounds, False)):
        text = caption(equal_quality.figure(pd.concat([trained(128), tidy(steps)], ignore_index=True)))
        assert ("or of cells minutes apart" in text) == is_said


def test_captions_say_where_steps_were_timed_if_not_where_models_were_trained():
    here = frame()
    assert "Steps were timed on" not in caption(equal_quality.figure(here))
    elsewhere = here.assign(threads=here["threads"].where(here["bench"] == "train", 7))
    assert "Steps were timed on" in (said := caption(equal_quality.figure(elsewhere))) and "7 threads" in said


def test_a_disturbed_step_disturbs_its_row_and_so_does_softmax():
    for loud in range(2):
        steps = [apart("flash", 4), apart("performer", 2)]
        steps[loud] = under(steps[loud], "other processes: 2 cores")
        assert performers(*steps)["disturbed"] == "other processes: 2 cores"


def test_the_figure_fills_the_marks_of_the_planted_lengths_and_names_the_shortest():
    (axes,) = equal_quality.figure(frame((256,))).axes[2:]
    answers = [line for line in marked(axes, "answer") if line.get_label() == "performer"]
    assert [line.get_xdata()[0] for line in answers if line.get_markerfacecolor() != "white"] == [256]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert "performer\n256" in names and "identity\nnone up to n = 256" in names


def test_a_task_of_which_no_step_was_timed_is_not_drawn():
    untimed = tidy(runs(LOSSES, text="kjv"))
    figure = equal_quality.figure(pd.concat([frame(), untimed], ignore_index=True))
    assert {axes.get_title() for axes in figure.axes} == {"language modelling, sympy"} and "kjv" not in figure.caption
    with pytest.raises(MissingRecords, match="needs bench=compare_train_step"):
        equal_quality.figure(untimed)


def test_a_step_of_another_optimizer_is_no_step_of_this_model():
    muon = apart("flash", 400, config={"training": {"optimizer": "muon"}}, ended="2099-01-01T00:00:00+00:00")
    assert performers(apart("flash", 4), apart("performer", 2), muon)["speed"] == pytest.approx(2, abs=0.1)
