"""The answer says what the records say: one baseline, far ends of intervals, nothing that was not measured."""

import dataclasses
import json
import math
import re

import numpy as np
import pandas as pd
import pytest
from drawn import changed
from synthetic_records import MACHINE, memory, spectral, under, written
from test_crossover import comparison

from analysis import advice, answer, webpage
from analysis.__main__ import main
from analysis.frame import tidy
from analysis.selection import MissingRecords

LENGTHS = (512, 1024, 2048, 4096)
SOFTMAX = "exact softmax (`flash`)"
LONGEST = "the longest at which it was measured"
LEAST = "the smallest peak is, as a multiple of that of the float32 softmax that needs least,"


def timed(rng, times, n, causal=False, measured_pass="forward", dtype="float32"):
    """A comparison in which each takes so many ns, but for a noise of 1 %."""
    noisy = {(label, dtype): time * rng.lognormal(0, 0.01, 10) for label, time in times.items()}
    return comparison(n, noisy, named=False, causal=causal, measured_pass=measured_pass)


def costs(n, crossing=1000, **others):
    """Of flash quadratic, of the other linear: equal at the crossing."""
    return {"flash": 1.0 * n * n, "skeinformer": 1.0 * n * crossing} | others


def only(frame):
    (one,) = (one for one in answer.answers(frame) if one.attention == "skeinformer")
    return one


def errors(rng, weights):
    return [spectral(name, 1024, size, rng, weights) for name, size in (("skeinformer", 256), ("v_mean", None))]


@pytest.fixture
def frame(rng):
    records = [timed(rng, costs(n), n) for n in LENGTHS]
    records += [timed(rng, costs(n, 500), n, measured_pass="forward_backward") for n in LENGTHS[:3]]
    return tidy([*records, *errors(rng, "pretrained")])


def test_the_length_is_the_first_measured_beyond_the_crossing_and_speeds_are_of_the_longest(frame):
    one = only(frame)
    assert one.from_n == 1024 and not one.is_first and one.n == 4096
    value, low, high = one.forward.median, one.forward.low, one.forward.high
    assert low < 4.096 < high and low <= value <= high and high / low < 1.1
    assert one.training_n == 2048 and one.training.low < 4.096 < one.training.high
    (row,) = answer.lines([one]).to_dict("records")
    there, in_training = (speeds[n].median for speeds, n in zip(one.speeds.values(), (1024, 512), strict=True))
    shortest = f"512 (the shortest measured): {in_training:.2f}x"
    assert (row["from n"], row["from n, training"]) == (f"1,024: {there:.2f}x", shortest)


def test_an_error_is_of_the_size_that_was_timed_and_of_softmax(rng):
    """Of more features it is smaller, and what approximates a polynomial stands in for no softmax."""
    more = spectral("skeinformer", 1024, 4096, rng, "pretrained")
    timings = [timed(rng, costs(n), n) for n in LENGTHS]
    own = spectral("skeinformer", 1024, 256, rng, "pretrained")
    timings.append(spectral("v_mean", 1024, None, rng, "pretrained"))
    expected = only(tidy([*timings, own])).error
    assert expected is not None and only(tidy([*timings, own, more])).error == expected
    frame = tidy([*timings, own])
    assert only(frame.assign(function=frame["function"].where(frame["bench"] == "compare", "polynomial"))).error is None


def test_where_nothing_trains_faster_the_fastest_forward_is_said(rng):
    """Ratios of a forward pass and of training do not compare."""
    forward = timed(rng, {"flash": 10e6, "skeinformer": 1e6, "linformer": 5e6}, 1024)
    both = timed(rng, {"flash": 9e6, "skeinformer": 10e6}, 1024, measured_pass="forward_backward")
    (said,) = advice.sentences(answer.answers(tidy([forward, both])))
    assert "`skeinformer` is the fastest at n = 1,024 (of 2 measured): 10." in said
    assert "(forward pass)" in said and "train" not in said


def test_what_is_ahead_or_behind_at_all_lengths_is_said_so(rng):
    for at, said in ((100, "512 (the shortest measured)"), (100_000, "none up to 1,024")):
        found = answer.answers(tidy([timed(rng, costs(n, at), n) for n in LENGTHS[:2]]))
        assert answer.lines(found)["from n"].iloc[0].partition(":")[0] == said
    slower = "all others are slower (`skeinformer`)"
    assert advice.sentences(found) == [f"Without a mask: use {SOFTMAX} up to n = 1,024 (forward pass); {slower}."]


def test_a_tie_is_undecided_and_no_reason_for_softmax(rng):
    noisy = timed(rng, {"flash": 1e6, "skeinformer": 1e6}, 1024)
    (one,) = answer.answers(tidy([noisy]))
    assert one.forward.low < 1 < one.forward.high
    (said,) = advice.sentences([one])
    assert "nothing that was measured is clearly faster, undecided is `skeinformer` 1.0" in said


def test_what_is_faster_at_a_shorter_length_only_is_said(rng):
    """It is no reason to say that all others are slower."""
    times = {512: {"flash": 2e6, "skeinformer": 1e6}, 1024: {"flash": 1e6, "skeinformer": 2e6}}
    records = [timed(rng, of, n) for n, of in times.items()]
    (said,) = advice.sentences(answer.answers(tidy(records)))
    stays = "n = 1,024 (forward pass); nothing that was measured stays clearly faster, `skeinformer` is at n = 512"
    assert said.endswith(f"{stays}.")
    records += [timed(rng, costs(n, 100), n, measured_pass="forward_backward") for n in times]
    (said,) = advice.sentences(answer.answers(tidy(records)))
    assert said.endswith(f"{stays}; faster to train: `skeinformer` from n = 512 (the shortest measured) on.")


@pytest.mark.parametrize("crossing", [100_000, 1000])
def test_a_control_is_marked_and_no_advice(rng, crossing):
    """Not looking at other tokens is the fastest, and no attention that anybody should use."""
    records = [timed(rng, costs(n, crossing, identity=1.0 * n), n) for n in LENGTHS]
    records += [memory(name, 2048, batch_size=1, causal=False) for name in ("flash", "skeinformer", "identity")]
    frame = tidy(records)
    frame.loc[frame["attention"].isin(["skeinformer", "identity"]) & (frame["metric"] == "peak_memory"), "value"] /= 9
    found = answer.answers(frame)
    assert {one.attention: one.is_control for one in found} == {"identity": True, "skeinformer": False}
    assert set(answer.lines(found)["attention"]) == {"identity (control)", "skeinformer"}
    (said,) = advice.sentences(found)
    assert "identity" not in said
    assert (f"use {SOFTMAX} up to n = {LENGTHS[-1]:,}" in said) == (crossing > LENGTHS[-1])
    assert advice.sentences([one for one in found if one.is_control]) == []
    best = advice.fastest(found)
    assert (best and best[0].attention) == ("skeinformer" if crossing < LENGTHS[-1] else None)


@pytest.mark.parametrize("faster", [True, False])
def test_few_rounds_decide_nothing(rng, faster):
    """Of five rounds the far ends are both above 1, or below it; the verdict is a tie all the same."""
    frame = tidy([timed(rng, {"flash": 1e6, "skeinformer": 1e5 if faster else 1e7}, 1024)])
    assert ("all others are slower" in advice.sentences(answer.answers(frame))[0]) == (not faster)
    frame["raw"] = frame["raw"].map(lambda raw: raw[:5])
    (said,) = advice.sentences(answer.answers(frame))
    assert "nothing that was measured is clearly faster, undecided is `skeinformer`" in said


def test_two_implementations_of_softmax_are_no_answers(rng):
    frame = tidy([timed(rng, costs(n), n) for n in LENGTHS])
    frame.loc[(frame["attention"] == "flash") & (frame["seq_len"] == 512), "impl"] = "fused"
    assert [one.attention for one in answer.answers(frame)] == ["skeinformer"]


def test_the_baseline_is_the_fastest_exact_softmax_and_no_row_of_its_own(rng):
    frame = tidy([timed(rng, costs(n, softmax=0.5 * n * n), n) for n in LENGTHS])
    (one,) = answer.answers(frame)
    assert one.attention == "skeinformer" and one.forward.median == pytest.approx(2.048, rel=0.03)
    assert one.from_n == 2048 and one.softmax == "softmax"


def test_memory_is_over_the_softmax_that_needs_least_under_the_same_mask_and_shape(rng):
    shape = {"batch_size": 1, "causal": False}
    held = [memory(name, 2048, **shape) for name in ("flash", "softmax", "skeinformer")]
    others = [memory("flash", 2048, batch_size=1, causal=True), memory("flash", 1024, batch_size=4, causal=False)]
    speeds = [timed(rng, costs(n), n) for n in (1024, 4096)]
    peaks = {one.config["label"]: one.measurements["passes"]["forward"]["peak_bytes"] for one in held}
    frame = tidy([*speeds, *held, *others])
    (one,) = found = answer.answers(frame)
    times = peaks["skeinformer"] / min(peaks["flash"], peaks["softmax"])
    assert one.memory == {2048: pytest.approx(times)} and times > 1
    said = f"{LEAST} {times:.1f}x in a forward pass (`skeinformer`, n = 2,048)"
    assert f"No mechanism clearly saves memory at the longest length: {said}" in advice.sentences(found)[0]
    assert " at 2,048" in answer.lines(found)["memory"].iloc[0], "the speeds are of 4,096"
    frame.loc[(frame["attention"] == "skeinformer") & (frame["metric"] == "peak_memory"), "value"] = peaks["flash"] / 4
    assert f" Memory: {LEAST} 0.2x in a forward pass" in advice.sentences(answer.answers(frame))[0]
    assert only(tidy([*speeds, held[2], *others])).memory == {}
    # Later records of another machine, on which nothing was compared.
    elsewhere = {"machine": held[0].machine | {"gpu_name": "GPU"}, "ended": "2099-01-01T00:00:00+00:00"}
    moved = dataclasses.replace(held[0], **elsewhere, cell_id="f" * 64)
    moved = changed(moved, measurements={"passes": {"forward": {"peak_bytes": 10 * peaks["flash"]}}})
    expected = {2048: peaks["skeinformer"] / peaks["flash"]}
    assert only(tidy([*speeds, held[0], held[2], moved])).memory == expected
    # And where something was compared that the speeds are not of; its name comes first.
    there = {"machine": speeds[0].machine | {"cpu_model": "A first"}, "cell_id": "e" * 64}
    other = [dataclasses.replace(one, machine=there["machine"], cell_id=f"{at:064}") for at, one in enumerate(held)]
    other[2] = changed(other[2], measurements={"passes": {"forward": {"peak_bytes": 100 * peaks["flash"]}}})
    assert only(tidy([*speeds, held[0], held[2], *other, dataclasses.replace(speeds[0], **there)])).memory == expected


def sized(record, size):
    """The record with another size of its mechanism, in place of 256."""
    config = json.loads(json.dumps(record.config).replace('"num_features": 256', f'"num_features": {size}'))
    return dataclasses.replace(record, config=config, cell_id=f"{size:032}{record.cell_id[:32]}")


@pytest.mark.parametrize("at_once", [True, False])
def test_memory_and_error_are_of_the_size_that_was_timed(rng, at_once):
    """Of two sizes each has its own; where one was timed, another's memory is not taken for it."""
    held = [memory(name, 2048, batch_size=1, causal=False) for name in ("flash", "skeinformer")]
    small = changed(sized(held[1], 16), measurements={"passes": {"forward": {"peak_bytes": 1000}}})
    peaks = {256: held[1].measurements["passes"]["forward"]["peak_bytes"], 16: 1000}
    softmax = held[0].measurements["passes"]["forward"]["peak_bytes"]
    timings = [timed(rng, costs(n), n) for n in LENGTHS[:2]]
    timings += [sized(one, 16) for one in timings] if at_once else []
    errors_of = {size: spectral("skeinformer", 1024, size, rng, "pretrained") for size in (16, 256)}
    mean = spectral("v_mean", 1024, None, rng, "pretrained")
    for order in (1, -1):
        frame = tidy([*timings, *[small, *held][::order], *errors_of.values(), mean])
        found = {int(one.attention.partition("=")[2] or 256): one for one in answer.answers(frame)}
        assert set(found) == ({16, 256} if at_once else {256})
        for size, one in found.items():
            assert one.memory == {2048: pytest.approx(peaks[size] / softmax)}
            assert one.error[0] == pytest.approx(np.mean(errors_of[size].measurements["relative"]), rel=0.2)


def test_memory_is_of_the_longest_length_and_a_shorter_one_that_saves_is_named(rng):
    (one,) = answer.answers(tidy([timed(rng, costs(n), n) for n in LENGTHS]))
    one = one._replace(memory={8192.0: 2.0, 1024.0: 0.5}, training_memory={8192.0: 1.0, 2048.0: 0.4})
    (said,) = advice.sentences([one])
    assert f" No mechanism clearly saves memory at the longest length: {LEAST} 2.0x in a forward pass" in said
    assert said.endswith("(`skeinformer`, n = 8,192); `skeinformer` has 0.40x at n = 2,048 in training.")
    assert answer.lines([one])["memory"].tolist() == ["2.0x at 8,192"]
    (said,) = advice.sentences([one._replace(training_memory={8192.0: 0.3, 2048.0: 0.2})])
    assert f" Memory: {LEAST} 2.0x in" in said and said.endswith("0.3x in training (`skeinformer`, n = 8,192).")


def test_an_approximation_is_advised_where_it_is_clearly_nearer_than_averaging(frame):
    is_error = frame["metric"] == "relative"
    is_own = is_error & (frame["attention"] == "skeinformer")
    own, mean = frame[is_own].iloc[0], frame[is_error & (frame["attention"] == "v_mean")].iloc[0]
    one = only(frame)
    assert one.error == (own["value"], own["low"], own["high"]) and one.averaging[0] == mean["value"]
    for error, is_near in (((0.01, 0.009, 0.011), True), ((9.0, 8.0, 10.0), False)):
        frame.loc[is_own, ["value", "low", "high"]] = error
        (said,) = advice.sentences(answer.answers(frame))
        from_there = f"`skeinformer` is faster (forward pass) from there to n = {one.n:,}, {LONGEST}"
        below = "(`flash`) below n = 1,024, where nothing stays clearly faster"
        assert f"{below}; {from_there}, and the fastest to train at n = {one.training_n:,.0f} (of 1" in said
        nearest = "is the nearest that is faster, from n = 1,024 on: error 0.01 (0.01 to 0.01) at n = 1,024"
        assert (f"`skeinformer` {nearest}" in said) == is_near
        assert ("`skeinformer` (no other was measured) is not clearly better than averaging" in said) != is_near


def test_the_fastest_has_its_error_beside_where_averaging_is_better(rng):
    records = [timed(rng, costs(n, 500, performer=100.0 * n), n) for n in LENGTHS]
    frame = tidy([*records, *errors(rng, "pretrained"), spectral("performer", 1024, 256, rng, "pretrained")])
    for name, error in (("skeinformer", 0.01), ("performer", 9.0), ("v_mean", 0.5)):
        rows = (frame["attention"] == name) & (frame["metric"] == "relative")
        frame.loc[rows, ["value", "low", "high"]] = (error, 0.9 * error, 1.1 * error)
    (said,) = advice.sentences(answer.answers(frame))
    assert "`performer` is the fastest" in said and "`skeinformer` is the nearest that is faster" in said
    assert said.endswith("averaging the values 0.50 (0.45 to 0.55); `performer` has 9.00 (8.10 to 9.90).")


@pytest.mark.parametrize("which", ["forward", "forward_backward"])
def test_the_fastest_is_chosen_and_counted_among_those_measured_at_its_length(rng, which):
    """At a longer length every ratio is larger, also that of a slower mechanism."""

    def costs_at(n):
        times = costs(n, 100, performer=150.0 * n)
        return times if n < 4096 else {name: times[name] for name in ("flash", "performer")}

    records = [timed(rng, costs_at(n), n, measured_pass=name) for n in LENGTHS for name in {"forward", which}]
    (said,) = advice.sentences(answer.answers(tidy(records)))
    assert "`skeinformer` is the fastest" in said and "at n = 2,048 (of 2 measured): 20." in said


def test_the_nearest_is_chosen_among_errors_of_one_length(rng):
    records = [timed(rng, costs(n, 500, performer=100.0 * n, linformer=100.0 * n), n) for n in LENGTHS]
    records += [spectral(name, 1024, 256, rng, "pretrained") for name in ("performer", "linformer")]
    records += [spectral("skeinformer", 512, 256, rng, "pretrained")]
    frame = tidy([*records, *(spectral("v_mean", n, None, rng, "pretrained") for n in (512, 1024))])
    for name, error in (("skeinformer", 0.01), ("performer", 0.2), ("linformer", 0.3), ("v_mean", 0.5)):
        rows = (frame["attention"] == name) & (frame["metric"] == "relative")
        frame.loc[rows, ["value", "low", "high"]] = (error, 0.9 * error, 1.1 * error)
    (said,) = advice.sentences(answer.answers(frame))
    assert "`performer` is the nearest that is faster" in said and "error 0.20 (0.18 to 0.22) at n = 1,024" in said


def test_a_near_approximation_that_is_not_faster_is_no_advice_but_is_not_denied(rng):
    records = [timed(rng, costs(n, 100_000, linformer=0.1 * n * n), n) for n in LENGTHS[:2]]
    frame = tidy([*records, *errors(rng, "pretrained")])
    is_own = (frame["attention"] == "skeinformer") & (frame["metric"] == "relative")
    frame.loc[is_own, ["value", "low", "high"]] = (0.01, 0.009, 0.011)
    (said,) = advice.sentences(answer.answers(frame))
    assert "In place of a trained model's softmax, `skeinformer` is nearer than averaging, but not faster" in said


def test_softmax_is_no_answer_where_dtypes_were_compared_in_one_cell():
    times = {("flash", "float32"): 3e6, ("flash", "bfloat16"): 2e6, ("skeinformer", "bfloat16"): 1e6}
    (one,) = answer.answers(tidy([comparison(n, times) for n in LENGTHS]))
    assert (one.attention, one.dtype) == ("skeinformer", "bfloat16") and one.forward.median == pytest.approx(2)


def test_initialised_weights_and_gaussian_inputs_are_no_trained_model(rng):
    records = [timed(rng, costs(1024), 1024), *errors(rng, "initialised"), *errors(rng, None)]
    assert only(tidy(records)).error is None


def test_masks_are_answered_apart(rng):
    crossings = ((True, 700), (False, 1500))
    found = answer.answers(tidy([timed(rng, costs(n, at), n, causal) for n in LENGTHS[:3] for causal, at in crossings]))
    assert {one.causal: one.from_n for one in found} == {True: 1024, False: 2048}
    causal, free = advice.sentences(found)
    below = f"use {SOFTMAX} below n = {{}}, where nothing stays clearly faster; "
    assert causal.startswith(
        f"With a causal mask: {below.format('1,024')}`skeinformer` is faster from there to n = 2,048"
    )
    faster = f"`skeinformer` is faster there, {LONGEST}, and the fastest at n = 2,048"
    assert free.startswith(f"Without a mask: {below.format('2,048')}{faster}")


def test_dtypes_are_answered_apart_and_named_where_there_are_several(rng):
    both = (("float32", 1500), ("bfloat16", 700))
    records = [timed(rng, costs(n, at), n, dtype=dtype) for n in LENGTHS[:3] for dtype, at in both]
    records += [memory(name, 2048, batch_size=1, causal=False, dtype="float32") for name in ("flash", "skeinformer")]
    full, half = answer.answers(tidy(records))
    assert (full.dtype, half.dtype) == ("float32", "bfloat16") and (full.from_n, half.from_n) == (2048, 1024)
    assert list(full.memory) == [2048] and half.memory == {}
    assert list(answer.lines([full, half])["dtype"]) == ["float32", "bfloat16"]
    of_full, of_half = advice.sentences([full, half])
    assert of_full.startswith("Without a mask: ")
    below = f"use {SOFTMAX} below n = 1,024, where nothing stays clearly faster; "
    assert of_half.startswith(f"Without a mask, in bfloat16: {below}")
    alone = tidy([one for one in records if one.config["dtype"] == "bfloat16"])
    assert answer.answers(alone) == [half] and "dtype" not in answer.lines([half])


def test_of_disturbances_the_worst_is_said_and_what_nothing_was_measured_for_has_no_column(rng):
    records = [timed(rng, costs(n), n) for n in LENGTHS]
    causes = ("other processes: 9.5 cores", "other processes: 10.5 cores; heat", "heat")
    loud = [under(one, *cause.split("; ")) for one, cause in zip(records, causes, strict=False)]
    table = answer.table(tidy([*loud, records[-1]]))
    assert set(table["disturbed"].iloc[0].split("; ")) == {"other processes: 10.5 cores", "heat"}
    assert list(answer.table(tidy(records))) == ["attention", "mask", "from n", "n", "forward"]


def test_without_a_forward_pass_it_says_what_is_missing(rng):
    with pytest.raises(MissingRecords, match="bench=compare of a forward pass"):
        answer.table(tidy([timed(rng, costs(n), n, measured_pass="forward_backward") for n in LENGTHS]))


def test_the_command_says_it_and_leaves_a_page_with_every_picture(tmp_path, rng, capsys):
    written(tmp_path, [timed(rng, costs(n), n) for n in LENGTHS[:3]])
    arguments = ["--results", str(tmp_path)]
    for name in ("crossover", "compare"):
        assert main(["figures", *arguments, "--figure", name, "--formats", "png"]) == 0
    capsys.readouterr()
    assert main(["answer", *arguments]) == 0
    said = capsys.readouterr().out
    page = tmp_path / "figures" / "answer.html"
    assert said.splitlines()[-1] == f"the same with the 2 pictures in its folder, as last drawn: {page}"
    assert all(f'<img src="{name}.png"' in page.read_text() for name in ("crossover", "compare"))
    assert "<td>skeinformer</td>" in page.read_text() and "| skeinformer | not causal | 1,024: 1." in said


def test_without_pictures_the_command_says_how_they_are_drawn(tmp_path, rng, capsys):
    written(tmp_path, [timed(rng, costs(n), n) for n in LENGTHS[:2]])
    assert main(["answer", "--results", str(tmp_path)]) == 0
    draws = f"`python -m analysis figures --results {tmp_path}`"
    page = tmp_path / "figures" / "answer.html"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"the same as a page: {page} (it shows pictures after {draws})"


@pytest.mark.parametrize("weights", [None, "pretrained"])
def test_errors_that_do_not_count_are_said(tmp_path, rng, capsys, weights):
    written(tmp_path, [timed(rng, costs(1024), 1024), *errors(rng, weights)])
    assert main(["answer", "--results", str(tmp_path)]) == 0
    assert ("errors count with inputs=pretrained" in capsys.readouterr().err) == (weights is None)


def test_a_machine_that_is_left_out_is_said_and_not_in_the_title(tmp_path, rng, capsys):
    other = {"machine": {**MACHINE, "cpu_model": "Other CPU"}, "cell_id": "c" * 64}
    records = [*(timed(rng, costs(n), n) for n in LENGTHS[:2]), timed(rng, costs(4096), 4096)]
    written(tmp_path, [*records[:2], dataclasses.replace(records[2], **other)])
    assert main(["answer", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().err
    assert re.search("^answer: bench=compare: left out 1 cells, with .*Other CPU", said, re.MULTILINE)
    title = f"Which attention, on {MACHINE['cpu_model']}?"
    assert f"<title>{title}</title>" in (tmp_path / "figures" / "answer.html").read_text()


def test_a_page_says_names_as_they_are(tmp_path):
    path = tmp_path / "a.html"
    webpage.write(path, "a < b", ["use <x> & y"], pd.DataFrame({"a": ["<b>"]}), "")
    assert "use &lt;x&gt; &amp; y" in path.read_text() and "<b>" not in path.read_text()


def test_only_what_is_ahead_at_all_longer_lengths_is_ahead_and_a_tie_is_not(rng):
    for speeds, from_n in (((1, 2, 2), 1024), ((2, 1, 2), 2048), ((2, 2, 1), math.inf)):
        times = [{"flash": 1e6 * speed, "skeinformer": 1e6} for speed in speeds]
        one = only(tidy([timed(rng, *given) for given in zip(times, LENGTHS, strict=False)]))
        assert (one.from_n, one.is_first) == (from_n, False)


def test_of_those_that_are_ahead_from_one_length_on_the_fastest_comes_first(rng):
    # linformer crosses later than skeinformer, but both do between 512 and 1,024.
    found = answer.answers(tidy([timed(rng, costs(n, 600, linformer=900.0 * n**0.9 * 1.5), n) for n in LENGTHS]))
    assert [(one.attention, one.from_n) for one in found] == [("linformer", 1024), ("skeinformer", 1024)]
    (said,) = advice.sentences(found)
    there = f"`linformer` is faster from there to n = 4,096, {LONGEST}, and the fastest"
    assert f"below n = 1,024, where nothing stays clearly faster; {there}" in said


@pytest.mark.parametrize("slow", ["flash", "skeinformer"])
def test_memory_is_of_the_implementation_that_was_timed_and_the_softmax_that_needs_least(rng, slow):
    """The plain code of softmax needs a hundred times as much, and may be measured last."""
    shape = {"batch_size": 1, "causal": False}
    held = [memory(name, 2048, **shape) for name in ("flash", "skeinformer")]
    speeds = [timed(rng, costs(n), n) for n in (1024, 4096)]
    plain = changed(memory(slow, 2048, impl="reference", **shape), ended="2099-01-01T00:00:00+00:00")
    plain = changed(plain, measurements={"passes": {"forward": {"peak_bytes": 10**9}}})
    expected = only(tidy([*speeds, *held])).memory
    assert only(tidy([*speeds, *held, plain])).memory == expected != {}


@pytest.mark.parametrize("order", [1, -1])
def test_errors_on_other_inputs_do_not_compare(rng, order):
    """On the inputs that both have, skeinformer is the nearer one."""
    records = [timed(rng, costs(n, 500, performer=100.0 * n), n) for n in LENGTHS]
    both = [spectral(name, 1024, 256, rng, "pretrained") for name in ("skeinformer", "performer")]
    both.append(spectral("v_mean", 1024, None, rng, "pretrained"))
    other = [changed(one, config={"inputs": {"layer": 7}}) for one in both[1:]]
    frame = tidy([*records, *[*both, *other][::order]])
    is_other = frame["input_settings"].str.contains('"layer": 7')
    planted = {("skeinformer", False): 0.1, ("performer", False): 0.2, ("v_mean", False): 0.5}
    for (name, there), error in (planted | {("performer", True): 0.01, ("v_mean", True): 0.3}).items():
        rows = (frame["attention"] == name) & (frame["metric"] == "relative") & (is_other == there)
        assert rows.sum() == 1
        frame.loc[rows, ["value", "low", "high"]] = (error, 0.9 * error, 1.1 * error)
    (said,) = advice.sentences(answer.answers(frame))
    assert "`skeinformer` is the nearest that is faster" in said
