"""`experiment=h100_kernels` has a cell for all that it is to show, and runs on a CPU in its small size."""

import itertools
import time

import pytest

from bench import api
from bench.measures import get
from bench.plan.load import Loader

pytestmark = pytest.mark.usefixtures("same_code")
FRAGILE = {"fla_linear_attn", "fla_simple_gla", "retention_power", "flash_cudnn", "flex_polynomial"}
"""What needs a package, or a kernel that a build of PyTorch may refuse."""


@pytest.fixture(scope="module")
def cells():
    return api.planned(Loader(), ["experiment=h100_kernels", "size=paper", "tracking=none"]).cells


def labels(cell):
    return {entry["label"] for entry in cell.entries}


def test_there_are_as_many_cells_as_fit_ten_minutes(cells):
    assert len(cells) == 42
    # By the estimates of the file: those of one mechanism, and comparisons.
    assert sum(22 if get(cell.config["bench"]["name"]).compares else 8.5 for cell in cells) < 600
    assert all(cell.timeout == 300 and cell.config["causal"] and cell.config["num_heads"] == 12 for cell in cells)


def test_what_may_not_run_costs_no_comparison_without_it(cells):
    firm = [labels(cell) for cell in cells if not labels(cell) & FRAGILE]
    assert set().union(*map(labels, cells)) - set().union(*firm) == FRAGILE
    wanted = {"flash_flash", "flash_efficient", "polysketch_random_r32", "polysketch_random_r64", "linear"}
    compared = [cell.config for cell in cells if labels(cell) >= wanted and not labels(cell) & FRAGILE]
    together = set().union(*(own for own in firm if len(own) > 1))
    assert "polysketch_learned_r32" in together
    lengths_and_passes = {(config["seq_len"], config["bench"]["measured_pass"]) for config in compared}
    assert lengths_and_passes == {*itertools.product((2048, 8192, 32768), ("forward", "forward_backward"))}


@pytest.mark.commands
def test_the_small_size_runs_on_a_cpu_in_a_minute(tmp_path):
    start = time.monotonic()
    records = api.run(["experiment=h100_kernels", "device=cpu", "tracking=none", f"results_dir={tmp_path}"])
    assert len(records) == 12 and {record.status for record in records} == {"ok"}
    names = {record.config["bench"]["name"] for record in records}
    assert names == {"latency", "compare", "memory", "decode", "roofline"}
    # Twice what it takes where four more work on the same two cores.
    assert time.monotonic() - start < 120
