"""The shortest length at which a step is faster than softmax's and the loss as good is the planted one."""

import pytest
from drawn import marked
from synthetic_quality import runs, timed

from analysis.equal_quality import table
from analysis.frame import tidy
from analysis.plots import equal_quality
from analysis.selection import MissingRecords

LENGTHS = (128, 256, 512)
LOSSES = {"softmax": 1.9, "local": 2.0, "identity": 2.4, "performer": 1.9}
# By synthetic_records' model a step of performer takes so much longer than flash's.
SAME = {n: (0.5 + 3 * n / 1024) / 9 for n in LENGTHS}


def records(faster=(), good=LENGTHS, losses=LOSSES, untimed=(), **changes):
    """Performer's step is twice as fast as the best softmax's at some lengths, else half; its loss is softmax's."""
    found = []
    for n in LENGTHS:
        own = losses if n in good else losses | {"performer": 2.05}
        found += runs(own, seq_len=n, text="sympy", **changes)
        factor = SAME[n] * (0.5 if n in faster else 2)
        found += [timed(("softmax", "flash", "performer"), n, {"performer": factor})] * (n not in untimed)
    return found


def answer(found):
    rows = table(tidy(found))
    (said,) = set(rows.loc[rows["attention"] == "performer", "equal from"])
    return said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"faster": LENGTHS}, "128"),
        ({"faster": (256, 512)}, "256"),
        ({"faster": LENGTHS, "good": (512,)}, "512"),
        ({"faster": (128, 256), "good": (512,)}, "none up to n = 512"),
        ({}, "none up to n = 512"),
        ({"faster": (512,), "untimed": (256,)}, "512 (unknown at 256)"),
        ({"faster": (), "untimed": (512,)}, "unknown at n = 512"),
        ({"faster": (), "untimed": LENGTHS, "good": ()}, "none up to n = 512"),
    ],
)
def test_the_answer_is_the_planted_length(changes, said):
    assert answer(records(**changes)) == said


def test_what_nobody_can_tell_is_unknown():
    assert answer(records(LENGTHS, seeds=4)) == "unknown at n = 128 and 256 and 512"
    blind = LOSSES | {"local": 1.9}
    assert answer(records(LENGTHS, losses=blind)) == "unknown at n = 128 and 256 and 512"
    with pytest.raises(MissingRecords, match="losses by unit"):
        table(tidy([timed(("softmax", "performer"), 128), *runs({"performer": 1.9}, seq_len=128)]))


def test_the_best_softmax_is_the_one_of_the_same_rounds():
    """Slower than flash, which is the best, though it is faster than softmax."""
    rows = table(tidy(records()))
    own = rows[rows["attention"] == "performer"]
    assert own["speed"].tolist() == pytest.approx([0.5] * 3, rel=0.05) and set(own["timed"]) == {"interleaved"}
    assert (own["speed low"] < own["speed"]).all() and (own["speed"] < own["speed high"]).all()


def test_a_step_of_another_batch_or_text_is_no_step_of_this_model():
    for other in ({"batch_size": 2}, {"settings": {"text": "kjv"}}, {"layers": 12}):
        found = [*runs(LOSSES, seq_len=128, text="sympy"), timed(("flash", "performer"), 128, **other)]
        assert answer(found) == "unknown at n = 128"


def test_the_figure_fills_the_marks_of_the_planted_lengths_and_names_the_shortest():
    frame = tidy(records((256, 512)))
    figure = equal_quality.figure(frame)
    answers = [line for line in marked(figure.axes[2], "answer") if line.get_label() == "performer"]
    filled = [line.get_xdata()[0] for line in answers if line.get_markerfacecolor() != "white"]
    assert filled == [256, 512]
    names = [text.get_text() for text in figure.axes[2].get_yticklabels()]
    assert "performer\n256" in names and "identity\nnone up to n = 512" in names
