"""The kernels of the catalogue compile for every GPU, to nothing worse than the table says."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from attention_zoo.ops import launching
from tools.kernels import ahead_of_time, recorded
from tools.kernels import progress as of_progress
from tools.kernels.call import Call, catalogue

triton = pytest.importorskip("triton")

CATALOGUE = catalogue()
CALLS = {call.name: call for calls in CATALOGUE.values() for call in calls}
ROWS = recorded.read()
TABLE = [row for row in ROWS if row.triton == triton.__version__]
NEWEST = max((tuple(map(int, row.triton.split("."))), row.triton) for row in ROWS)[1]
of_this_triton = pytest.mark.skipif(bool(CALLS) and not TABLE, reason=f"no rows of triton {triton.__version__}")


# Sums of fewer than 64 features, the rows of a wgmma, where a sketch has fewer.
NARROW = ("state_kernel", "state_kernel 2")


def allowed(row):
    """Problems that a kernel cannot but have."""
    return ("has products that are not wgmma (HMMA)",) if row.kernel in NARROW else ()


def typical(call):
    """Whether it is of the numbers and the head dimension that the kernels are made for first."""
    return call.dtype.itemsize == 2 and re.search(r"\bh64\b", call.name) is not None


def compile_and_compare(tmp_path, targets, names):
    """The command line in a process that does not interpret kernels."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    pattern = f"^({'|'.join(map(re.escape, names))})$"
    command = [sys.executable, "-m", "tools.kernels.ahead_of_time", "--match", pattern, "--jobs", "1"]
    command += ["--target", *map(str, targets), "--progress", str(tmp_path / "progress.jsonl")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"of {len(names)} calls compiled" in done.stdout


def test_names_are_unique():
    assert sum(map(len, CATALOGUE.values())) == len(CALLS)


def test_in_a_process_that_interprets_kernels_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(launching, "IS_INTERPRETED", True)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET is set"):
        ahead_of_time.compile_call(None, 90)


@of_this_triton
def test_the_table_is_of_the_calls_that_there_are():
    assert {(row.call, row.target) for row in TABLE} == {(n, target) for n in CALLS for target in ahead_of_time.TARGETS}


@of_this_triton
def test_typical_kernels_have_no_problem_on_hopper_and_with_the_newest_triton_spill_nowhere():
    rows = [row for row in TABLE if typical(CALLS[row.call])]
    spilled = [row for row in rows if row.spill_bytes and row.triton == NEWEST]
    bad = spilled + [row for row in rows if row.target == 90 and row.problems not in ("", *allowed(row))]
    assert [f"sm_{row.target} {row.call}, {row.kernel}: {row.problems}" for row in bad] == []


@of_this_triton
@pytest.mark.parametrize("targets", [[90], pytest.param([80, 100], marks=pytest.mark.slow)], ids=str)
def test_a_typical_kernel_of_each_operation_compiles_to_what_the_table_says(targets, tmp_path):
    kernels = Counter(row.call for row in TABLE)
    fewest = [min(filter(typical, calls), key=lambda call: kernels[call.name]) for calls in CATALOGUE.values()]
    compile_and_compare(tmp_path, targets, [call.name for call in fewest])


@pytest.mark.slow
@of_this_triton
@pytest.mark.parametrize("operation", CATALOGUE)
def test_every_kernel_compiles_for_every_gpu_to_what_the_table_says(operation, tmp_path):
    compile_and_compare(tmp_path, ahead_of_time.TARGETS, [call.name for call in CATALOGUE[operation]])


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The command line on two calls, of which the second does not compile for sm_80, and a table of its own."""
    calls = [Call("op forward", torch.float16, None), Call("op backward", torch.float16, None)]

    def compile_call(call, target):
        if (call.name, target) == ("op backward", 80):
            raise RuntimeError("kernel does not compile for sm_80: too few registers")
        return [(call.name, target)]

    def row(kernel):
        name, target = kernel
        return recorded.Row(name, "kernel", target, "3", "float16", "m64_w4_s3", 64, 0, 0, 8, "", "")

    monkeypatch.setattr(ahead_of_time, "catalogue", lambda: {"op": calls})
    monkeypatch.setattr(ahead_of_time, "compile_call", compile_call)
    monkeypatch.setattr(recorded, "row", row)
    monkeypatch.setattr(recorded, "TABLE", tmp_path / "table.csv")
    progress = ["--progress", str(tmp_path / "runs" / "kernels.jsonl")]
    return lambda arguments: ahead_of_time.main(["--jobs", "1", *progress, *arguments])


def test_a_call_that_does_not_compile_fails_the_command_and_not_the_others(command, capsys):
    assert command([]) == 1
    printed, said = capsys.readouterr()
    assert said.splitlines() == [
        "table.csv has no rows of Triton 3: nothing is compared",
        "op backward: kernel does not compile for sm_80: too few registers",
    ]
    assert "5 kernels of 2 calls compiled" in printed and "sm_100 op backward, kernel" in printed


def test_written_rows_are_those_that_were_asked_for(command, capsys):
    assert command(["--match", "forward", "--target", "80", "90", "--write"]) == 0
    assert [(row.call, row.target) for row in recorded.read()] == [("op forward", 80), ("op forward", 90)]
    assert command(["--match", "forward$", "--target", "80", "90"]) == 0
    assert command(["--match", "forward"]) == 1
    assert "op forward, kernel, sm_100: is not in table.csv; mend it" in capsys.readouterr().err


def test_what_an_earlier_run_compiled_is_not_compiled_again_while_the_code_is_the_same(command, capsys, monkeypatch):
    assert command(["--target", "80"]) == 1
    assert command(["--match", "forward"]) == 0
    assert "1 of 3 were compiled by earlier runs" in capsys.readouterr().out
    monkeypatch.setattr(ahead_of_time, "compile_call", None)
    assert command(["--match", "forward", "--write"]) == 0
    assert [(row.call, row.target) for row in recorded.read()] == [("op forward", one) for one in ahead_of_time.TARGETS]
    assert command(["--match", "backward", "--target", "80"]) == 1, "a failure is tried again"
    monkeypatch.setattr(of_progress, "ROOT", Path(__file__).parent)
    assert command(["--match", "forward"]) == 1, "other code"
