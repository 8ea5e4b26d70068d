"""`make bench-check`: a slower tree fails with a line, an equal one passes, what cannot be run is said."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import regression
from regression import CASES, ROOT, Case, Mistake, Refused, Tree, check, chosen, main, speed

import attention_zoo

SCRIPT = ROOT / "tests" / "regression.py"
CASE = Case("v_mean", 64)
PLANTED = "    def _attend("


class Clock:
    """A tree whose calls take so long, with some noise; of all trees, `asked` has which was asked for how many."""

    asked: ClassVar[list] = []

    def __init__(self, ns, noise=0.0, refuses=()):
        self.ns, self.noise, self.refuses = ns, noise, refuses
        self.rng = np.random.default_rng(int(ns))

    def time(self, case, calls):
        if case.mechanism in self.refuses:
            raise Refused("ValueError: unknown")
        self.asked.append((self, calls))
        drift = 1 + len(self.asked) / 100  # which all share
        return self.ns * self.rng.lognormal(0, self.noise) * drift


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch):
    monkeypatch.setattr(Clock, "asked", [])


@pytest.mark.parametrize(
    ("factor", "noise", "slower"),
    [(1.0, 0, False), (0.5, 0, False), (1.03, 0, False), (1.1, 0.2, False), (1.15, 0, True), (3.0, 0, True)],
)
def test_a_planted_slowdown_fails_and_says_which_case(factor, noise, slower, capsys):
    """Where the whole interval is beyond the tolerance."""
    reasons = check([CASE], Clock(1e6, noise), Clock(1e6 * factor, noise))
    assert bool(reasons) == slower
    if slower:
        assert reasons[0].startswith("v_mean forward 64: 0.") and reasons[0].endswith("allowed is 0.952")
    assert ("slower" in capsys.readouterr().out) == slower


def test_both_are_timed_in_alternating_order_with_as_many_calls():
    before, now = Clock(1e6), Clock(2e6)
    ratio = speed(CASE, before, now, rounds=4)
    # 40 ms of the slower one.
    assert Clock.asked[-8:] == [(tree, 20) for tree in (before, now, now, before) * 2]
    assert ratio.median == pytest.approx(0.5, rel=0.01)


def test_a_case_that_a_commit_does_not_have_is_said_and_skipped(capsys):
    assert len(check([Case("performer", 64), CASE], Clock(1e6, refuses=["performer"]), Clock(2e6))) == 1
    assert "performer forward 64" in (line := capsys.readouterr().out.splitlines()[0])
    assert line.endswith("skipped: ValueError: unknown")


def test_cases_are_chosen_by_parts_of_their_names():
    assert chosen("") == list(CASES) and len({case.name for case in CASES}) == len(CASES)
    assert {case.mechanism for case in chosen("polysketch, linear")} == {"polysketch", "linear"}
    assert all(case.measured_pass == "forward_backward" for case in chosen("forward_backward"))
    with pytest.raises(Mistake, match="CASES=nothing: must be part of one of: flash forward"):
        chosen("polysketch,nothing")
    for case in CASES:
        attention_zoo.create(case.mechanism, head_dim=64, num_heads=4, causal=case.causal, max_seq_len=case.seq_len)


@pytest.mark.parametrize(
    "arguments, key", [(["no-such-commit"], "COMMIT=no-such-commit"), (["HEAD", "nothing"], "CASES=nothing")]
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, key, capsys):
    assert main(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {key}: must be ") and error.count("\n") == 1


def changed(folder, statement):
    """A copy of this tree in which V-Mean does something else first."""
    shutil.copytree(ROOT / "attention_zoo", folder / "attention_zoo", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "attention_zoo" / "v_mean.py"
    head, body = file.read_text().split(PLANTED, 1)
    definition, rest = body.split("\n", 1)
    file.write_text(f"{head}{PLANTED}{definition}\n        {statement}\n{rest}")
    return folder


@pytest.mark.commands
def test_processes_time_the_tree_that_they_are_given(tmp_path, monkeypatch):
    monkeypatch.setattr(regression, "SAMPLE_NS", 1e6)
    slowed = changed(tmp_path, "__import__('time').sleep(0.02)")
    with closing(Tree(ROOT)) as before, closing(Tree(slowed)) as now, closing(Tree(ROOT)) as same:
        assert check([CASE, Case("v_mean", 64, causal=True, measured_pass="forward_backward")], before, now)
        # Equal ones: whatever the machine is at, nowhere near twice as slow.
        assert speed(CASE, before, same).median > 0.5
        with pytest.raises(Refused, match="unknown"):
            now.time(Case("no_such", 64), 1)
        assert now.time(CASE, 1) > 2e7


@pytest.mark.commands
def test_a_process_that_dies_is_a_reason_and_the_next_case_has_a_new_one(tmp_path):
    with closing(Tree(changed(tmp_path, "__import__('os')._exit(7)"))) as tree:
        with pytest.raises(Refused, match="ended with"):
            tree.time(CASE, 1)
        assert tree.time(Case("flash", 64), 1) > 0


HAS_GIT = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True).returncode == 0


@pytest.mark.commands
@pytest.mark.skipif(not HAS_GIT, reason="needs the repository")
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_neither_processes_nor_folders(number, code, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-u", "-P", str(SCRIPT), "HEAD", "softmax"]  # as the Makefile does
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline().startswith("this tree against HEAD")
    deadline, started = time.monotonic() + 60, Path(f"/proc/{running.pid}/task/{running.pid}/children")
    while not (children := started.read_text().split()) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(number)
    _, error = running.communicate(timeout=60)
    assert running.returncode == code and "Traceback" not in error
    assert list(tmp_path.glob("bench-check-*")) == []
    # One that was just being started reads the end of its input.
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children and not any(Path(f"/proc/{child}").exists() for child in children)
