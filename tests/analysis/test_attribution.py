"""A hybrid's loss is attributed to the branch whose work it is, where the truth is planted."""

import dataclasses

import pytest
from drawn import caption, changed, panels, words
from synthetic_quality import ATTENTIONS, HYBRID, hybrid, runs
from synthetic_records import under

from analysis.attribution import ALONE, EARNS, NUMERATOR, REMOVED, USED, attributions, table
from analysis.frame import tidy
from analysis.paired import verdict, verdicts
from analysis.plots import attribution
from analysis.selection import MissingRecords
from analysis.training import trained_cells
from attention_zoo import create

SILENT = {"polysketch_learned_r64", "local_polynomial_norms"}


def only(records):
    (found,) = attributions(trained_cells(tidy(records))[0])
    return found


@pytest.mark.parametrize(
    ("window", "sketch", "owner", "is_alone"),
    [
        *((0.4, 0.0, "window", True), (0.0, 0.4, "sketch", True), (0, 0, "neither", True)),
        *((0.4, 0.0, "window", False), (0.2, 0.2, "both", False)),
    ],
)
def test_a_hybrid_is_the_work_of_the_branch_that_earns(window, sketch, owner, is_alone):
    """Whether its branches were trained alone or only removed."""
    records = [one for one in hybrid(window, sketch) if is_alone or one.config["label"] not in SILENT]
    found = only(records)
    assert found.owner == owner and found.hybrid == HYBRID
    for branch, worth in (("window", window), ("sketch", sketch)):
        assert found.of(branch).how == (ALONE if is_alone else REMOVED)
        assert found.of(branch).difference.value == pytest.approx(worth, abs=0.01)
    assert found.sentence.startswith(f"the window is worth {found.of('window').difference.value:.2f} [")
    assert ("by removal" in found.sentence) is not is_alone


def test_what_decides_is_the_other_branch_trained_alone():
    """A model may lean on a sketch that it could have done without."""
    records = hybrid(0.4, 0.0)
    for one in records:
        for found in [one.measurements.get("branches", {}).get("sketch")] if one.config["label"] == HYBRID else []:
            found["loss_by_unit"] = [loss + 0.5 for loss in found["loss_by_unit"]]
    found = only(records)
    by_how = {part.how: part.word for part in found.parts if part.branch == "sketch"}
    assert by_how[REMOVED] == "used" and by_how[ALONE] == "earns nothing" and found.owner == "window"


def test_verdicts_are_corrected_for_the_branches_of_the_hybrid():
    """Asked in another way is not asked again: p is at most twice what it is alone, and sometimes that decides."""
    decided = []
    for noise in (0.03, 0.04, 0.05, 0.06, 0.08):
        parts = only(hybrid(0.05, 0.05, noise=noise)).parts
        for part in parts:
            family = [one.difference for one in parts if one.how == part.how]
            p, word = verdicts(family)[family.index(part.difference)]
            words = EARNS if part.how == ALONE else USED
            assert p <= 2 * part.difference.p and part.word == words[word]
            decided.append(part.word != words[verdict(part.difference)])
    assert any(decided)


def test_a_branch_of_a_deeper_model_is_not_the_branch():
    records = [changed(one, {"model": {**one.config["model"], "layers": 3}}) if one.config["label"] in SILENT else one
               for one in hybrid(0.4, 0.0, seeds=2)]  # fmt: skip
    assert {part.how for part in only(records).parts} == {REMOVED, NUMERATOR}


def test_a_window_that_was_disturbed_disturbs_what_is_compared_with_it():
    records = [under(one, "other processes: 2 cores") if one.config["label"] == "local_polynomial_norms" else one
               for one in hybrid(0.4, 0.0, seeds=2)]  # fmt: skip
    rows = table(tidy(records))
    is_against = rows["against"] == "local_polynomial_norms"
    assert set(rows.loc[is_against, "disturbed"]) == {"other processes: 2 cores"}
    assert rows.loc[~is_against, "disturbed"].isna().all() and is_against.sum() == 1


def test_few_seeds_decide_nothing():
    assert only(hybrid(0.4, 0.0, seeds=3)).owner == "undecided"


@pytest.mark.parametrize(
    ("key", "value"),
    [("block_size", 32), ("degree", 2), ("bias", 0.5), ("scale", 0.5), ("separate_norms", False),
     ("qk_layernorm", False), ("sliding", True), ("weights", "softmax")],
)  # fmt: skip
def test_another_window_is_not_the_branch(key, value, monkeypatch):
    monkeypatch.setitem(ATTENTIONS["local_polynomial_norms"], key, value)
    partners = {part.against for part in only(hybrid(0.4, 0.0, seeds=2)).parts}
    assert partners == {"polysketch_learned_r64", HYBRID}


def test_the_window_of_a_hybrid_with_the_usual_block_size_is_found(monkeypatch):
    """Settings leave it out; with degree 2 nothing is learned, and the window has the one norm."""
    monkeypatch.setitem(ATTENTIONS[HYBRID], "block_size", None)
    usual = create("polysketch", head_dim=8, num_heads=1, causal=True, local=True).block_size
    monkeypatch.setitem(ATTENTIONS["local_polynomial_norms"], "block_size", usual)
    assert "local_polynomial_norms" in {part.against for part in only(hybrid(0.4, 0.0, seeds=2)).parts}
    for name in ATTENTIONS:
        monkeypatch.setitem(ATTENTIONS[name], "degree", 2)
    assert "local_polynomial_norms" not in {part.against for part in only(hybrid(0.4, 0.0, seeds=2)).parts}
    monkeypatch.setitem(ATTENTIONS["local_polynomial_norms"], "separate_norms", False)
    assert "local_polynomial_norms" in {part.against for part in only(hybrid(0.4, 0.0, seeds=2)).parts}


@pytest.mark.parametrize(("key", "value", "is_same"), [("sketch_size", 32, False), ("block_size", 16, True)])
def test_another_sketch_is_not_the_branch_and_its_block_is_nothing_without_a_window(key, value, is_same, monkeypatch):
    monkeypatch.setitem(ATTENTIONS["polysketch_learned_r64"], key, value)
    found = {part.against for part in only(hybrid(0.4, 0.0, seeds=2)).parts}
    assert ("polysketch_learned_r64" in found) == is_same


def test_the_table_and_the_figure_say_the_same():
    frame = tidy(hybrid(0.4, 0.0))
    rows = table(frame)
    assert set(rows["work of"]) == {"window"} and len(rows) == 6
    assert (rows["low"] < rows["worth (nats)"]).all() and (rows["worth (nats)"] < rows["high"]).all()
    whole = rows["loss without (nats)"] - rows["loss (nats)"]
    assert rows["worth (nats)"].tolist() == pytest.approx(whole.tolist())
    figure = attribution.figure(frame)
    ((title, panel),) = panels(figure).items()
    # The sketch, which earns nothing, is used by the sum over values a little.
    assert title.startswith(HYBRID) and [words(panel).count(word) for word in ("earns", "used")] == [1, 3]
    assert "the window is worth 0.40 [" in " ".join(words(panel)) and "Diagnostic: " in caption(figure)


def test_the_figure_keeps_its_words_inside_and_diagnoses_only_what_it_shows():
    shown = [
        one for one in hybrid(0.4, 0.0, text="sympy") if one.config["label"] not in SILENT
    ]  # "by removal" makes it long
    figure = attribution.figure(tidy([*shown, *runs({"softmax": 1.9, "local": 2.0}, text="kjv")]))
    figure.draw_without_rendering()
    for text in (text for axes in figure.axes for text in axes.texts):
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.width, text.get_text()
    assert "Diagnostic: language modelling" in caption(figure) and "kjv" not in caption(figure)


def test_without_a_hybrid_it_says_what_is_missing():
    with pytest.raises(MissingRecords, match="hybrid"):
        table(tidy(runs()))


def test_what_diverged_with_a_seed_earns_nothing():
    """The seeds that are left are those with which it went well."""
    whole = hybrid(0.4, 0.2, 10)
    lost = [one for one in whole if one.config["label"] == HYBRID and one.config["seed"] > 4]
    records = [dataclasses.replace(one, status="nonfinite", measurements={}) if one in lost else one for one in whole]
    assert only(whole).owner == "both" and only(records).owner == "undecided"
