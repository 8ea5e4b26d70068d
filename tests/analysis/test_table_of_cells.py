"""The table of all cells shows every metric, and no two rows look the same."""

import dataclasses
from itertools import takewhile

import pytest
from synthetic_everything import everything
from synthetic_records import compare, latency, memory, record, written

from analysis.__main__ import main


@pytest.fixture
def shown(tmp_path, capsys):
    """The rows of records' tables as dictionaries, and the lines above the tables."""

    def rows(records):
        assert main(["table", "--results", str(written(tmp_path / "runs", records))]) == 0
        said, found, heads = [], [], None
        for line in capsys.readouterr().out.partition("Crossovers:")[0].splitlines():
            if line.startswith("in all rows: "):
                said.append(line.removeprefix("in all rows: "))
            elif not line:
                heads = None
            elif heads is None:
                heads = line.strip("| ").split(" | ")
            elif not line.startswith("| ---"):
                found.append(dict(zip(heads, line.removeprefix("| ").removesuffix(" |").split(" | "), strict=True)))
        return found, said

    return rows


def test_a_single_cell_has_all_its_metrics_and_its_conditions_are_in_the_line_above(shown, rng):
    source = latency("flash", 512, rng)
    ((row,), (line,)) = shown([source])
    assert [*row] == ["bench", "attention", "seq_len", "status", "intervals over",
                      "latency forward (ms)", "latency forward + backward (ms)"]  # fmt: skip
    said = dict(each.split("=") for each in line.split(", "))
    for name in ("batch_size", "num_heads", "head_dim", "dtype", "impl", "seed", "causal"):
        assert said[name] == str(source.config[name])
    assert said["device_name"] == source.device_name and not said.keys() & row.keys()


def test_a_metric_that_is_equal_in_all_rows_stays(shown):
    found, _ = shown([memory("flash", 512, seed=seed) for seed in (1, 2)])
    peaks = {row["peak_memory forward (MiB)"] for row in found}
    assert {row["seed"] for row in found} == {"1", "2"} and len(peaks) == 1 and "" not in peaks


def test_a_single_cell_that_failed_says_why(shown, rng):
    ((row,), _) = shown([latency("softmax", 512, rng, "oom")])
    assert (row["status"], row["reason"]) == ("oom", "synthetic oom")


BENCH = {"name": "latency", "passes": ["forward", "forward_backward"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"impl": "reference"}, {"impl": "reference"}),
        ({"seed": 7}, {"seed": "7"}),
        ({"repeats": 7}, {"settings": "repeats=7"}),
        ({"attention": {"name": "performer", "num_features": 7}}, {"settings": "attention.num_features=7"}),
        ({"bench": {**BENCH, "power": 7}}, {"settings": "bench.power=7"}),
        ({"bench": {**BENCH, "min_sample_ms": 7.0}}, {"settings": "bench.min_sample_ms=7.0"}),
    ],
)
def test_cells_that_differ_in_one_setting_say_so(shown, rng, changes, said):
    usual = latency("performer", 512, rng)
    found, _ = shown([usual, record({**usual.config, **changes}, usual.measurements)])
    assert [said.items() <= row.items() for row in found].count(True) == 1


@pytest.mark.parametrize("changes", [{"numerics": {"threads": 7}}, {"machine": {"torch": "7.0"}}, {}])
def test_cells_of_other_machines_or_code_do_not_look_the_same(shown, rng, changes):
    usual = latency("flash", 512, rng)
    later = {"cell_id": "0" * 64, "record_id": "0" * 32, "ended": "2026-07-07T00:00:00+00:00"}
    changes = {name: {**(getattr(usual, name) or {}), **values} for name, values in changes.items()}
    found, _ = shown([usual, dataclasses.replace(usual, **later, **changes)])
    assert len({tuple(row.items()) for row in found}) == 2
    ends = [row.get("ended") for row in found]
    assert ends == ([None, None] if changes else [usual.ended, later["ended"]]), "only if nothing else tells them apart"


def test_a_comparison_has_the_implementation_of_each_mechanism(shown, rng):
    source = compare(("flash", "performer"), 512, rng, impl="reference")
    source.config["bench"]["against"][0]["impl"] = "fused"
    _, (line,) = shown([source])
    assert "impl=reference, fused" in line


def test_no_two_cells_look_the_same(shown):
    records = everything()
    found, _ = shown(records)
    told = {(*takewhile(lambda each: each[0] != "status", row.items()), row.get("ended")) for row in found}
    assert len(found) == len({one.cell_id for one in records}) == len(told)
