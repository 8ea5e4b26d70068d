"""What docs/quality.md says of settings in which context helps, and of rates, is what the committed records say."""

import json
import lzma
import re
from collections import defaultdict
from statistics import mean, median

import pytest

from tools.pages import readings, search


def last_validation_loss(path, record):
    """It stands in the record, or in its samples where the list is long."""
    found = record["measurements"]["validation"]
    if isinstance(found, str):
        samples = path.parents[1] / "samples" / f"{path.name}.xz"
        found = json.loads(lzma.decompress(samples.read_bytes()))["validation"]
    return found[-1]["loss"]


def files(folder):
    """Each record of a folder: its path, its content, its configuration."""
    for path in (readings.RESULTS / folder / "records").glob("*.json"):
        record = json.loads(path.read_text())
        yield path, record, record["config"]


def rows_of(table):
    """The cells of a Markdown table, the header first."""
    header, _, *rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return [header, *rows]


def test_each_row_is_a_whole_setting_and_its_numbers_are_those_of_the_files():
    _, *rows = rows_of(search.tried())
    losses = defaultdict(list)
    for _, record, config in files("search"):
        changed = tuple(json.dumps(config[key]) for key in ("seq_len", "num_heads", "model", "task", "training"))
        losses[changed, config["label"]].append(record["measurements"]["test"]["loss"])
    assert {len(seeds) for seeds in losses.values()} == {3, 5}
    pairs = {
        (f"{mean(seeds):.3f}", f"{mean(losses[changed, search.WINDOW]):.3f}")
        for (changed, label), seeds in losses.items()
        if label == search.SOFTMAX
    }
    assert pairs == {(row[1], row[2]) for row in rows}
    assert [row[0] for row in rows if row[4] == "5"] == ["seq_len=1024", "the usual"]
    for _, softmax, window, difference, _, _ in rows:
        value, low, high = (float(number) for number in re.findall(r"[+-]\d\.\d+", difference))
        assert abs(value - (float(softmax) - float(window))) < 0.0011 and low < value < high


@pytest.mark.parametrize(
    ("first", "tasks"), [(0.01, ["language_modelling"]), (0.003, ["associative_recall", "fuzzy_recall"])]
)
def test_other_rates_are_compared_by_the_seeds_that_both_have(first, tasks):
    losses = defaultdict(dict)
    for path, record, config in files("quality"):
        task = config.get("task", {}).get("name")
        if task in tasks and config["bench"]["name"] == "train":
            of = f"{task.replace('_', ' ')}, n = {config['seq_len']:,}", config["label"]
            losses[*of, config["training"]["learning_rate"]][config["seed"]] = last_validation_loss(path, record)
    header, *rows = rows_of(search.rates(*tasks))
    assert header[2] == f"loss at {first:g}" and rows
    others = [float(name.removeprefix("change at ")) for name in header[3:]]
    for task, name, usual, *differences in rows:
        own = losses[task, name, first]
        assert usual == f"{mean(own.values()):.3f} ({len(own)})"
        for rate, difference in zip(others, differences, strict=True):
            both = [loss - own[seed] for seed, loss in losses[task, name, rate].items() if seed in own]
            assert difference == (f"{mean(both):+.3f} ({len(both)})" if both else "")
    several = {tuple(of) for *of, rate in list(losses) if rate != first and losses.get((*of, first))}
    assert {tuple(row[:2]) for row in rows} == several


def right(folder, length):
    """Right answers in percent of each mechanism and rate, by seed, and the steps of their training."""
    found, steps = defaultdict(dict), set()
    for _, record, config in files(folder):
        if config.get("task", {}).get("name") == "associative_recall" and config["seq_len"] == length:
            share, training = 100 * record["measurements"]["test"]["token_accuracy"], config["training"]
            found[config["label"], training["learning_rate"]][config["seed"]] = share
            steps.add(training["steps"])
    (steps,) = steps
    return found, steps


def test_what_more_steps_change_is_said_of_every_model_that_was_trained_for_two_numbers_of_them():
    _, *rows = rows_of(search.steps("associative_recall"))
    trained = {256: (right("shorter", 256), right("quality", 256)), 512: (right("quality", 512), right("longer", 512))}
    names = {n: [{name for name, _ in found} for found, _ in of_steps] for n, of_steps in trained.items()}
    both = {(str(n), name) for n, (few, more) in names.items() for name in few & more}
    assert {(n, name) for n, name, *_ in rows} == both
    for n, name, *cells in rows:
        few, more = trained[int(n)]
        assert few[1] < more[1]
        for (found, steps), (said, rate, shares) in zip((few, more), (cells[:3], cells[3:]), strict=True):
            own = [*found[name, float(rate)].values()]
            assert said == f"{steps:,}"
            assert shares == f"{median(own):.0f} ({min(own):.0f}–{max(own):.0f}), {len(own)}"


def test_how_many_seeds_recall_64_pairs_after_more_steps_is_what_the_pages_say():
    found = {name: sorted(own.values()) for (name, _), own in right("longer", 512)[0].items()}
    all_right = {name: sum(share > 99 for share in own) for name, own in found.items()}
    root = readings.RESULTS.parent
    readme, quality = (" ".join((root / page).read_text().split()) for page in ("README.md", "docs/quality.md"))
    polynomial, sketch, performer = (found[name] for name in ("polynomial_p4", "polysketch_random_r32", "performer"))
    said = f"has all right after 6,400 steps in {all_right['polynomial_p4']} of {len(polynomial)} seeds, "
    assert f"{said}the random sketch {sketch[-1]:.0f} % in 1 of {len(sketch)}:" in readme
    assert f"three of five seeds, {polynomial[1]:.0f} % and {polynomial[0]:.0f} % in the others" in quality
    assert f"{sketch[-1]:.0f} % in one seed and {sketch[0]:.0f} to {sketch[-2]:.0f} % in four" in quality
    assert f"Performer {performer[0]:.0f} to {performer[-1]:.0f} %;" in quality
    flash, local, identity = (found[name] for name in ("flash", "local block_size=16", "identity"))
    sliding, mean = (found[name] for name in ("local_sliding block_size=16", "v_mean"))
    assert f"`v_mean` {mean[0]:.1f} to {mean[-1]:.1f} %, fewer than by naming any value" in quality
    assert f"Softmax names all in four seeds and {flash[0]:.0f} % in the fifth" in quality
    lengths = {name: len(own) for name, own in found.items() if name != "polysketch_learned_r16"}
    assert set(lengths.values()) == {5} and len(found["polysketch_learned_r16"]) == 1
    assert min(flash[1:]) > 99 and max(local + identity + sliding) < 0.5 and mean[-1] < 100 / 64
