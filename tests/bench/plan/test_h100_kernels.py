"""`experiment=h100_kernels` has a cell for all that it is to show, and runs on a CPU in its small size."""

import time

import pytest

from bench import api
from bench.measures import get
from bench.plan.load import Loader

pytestmark = pytest.mark.usefixtures("same_code")
OTHERS = {"fla_linear_attn", "fla_simple_gla", "retention_power"}


@pytest.fixture(scope="module")
def cells():
    return api.planned(Loader(), ["experiment=h100_kernels", "size=paper", "tracking=none"]).cells


def labels(cell):
    return {cell.config["label"], *(other["label"] for other in cell.config["bench"].get("against", ()))}


def test_there_are_as_many_cells_as_fit_ten_minutes(cells):
    assert len(cells) == 40
    # By the estimates of the file: those of one mechanism, and comparisons.
    assert sum(25 if get(cell.config["bench"]["name"]).compares else 8.5 for cell in cells) < 600
    assert all(cell.timeout == 120 and cell.config["causal"] and cell.config["num_heads"] == 12 for cell in cells)


def test_a_package_that_is_missing_costs_no_comparison_without_it(cells):
    for cell in cells:
        if cell.config["bench"]["name"] == "compare" and labels(cell) & OTHERS:
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
