"""The child process: it ends well and obeys its limit. That it ends with its parent, test_processes.py shows."""

import pytest
from command import FAKES, TINY, bench, python
from one_cell import one_cell

from bench.execution.runner import Runner
from bench.records.store import Store

pytestmark = pytest.mark.commands


def test_it_obeys_its_memory_limit(tmp_path):
    limited, runner = {"name": "memory", "memory_limit": 0.1}, Runner(Store(tmp_path))
    cells = (one_cell(name, limited, seq_len=4096, head_dim=4) for name in ("softmax", "v_mean"))
    softmax, v_mean = map(runner.run_cell, cells)
    assert softmax.status == "oom" and not softmax.measurements
    assert softmax.reason.endswith("; the limit was 102 MiB")
    assert v_mean.status == "ok"
    assert v_mean.numerics["memory_limit_bytes"] == int(0.1 * 2**30)
    assert v_mean.numerics["tf32_convolution"] is False


HARD = 64 * 2**30
UNDER_A_HARD_LIMIT = f"""
import resource
resource.setrlimit(resource.RLIMIT_DATA, ({HARD}, {HARD}))
from bench.execution.child import limit_memory
for wanted in (0.1, 1000.0):
    limit = limit_memory({{"device": "cpu", "bench": {{"memory_limit": wanted}}}})
    print(limit, *resource.getrlimit(resource.RLIMIT_DATA))
print(limit_memory({{"device": "cpu", "bench": {{}}}}, share=0.5, machine_bytes=2**28))
"""


def test_it_lowers_its_limit_leaves_the_hard_one_and_heeds_its_control_group():
    result = python("-c", UNDER_A_HARD_LIMIT)
    little, much, shared = (tuple(map(int, line.split())) for line in result.stdout.splitlines())
    assert shared == (int(0.8 * 0.5 * 2**28),)
    assert little[0] == int(0.1 * 2**30) and little[0] < little[1] < HARD
    assert much[0] < HARD and much[1] == HARD
    assert little[2] == much[2] == HARD


def test_a_mechanism_that_changes_the_working_directory_still_has_a_record(tmp_path):
    typed = ["attention=v_mean", "attention.name=fake_chdir", "tracking=none", "results_dir=here", *TINY]
    result = bench(*typed, cwd=tmp_path, **FAKES)
    assert result.returncode == 1, result.stderr
    (record,) = Store(tmp_path / "here").load()
    assert record.status == "incorrect" and record.reason.endswith("changed the working directory to /")
