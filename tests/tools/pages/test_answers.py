"""What the pages on choosing say in words is what the committed tables say in numbers."""

import csv
import json

import pytest

from tools.pages import answers, mechanism, readings


def speed(variant="mine", seq_len=1024, over=2.0, verdict="faster", start=None):
    return answers.Speed(variant, seq_len, over, over - 0.1, over + 0.1, verdict, start)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([speed(start=(772.6, 922.1))], "770 to 930"),
        ([speed(start=(2027.8, 2090.6))], "2,000 to 2,100"),
        ([speed(start=(0.0, 673.8))], "at most 680"),
        ([speed(), speed(seq_len=4096)], "everywhere (1,024 to 4,096 measured)"),
        ([speed(verdict="tie"), speed(seq_len=4096, verdict="slower")], "nowhere (1,024 to 4,096 measured)"),
        ([speed(), speed(seq_len=4096, verdict="tie")], "unclear"),
    ],
)
def test_a_length_is_as_exact_as_its_interval(rows, text):
    assert answers.starts(rows) == text


def test_speeds_are_over_the_best_softmax_and_their_intervals_those_of_the_table():
    with answers.TABLE.open() as file:
        (row,) = (
            row
            for row in csv.DictReader(file)
            if (row["causal"], row["pass"], row["attention"], row["dtype"], row["seq_len"])
            == ("True", "forward_backward", "linear", "float32", "8192")
        )
    assert answers.length("causal") == 8192
    said = "{:.1f}x ({:.1f} to {:.1f})".format(*(float(row[key]) for key in ("over_best", "best_low", "best_high")))
    (line,) = (line for line in answers.speeds("causal").splitlines() if line.startswith("| [linear]"))
    assert said in line.replace("\N{NO-BREAK SPACE}", " ")
    assert f"`linear` {said}" in answers.fastest("causal", "forward_backward", "8192").replace(
        "\N{NO-BREAK SPACE}", " "
    )


def test_a_speed_that_falls_with_the_length_is_said():
    rows = [
        speed(seq_len=4096, over=3.0),
        speed(seq_len=8192, over=2.0),
        speed("other", 4096),
        speed("other", 8192, 5.0),
    ]
    (sentence,) = answers._falling(rows, 4096)
    assert "`mine`" in sentence and "other" not in sentence and not answers._falling(rows[2:], 4096)


# Sentences of docs/choosing.md and of the pages of mechanisms.
def at(mask, name, seq_len):
    return {row.variant: row for row in answers.read(mask, name) if row.seq_len == seq_len}


def test_which_are_the_fastest():
    for name in answers.PASSES:
        causal = sorted(at("causal", name, 8192).values(), key=lambda row: -row.over)
        assert [row.variant for row in causal[:2]] == ["linear", "polysketch_random_r32"]
        for seq_len in {row.seq_len for row in answers.read("not_causal", name)} - {512}:
            rows = at("not_causal", name, seq_len)
            if "linformer" in rows and seq_len in (4096, 8192):
                assert max(rows, key=lambda variant: rows[variant].over) == "linformer"


def test_at_512_tokens_nothing_without_a_mask_is_faster_and_exact_polynomials_never_are():
    assert {row.verdict for row in at("not_causal", "forward", 512).values()} <= {"tie", "slower"}
    assert {row.verdict for row in answers.read("causal", "forward") if row.variant == "polynomial_p4"} == {"slower"}


def test_only_performer_approximates_softmax_causally():
    assert [name for name in answers.approximations() if "| causal | yes |" in mechanism.facts(name)] == ["performer"]


def test_at_4096_tokens_two_approximations_are_only_a_little_better_than_the_mean():
    errors = {point.series: point for point in readings.last(answers.ERRORS) if point.panel == "pretrained, n = 4096"}
    for name in ("skeinformer", "informer"):
        assert 0.8 < errors[name].y / errors["v_mean"].y < 1
    assert errors["linformer_frozen"].y > 1


def test_states_do_not_grow_and_a_short_cache_is_the_fastest():
    points = readings.points("decode")
    found = {(point.panel, point.series, point.x): point.y for point in points}
    for name in ("linear", "polysketch_random_r32", "performer"):
        assert found["state", name, 512] == found["state", name, 16384] < found["state", "flash", 16384]
        assert found["time", name, 16384] == pytest.approx(found["time", name, 512], rel=0.1)
        assert found["time", name, 512] > found["time", "flash", 512]
        assert found["time", name, 16384] < found["time", "flash", 16384]


def test_no_record_is_from_a_gpu():
    records = [json.loads(path.read_text()) for path in readings.RESULTS.glob("*/records/*.json")]
    assert {record["config"]["device"] for record in records} == {"cpu"}


def test_the_largest_batches_are_several_times_softmax():
    with (answers.TABLE.parent / "skeinformer_table2.csv").open() as file:
        rows = {row["attention"]: float(row["n = 1024, 0.25 GiB"]) for row in csv.DictReader(file)}
    assert min(rows[name] for name in ("linformer_frozen", "performer", "skeinformer")) >= 3 * rows["softmax"]
    assert "flash" not in rows
