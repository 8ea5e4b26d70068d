"""What a sweep says at its end."""

import dataclasses

from synthetic_records import compare, latency, spectral, under

from analysis.frame import tidy
from analysis.plots import compare as comparison
from bench.records.table import crossovers, line, settings_apart, table


def at(length, flash_ms, sketch_ms, rng):
    """A comparison whose times are known: 20 rounds with one percent of noise."""
    source = compare(("flash", "polysketch_random_r32"), length, rng)
    samples = {
        label: [ms * 1e6 * (1 + 0.01 * ((index * step) % 7 - 3) / 3) for index in range(20)]
        for label, ms, step in (("flash", flash_ms, 2), ("polysketch_random_r32", sketch_ms, 3))
    }
    return dataclasses.replace(source, measurements={**source.measurements, "samples": samples})


def with_batch(record, batch):
    return dataclasses.replace(record, config={**record.config, "batch_size": batch})


def test_crossovers_depend_neither_on_the_order_of_records_nor_on_other_batches(rng):
    """Twice the sequences: the quadratic one is overtaken at half the length."""
    records = [
        with_batch(at(n, batch * n**2 / 1e6, n / 1e3, rng), batch) for n in (256, 512, 2048, 4096) for batch in (1, 2)
    ]
    sentences = crossovers(records)
    assert sentences == crossovers([records[i] for i in rng.permutation(len(records))])
    alone = [crossovers([r for r in records if r.config["batch_size"] == batch])[0] for batch in (1, 2)]
    assert sentences == [f"{one} (batch size {batch})" for batch, one in enumerate(alone, 1)]
    lengths = [int(one.split(" at n = ")[1].split()[0]) for one in alone]
    assert abs(lengths[0] - 1000) < 15 and abs(lengths[1] - 500) < 8


def test_lengths_with_the_same_tokens_are_one_curve(rng):
    records = [with_batch(at(n, n**2 / 1e6, n / 1e3, rng), 8192 // n) for n in (512, 2048, 4096)]
    (sentence,) = crossovers(records)
    assert " at n = " in sentence and "(" not in sentence
    swept = [with_batch(record, 2 * record.config["batch_size"]) for record in records]
    words = [one.split(" (")[1] for one in crossovers([*records, *swept])]
    assert words == ["8192 tokens per batch)", "16384 tokens per batch)"]


def test_lines_that_differ_in_mask_or_pass_say_which_is_which(rng):
    records = [at(n, n**2 / 1e6, n / 1e3, rng) for n in (512, 2048, 4096)]
    others = []
    for record in records:
        bench = record.config["bench"] | {"measured_pass": "backward"}
        config = record.config | {"causal": not record.config["causal"], "bench": bench}
        others.append(dataclasses.replace(record, config=config))
    said = [one.split(" (")[1] for one in crossovers([*records, *others])]
    masks, passes = zip(*(one.removesuffix(")").split(", ") for one in said), strict=True)
    assert set(masks) == {"causal", "not causal"} and "backward" in passes and len(set(passes)) == 2


def test_what_is_printed_is_what_the_figure_shows(rng):
    records = [at(n, n**2 / 1e6, n / 1e3, rng) for n in (4096, 512, 2048)]
    (drawn,) = comparison.crossovers(tidy(records)).itertuples()
    assert (drawn.faster, drawn.baseline) == ("polysketch_random_r32", "flash")
    assert crossovers(records) == [
        f"{drawn.faster} overtakes {drawn.baseline} at n = {drawn.seq_len:.0f} [{drawn.low:.0f}, {drawn.high:.0f}]"
    ]
    assert crossovers([at(n, n, 2 * n, rng) for n in (512, 1024)]) == [], "none where there is none"


def test_where_the_rounds_do_not_bound_a_crossover_nothing_is_said_to_overtake(rng):
    records = [at(n, n**2 / 1e6, n / 1e3, rng) for n in (512, 2048)]
    for record, jump in zip(records, (1, -1), strict=True):  # in every round one of the two was held up
        times = record.measurements["samples"]
        times["flash"] = [100.0 ** (jump if i % 2 else -jump) * t for i, t in enumerate(times["flash"])]
    (said,) = crossovers(records)
    assert said.startswith("polysketch_random_r32 may overtake flash near n = ")
    assert said.endswith(", be ahead from the start, or never: undecided")


def test_verdicts_and_reasons_are_in_the_table(rng):
    failed = dataclasses.replace(latency("softmax", 2048, rng, "oom"), reason="no | memory")
    text = table([at(1024, 2, 1, rng), failed])
    assert "polysketch_random_r32 2x [" in text and "flash: faster" in text
    assert "no \\| memory" in text
    assert line(failed).startswith("oom  latency  softmax  2048")


def test_a_row_says_which_weights_inputs_and_mask_it_has(rng):
    rows = [spectral("skeinformer", 1024, 16, rng, weights) for weights in ("initialised", "pretrained")]
    rows += [spectral("skeinformer", 1024, 16, rng), latency("flash", 512, rng)]
    columns = [[cell.strip() for cell in row.split(" | ")] for row in table(rows).splitlines()]
    inputs, mask = columns[0].index("inputs"), columns[0].index("mask")
    words = ["pretrained: initialised", "pretrained: pretrained", "gaussian", "gaussian"]
    assert [row[inputs] for row in columns[2:]] == words
    assert [row[mask] for row in columns[2:]] == ["not causal"] * 3 + ["causal"]


def test_a_cell_that_was_disturbed_says_by_what(rng):
    quiet = latency("flash", 512, rng)
    loud = under(quiet, "other processes: 1.3 cores", "the hypervisor: 0.4 s")
    assert line(loud) == f"{line(quiet)} [disturbed by other processes: 1.3 cores; the hypervisor: 0.4 s]"
    assert "disturbed" not in line(quiet) and table([quiet, loud]).count("[disturbed by ") == 1


def trained(label="linear", model="transformer", task="reversal", **training):
    sizes = {"seq_len": 16, "batch_size": 2, "causal": True, "seed": training.pop("seed", 0)}
    named = {"bench": {"name": "train"}, "inputs": {"name": task}, "model": {"name": model, "layers": len(model)}}
    return {"label": label, **named, **sizes, "training": {"steps": 3, "learning_rate": 0.01} | training}


def test_cells_of_one_name_are_told_apart_by_what_was_swept():
    cells = [trained(seed=seed, learning_rate=rate) for rate in (0.01, 0.03) for seed in (0, 1)]
    said = [f"seed={seed}, training.learning_rate={rate}" for rate in (0.01, 0.03) for seed in (0, 1)]
    assert settings_apart(cells) == said
    others = [trained("flash"), trained(task="induction"), trained(task="induction", steps=4)]
    # Of those with the same mechanism and task alone.
    assert settings_apart([*cells, *others]) == [*said, "", "training.steps=3", "training.steps=4"]
    assert settings_apart([trained(), trained()]) == ["", ""], "two attempts at one cell"


def test_a_size_of_the_benchmark_that_is_the_mechanisms_is_said_once():
    sizes = ({"num_features": d} for d in (8, 9))
    cells = [{"attention": {**size}} | trained() | {"bench": {"name": "train", **size}} for size in sizes]
    assert settings_apart(cells) == ["attention.num_features=8", "attention.num_features=9"]
    cells[1]["bench"]["num_features"] = 8
    assert settings_apart(cells) == ["attention.num_features=8", "attention.num_features=9"]
    cells[1]["bench"]["num_features"] = 7
    assert settings_apart(cells)[1] == "attention.num_features=9, bench.num_features=7"


def test_comparisons_are_told_apart_by_the_labels_of_what_they_compare():
    others = [{"label": label, "attention": {"name": label, "window": 8}} for label in ("local", "linear")]
    cells = [trained() | {"bench": {"name": "compare", "against": others[:count]}} for count in (1, 2)]
    assert settings_apart(cells) == ['bench.against=["local"]', 'bench.against=["local", "linear"]']


def test_another_model_is_told_by_its_name_alone():
    assert settings_apart([trained(), trained(model="convolution")]) == ["model=transformer", "model=convolution"]


def test_the_table_has_a_column_of_settings_where_lines_would_be_the_same(rng):
    records = [latency("softmax", 512, rng), latency("softmax", 1024, rng)]
    assert "settings" not in table(records)
    twins = [dataclasses.replace(records[0], config={**records[0].config, "seed": seed}) for seed in (0, 1)]
    head, _, *rows = table([*twins, records[1]]).splitlines()
    place = [cell.strip() for cell in head.split("|")].index("settings")
    assert [row.split("|")[place].strip() for row in rows] == ["seed=0", "seed=1", ""]
    assert "  seed=1  " in line(twins[1], "seed=1")
