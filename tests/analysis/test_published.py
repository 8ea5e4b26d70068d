"""The papers' numbers: whole rows, in the ranges and relations that the papers' texts state."""

import pandas as pd
import pytest

from analysis.published import PAPERS, PUBLISHED, beside, published
from bench.plan.conf import CONF
from bench.published.papers import ROWS


def values(metric, row, of=None, paper="ICML"):
    rows = published(metric)
    rows = rows[(rows["row"] == row) & (rows["paper"] == paper) & (rows["of"].isin([of]) | (of is None))]
    return dict(zip(rows.drop_duplicates("at")["at"], rows.drop_duplicates("at")["printed"], strict=True))


def test_every_file_is_read_and_every_mechanism_is_a_variant():
    assert {path.stem for path in PUBLISHED.glob("*.toml")} == {*PAPERS, "model_sizes"}
    metrics = ("perplexity", "steps_per_second", "right", "loss", "accuracy", "minutes_per_1000_steps", "largest_batch")
    everything = pd.concat([published(metric) for metric in metrics])
    assert all((CONF / "attention" / f"{name}.yaml").exists() for name in everything["attention"])
    assert everything[["paper", "source", "conditions", "hardware"]].notna().all(axis=None)
    assert not everything.duplicated(["paper", "source", "metric", "of", "row", "attention", "at"]).any()
    counts = everything.groupby(["paper", "source", "metric", "of"])["row"].nunique()
    assert counts.to_dict() == {
        ("ICML", "Table 2", "perplexity", "PG-19"): 13,
        ("ICML", "Table 3", "perplexity", "Wiki-40B"): 13,
        ("ICML", "Table 4", "steps_per_second", "GPT-2 small"): 14,
        ("ICML", "Table 5", "right", "selective_copying"): 5,
        ("ICML", "Appendix F.2", "right", "induction_heads"): 5,
        ("v1", "Table 1", "perplexity", "PG-19"): 3,
        ("v1", "Table 1", "perplexity", "Wiki-40B"): 3,
        ("v1", "Table 2", "steps_per_second", "GPT-2 small"): 5,
        ("thesis", "section 5.1", "loss", "reversal"): 3,
        ("thesis", "section 5.2", "loss", "reversal"): 6,
        ("thesis", "section 5.3", "loss", "reversal"): 6,
        ("Skeinformer", "Table 1", "accuracy", "Long Range Arena"): 16,
        ("Skeinformer", "Table 2", "minutes_per_1000_steps", "Long Range Arena"): 16,
        ("Skeinformer", "Table 2", "largest_batch", "Long Range Arena"): 16,
    }


def test_a_row_is_the_variant_that_the_list_of_the_papers_rows_names():
    named = {row.variant for row in ROWS if row.paper in ("PolySketchFormer ICML", "PolySketchFormer v1")}
    assert {*published("perplexity")["attention"], *published("steps_per_second")["attention"]} <= named
    thesis = {row.variant for row in ROWS if row.paper == "Thesis"}
    assert set(published("loss")["attention"]) <= thesis
    skeinformer = {row.variant for row in ROWS if row.paper == "Skeinformer" and "Tables 1, 2" in row.where}
    assert set(published("largest_batch")["attention"]) == skeinformer


@pytest.mark.parametrize(("of", "low", "high"), [("PG-19", 11.34, 14.75), ("Wiki-40B", 14.18, 18.40)])
def test_perplexities_are_in_the_range_of_the_table_and_softmax_falls_with_the_length(of, low, high):
    rows = published("perplexity")
    rows = rows[(rows["of"] == of) & (rows["paper"] == "ICML")]
    numbers = pd.to_numeric(rows["printed"], errors="coerce")
    assert (numbers.min(), numbers.max()) == (low, high)
    assert set(rows.loc[numbers.isna(), "printed"]) == {"OOM"}
    assert set(rows.loc[numbers.isna(), "row"].str.split().str[0]) == {"Polynomial"}
    softmax = list(values("perplexity", "Softmax (using FlashAttention)", of).values())
    assert softmax[:6] == sorted(softmax[:6], reverse=True)
    # Where the whole context is one block, no local variant has a sketch.
    kinds = [f"{kind} + local, r = {r}" for kind in ("random", "learned") for r in (32, 64)]
    local = [values("perplexity", f"Polysketch ({kind})", of) for kind in kinds]
    assert all((each[512], each[1024]) == (local[0][512], local[0][1024]) for each in local)


def test_speeds_are_those_of_which_the_text_says_how_they_compare():
    flash = values("steps_per_second", "FlashAttention (Block size 512 x 512)")[32768]
    r32, r64 = (values("steps_per_second", f"Polysketch (learned + local, 13 layers, r = {r})") for r in (32, 64))
    # "2x speed up", and "1.1x".
    assert round(r32[32768] / flash) == 2 and round(r64[32768] / flash, 1) == 1.1
    of_v1 = {row: values("steps_per_second", row, paper="v1") for row in ("Polysketch", "FlashAttention")}
    # "significantly faster for context lengths 8k and beyond", slower for all up to 4k.
    faster = [n for n, speed in of_v1["Polysketch"].items() if speed > of_v1["FlashAttention"][n]]
    assert faster == [8192, 16384]


def test_shares_are_percent_batches_powers_of_two_and_odd_squares_ahead_of_even():
    copied = values("right", "Polysketch (learned + local)", "selective_copying")
    assert copied == {4096: 99.16, 16384: 92.75, 32768: 0}
    assert all(int(batch).bit_count() == 1 for batch in published("largest_batch")["printed"])
    losses = [values("loss", f"(1 + ... + x^{d})^2", paper="thesis")[50] for d in range(2, 7)]
    assert max(losses[1::2]) < min(losses[::2]) and losses[3] < losses[1]


def test_ours_stand_beside_theirs_and_their_other_lengths_have_rows_of_their_own():
    ours = pd.DataFrame({"attention": ["flash", "linear"], "n": [32768, 512], "steps/s": [7.0, 9.0]})
    table = beside(ours, "steps_per_second").set_index(["attention", "n"])
    assert table.loc[("flash", 32768), "GPT-2 small (ICML)"] == "0.45 or 1.03"
    assert table.loc[("flash", 512), "GPT-2 small (v1)"] == 5.8 and pd.isna(table.loc[("flash", 512), "steps/s"])
    assert table.loc[("flash", 32768), "steps/s"] == 7 and len(table) == 8
    assert table.loc[("linear", 512)].isna().tolist() == [False, True, True]
    assert beside(ours.tail(1), "steps_per_second").equals(ours.tail(1))
    assert set(beside(ours.assign(attention="softmax"), "right", of="induction_heads")["n"]) == {127, 255, 512, 32768}
