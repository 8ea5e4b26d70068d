"""`experiment=h100_kernels` has a cell for all that it is to show, and runs on a CPU in its small size."""

import time

import pytest

from bench import api
from bench.measures import get
from bench.plan.load import Loader

OTHERS = {"fla_linear_attn", "fla_simple_gla", "retention_power"}


@pytest.fixture(scope="module")
def cells():
    return api.planned(Loader(), ["experiment=h100_kernels", "size=paper", "tracking=none"]).cells


def labels(cell):
    return {cell.config["label"], *(other["label"] for other in cell.config["bench"].get("against", ()))}


def having(cells, bench, **config):
    return [c for c in cells if c.config["bench"]["name"] == bench and config.items() <= c.config.items()]


def test_there_are_as_many_cells_as_fit_ten_minutes(cells):
    assert len(cells) == 40
    # By the estimates of the file: those of one mechanism, and comparisons.
    assert sum(25 if get(cell.config["bench"]["name"]).compares else 8.5 for cell in cells) < 600
    assert all(cell.timeout == 120 and cell.config["causal"] and cell.config["num_heads"] == 12 for cell in cells)


@pytest.mark.parametrize(
    ("bench", "label", "seq_len"),
    [
        ("latency", "polysketch_random_r32", 32768),
        ("latency", "polysketch_random_r64", 32768),
        ("latency", "polysketch_random_r32", 131072),
        ("latency", "polynomial_p4", 16384),
        ("memory", "polysketch_random_r32", 32768),
        ("memory", "polysketch_random_r64", 32768),
    ],
)
def test_shapes_are_those_that_are_asked_for(cells, bench, label, seq_len):
    asked = having(cells, bench, label=label, seq_len=seq_len)
    assert {name for cell in asked for name in cell.config["bench"]["passes"]} == {"forward", "forward_backward"}


def test_decoding_single_precision_and_the_roofline_are_measured_too(cells):
    assert {c.config["label"] for c in having(cells, "latency", dtype="float32")} >= {"polynomial_p4", "performer"}
    assert having(cells, "decode", label="polysketch_random_r32", batch_size=16)
    assert having(cells, "roofline", label="performer")


def test_faster_than_is_said_of_rounds_against_every_softmax(cells):
    for name in ("forward", "forward_backward"):
        compared = [c for c in having(cells, "compare") if c.config["bench"]["measured_pass"] == name]
        crossing = [c for c in compared if {"flash_cudnn", "flash_flash", "polysketch_random_r32"} <= labels(c)]
        assert {c.config["seq_len"] for c in crossing} == {2048, 4096, 8192, 32768}
        assert any({"flex_polynomial", "polynomial_p4"} <= labels(c) and c.config["seq_len"] == 16384 for c in compared)


def test_a_package_that_is_missing_costs_no_comparison_without_it(cells):
    for cell in having(cells, "compare"):
        if labels(cell) & OTHERS:
            assert not labels(cell) & {"polysketch_random_r32", "flash_flash"}
    assert set().union(*map(labels, cells)) >= OTHERS


@pytest.mark.commands
def test_the_small_size_runs_on_a_cpu_in_a_minute(tmp_path):
    start = time.monotonic()
    records = api.run(["experiment=h100_kernels", "device=cpu", "tracking=none", f"results_dir={tmp_path}"])
    assert len(records) == 12 and {record.status for record in records} == {"ok"}
    names = {record.config["bench"]["name"] for record in records}
    assert names == {"latency", "compare", "memory", "decode", "roofline"}
    # Twice what it takes where four more work on the same two cores.
    assert time.monotonic() - start < 120
