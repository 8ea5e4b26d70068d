"""Compiling and preparing: not in the timeout of a cell; compiling before a sweep where somebody asks."""

from types import SimpleNamespace

import command
import pytest

from bench import api, compile
from bench.execution import runner
from bench.execution.child import ProgressFile
from bench.measures import context
from bench.measures.context import CellContext
from bench.measures.progress import Progress
from bench.plan.load import Loader

pytestmark = pytest.mark.usefixtures("same_code")


class Child:
    """Ends after 10 seconds of a clock that only its parent's waiting moves."""

    def __init__(self):
        self.now = 0.0

    def wait(self, seconds):
        self.now += seconds
        return self.now >= 10


@pytest.mark.parametrize(
    ("uncounted", "ends"), [({"compiling_s": 4.0}, False), ({"compiling_s": 2.0, "preparing_s": 4.0}, True)]
)
def test_a_timeout_does_not_count_what_went_into_compiling_and_preparing(uncounted, ends, tmp_path, monkeypatch):
    child, file = Child(), tmp_path / "progress"
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: child.now))
    file.write_text(Progress(**uncounted).encode())
    assert runner.wait_for(child, 5.0, file, runner.Options()) == ends


def test_a_child_tells_how_long_it_compiled(tmp_path):
    file = tmp_path / "progress"
    progress = ProgressFile(file)
    progress.note(Progress("1/2"))
    assert Progress.decode(file.read_text()) == Progress("1/2", compiling_s=0.0)
    for total, cache_hit in ((2_500_000, False), (900_000, True), (500_000, False)):
        progress.compiled(src=None, times=SimpleNamespace(total=total), cache_hit=cache_hit)
    assert Progress.decode(file.read_text()) == Progress("1/2", compiling_s=3.0)
    progress.note(Progress("2/2"))
    assert Progress.decode(file.read_text()) == Progress("2/2", compiling_s=3.0)


def test_what_a_task_prepares_is_told_with_its_seconds_and_so_is_training_after_it(monkeypatch, tmp_path):
    told = []
    one = CellContext({"device": "cpu", "dtype": "float32"}, tmp_path, report=told.append)
    monkeypatch.setattr(context, "PROGRESS_INTERVAL_S", -1.0)
    one.prepared("1/2 images drawn", 3.0)
    one.prepared("2/2 images drawn", 2.0)
    one.progress(1, 9, "loss 2")
    expected = {"1/2 images drawn": 3.0, "2/2 images drawn": 5.0, "1/9 loss 2": 5.0}
    assert told == [Progress(text, preparing_s=seconds) for text, seconds in expected.items()]


def test_what_a_sweep_will_run_is_compiled_once(driver):
    cells = api.planned(Loader(), ["experiment=h100_kernels", "size=paper", "tracking=none"]).cells
    jobs = list(compile.jobs(cells))
    mechanisms = {(entry["label"], entry["seq_len"], entry["dtype"]) for cell in cells for entry in cell.entries}
    assert {(job["label"], job["seq_len"], job["dtype"]) for job in jobs} == mechanisms
    assert {job["device"] for job in jobs} == {"cuda"}
    (shared,) = (job for job in jobs if (job["label"], job["seq_len"]) == ("polynomial_p4", 16384))
    assert shared["passes"] == ["forward", "forward_backward"]
    assert [job["label"] for job in jobs if job["steps"]] == ["polysketch_random_r32", "performer", "linear", "flash"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["attention=nosuch"], 2, "error: attention=nosuch: unknown"),
        (["attention=linear", "--jobs", "0"], 2, "error: --jobs=0: must be at least 1"),
        (["attention=linear", "device=cpu"], 0, "nothing of this sweep runs on a GPU"),
    ],
)
def test_what_there_is_nothing_to_compile_for_is_one_line(arguments, code, said, capsys):
    assert command.code_of(compile.main, arguments) == code
    printed = "".join(capsys.readouterr())
    assert printed.startswith(said) and printed.count("\n") == 1


def test_a_mechanism_that_ends_its_process_costs_no_other(driver, monkeypatch, capsys):
    monkeypatch.setattr(compile, "run_once", command.dies_of_flash)
    assert compile.main(["attention=flash,linear", "seq_len=64", "device=cuda", "--jobs", "2"]) == 0
    printed = capsys.readouterr().out.splitlines()
    died, fine = sorted(printed[:2])
    assert died.startswith("flash, 64 tokens: ") and not died.endswith(" s") and fine == "linear, 64 tokens: 1.5 s"


def test_every_pass_and_step_is_run(driver):
    asked = ["attention=linear", "seq_len=64", "num_heads=1", "batch_size=1", "causal=true", "tracking=none"]
    for bench in ("latency", "decode"):
        cells = api.planned(Loader(), [*asked, f"bench={bench}", "device=cuda"]).cells
        (job,) = compile.jobs(cells)
        assert compile.run_once({**job, "device": "cpu"}) > 0
