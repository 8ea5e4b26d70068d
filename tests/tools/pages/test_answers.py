"""What the pages on choosing say in words is what the committed tables say in numbers."""

import csv
import json
import math

import pytest

import attention_zoo
from analysis import advice
from tools.pages import answers, mechanism, readings

LAPTOP = readings.RESULTS / "laptop"


def table(name):
    with (LAPTOP / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_speeds_are_those_of_the_answer_with_a_link_to_each_page():
    for mask, words in (("causal", "causal"), ("not_causal", "not causal")):
        lines = answers.speeds(mask).splitlines()[2:]
        rows = [row for row in table("answer") if (row["mask"], row["dtype"]) == (words, "float32")]
        assert len(lines) == len(rows) > 3
        for line, row in zip(lines, rows, strict=True):
            forward = row["forward"].replace(" to ", "–")
            assert line.startswith(f"| [{row['attention']}](mechanisms/") and f"| {forward}" in line
        assert answers.sentence(mask).startswith("With a causal mask" if mask == "causal" else "Without a mask")


# Sentences of docs/choosing.md, docs/faq.md and of the pages of mechanisms.
@pytest.fixture(scope="module")
def found():
    return {(one.attention, one.causal): one for one in answers.found() if one.dtype == "float32"}


def test_which_are_the_fastest(found):
    for causal, first in ((True, ["linear", "polysketch_random_r32"]), (False, ["linformer"])):
        own = [one for one in found.values() if one.causal == causal]
        for speeds in ({one.attention: one.forward for one in own}, {one.attention: one.training for one in own}):
            ranked = sorted((name for name in speeds if speeds[name]), key=lambda name: -speeds[name].median)
            assert ranked[: len(first)] == first


def test_in_bfloat16_exact_polynomials_are_faster_than_softmax_from_some_length_on():
    (one,) = [one for one in answers.found() if (one.attention, one.dtype) == ("polynomial_p4", "bfloat16")]
    assert one.causal and math.isfinite(one.from_n) and one.forward.low > 1
    assert answers.sentence("causal", "bfloat16").startswith("With a causal mask, in bfloat16: ")


def test_at_512_tokens_nothing_without_a_mask_is_faster_and_exact_polynomials_never_are(found):
    at = {(row["attention"], row["causal"], row["seq_len"]): row for row in table("crossover_speeds")
          if (row["pass"], row["dtype"]) == ("forward", "float32")}  # fmt: skip
    assert {row["best_verdict"] for key, row in at.items() if key[1:] == ("False", "512")} <= {"tie", "slower"}
    assert found["polynomial_p4", True].from_n == math.inf


def test_causally_performer_alone_approximates_softmax_and_no_better_than_averaging(found):
    own = [attention_zoo.info(name) for name in mechanism.own()]
    approximate = [one.name for one in own if one.approximates == "softmax" and not one.exact and not one.control]
    assert [name for name in approximate if attention_zoo.info(name).causal] == ["performer"]
    for causal in (True, False):
        one = found["performer", causal]
        assert one.error[0] > one.averaging[0]
    assert found["linformer", False].error[1] > 1


def test_only_informer_clearly_needs_less_memory_than_flash_and_only_in_short_training(found):
    assert min(ratio for one in found.values() for ratio in one.memory.values()) >= advice.CLEARLY
    saving = {one.attention: one.training_memory for one in found.values() if min(one.training_memory.values()) < 1}
    assert list(saving) == ["informer"]
    own = {n: round(ratio, 2) for n, ratio in saving["informer"].items()}
    assert (own[2048], own[8192], own[16384]) == (0.85, 0.96, 1.8) and min(own.values()) == own[2048]


def test_at_4096_tokens_two_approximations_are_only_a_little_better_than_the_mean():
    points = readings.last("skeinformer_figure1_relative")
    errors = {point.series: point for point in points if point.panel == "pretrained, n = 4096"}
    for name in ("skeinformer", "informer"):
        assert 0.8 < errors[name].y / errors["v_mean"].y < 1


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
    rows = {row["attention"]: float(row["n = 1024, 0.25 GiB"]) for row in table("skeinformer_table2")}
    assert min(rows[name] for name in ("linformer_frozen", "performer", "skeinformer")) >= 3 * rows["softmax"]
    assert "flash" not in rows
