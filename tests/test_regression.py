"""`make bench-check`: a slower tree fails with a line, an equal one passes, what cannot be run is said."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import regression
from regression import CASES, ROOT, Case, Mistake, Refused, Tree, check, checked_out, chosen, is_slower, main, speed

import attention_zoo
from bench.records.statistics import Ratio

SCRIPT = ROOT / "tests" / "regression.py"
CASE = Case("v_mean", 64)
PLANTED = "    def _attend("


class Clock:
    """A tree whose calls take so long, under the drift that both share and some noise of its own."""

    def __init__(self, ns, drift, noise=0.0, refuses=()):
        self.ns, self.drift, self.noise, self.refuses, self.asked = ns, drift, noise, refuses, []
        self.rng = np.random.default_rng(int(ns))

    def time(self, case, calls):
        if case.mechanism in self.refuses:
            raise Refused("ValueError: unknown")
        self.asked.append(calls)
        self.drift.append(None)
        return self.ns * self.rng.lognormal(0, self.noise) * (1 + len(self.drift) / 100)


def clocks(before, now, **changes):
    drift = []
    return Clock(before, drift, **changes), Clock(now, drift, **changes)


@pytest.mark.parametrize("factor, slower", [(1.0, False), (0.5, False), (1.03, False), (1.15, True), (3.0, True)])
def test_a_planted_slowdown_fails_and_says_which_case(factor, slower, capsys):
    reasons = check([CASE], *clocks(1e6, 1e6 * factor))
    assert bool(reasons) == slower
    if slower:
        assert reasons[0].startswith("v_mean forward 64: 0.") and reasons[0].endswith("allowed is 0.952")
    assert ("slower" in capsys.readouterr().out) == slower


def test_an_interval_that_reaches_the_tolerance_is_no_regression():
    assert [is_slower(Ratio(0.9, 0.8, high, "slower")) for high in (0.96, 0.95)] == [False, True]
    assert not check([CASE], *clocks(1e6, 1.1e6, noise=0.2))


def test_both_are_timed_in_alternating_order_with_as_many_calls():
    before, now = clocks(1e6, 2e6)
    order = []
    for name, clock in (("before", before), ("now", now)):
        clock.time = lambda case, calls, name=name, own=clock.time: (order.append(name), own(case, calls))[1]
    ratio = speed(CASE, before, now, rounds=4)
    assert order[-8:] == ["before", "now", "now", "before"] * 2
    assert set(before.asked[3:]) == set(now.asked[3:]) == {20}  # 40 ms of the slower one
    assert ratio.median == pytest.approx(0.5, rel=0.01)


def test_a_case_that_a_commit_does_not_have_is_said_and_skipped(capsys):
    drift = []
    before, now = Clock(1e6, drift, refuses=["performer"]), Clock(2e6, drift)
    assert len(check([Case("performer", 64), CASE], before, now)) == 1
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


def slowed(folder):
    """A copy of this tree in which V-Mean sleeps."""
    shutil.copytree(ROOT / "attention_zoo", folder / "attention_zoo", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "attention_zoo" / "v_mean.py"
    head, body = file.read_text().split(PLANTED, 1)
    definition, rest = body.split("\n", 1)
    file.write_text(f"{head}{PLANTED}{definition}\n        __import__('time').sleep(0.02)\n{rest}")
    return folder


@pytest.mark.commands
def test_processes_time_the_tree_that_they_are_given(tmp_path, monkeypatch):
    monkeypatch.setattr(regression, "SAMPLE_NS", 1e6)
    with closing(Tree(ROOT)) as before, closing(Tree(slowed(tmp_path))) as now, closing(Tree(ROOT)) as same:
        assert check([CASE, Case("v_mean", 64, causal=True, measured_pass="forward_backward")], before, now)
        # Equal ones: whatever the machine is at, nowhere near twice as slow.
        assert speed(CASE, before, same).median > 0.5
        with pytest.raises(Refused, match="unknown"):
            now.time(Case("no_such", 64), 1)
        assert now.time(CASE, 1) > 2e7


@pytest.mark.commands
def test_a_process_that_dies_is_a_reason_and_the_next_case_has_a_new_one(tmp_path):
    file = slowed(tmp_path) / "attention_zoo" / "v_mean.py"
    file.write_text(file.read_text().replace("__import__('time').sleep(0.02)", "__import__('os')._exit(7)"))
    with closing(Tree(tmp_path)) as tree:
        with pytest.raises(Refused, match="ended with"):
            tree.time(CASE, 1)
        assert tree.time(Case("flash", 64), 1) > 0


def git_is_here():
    return subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True).returncode == 0


@pytest.mark.skipif(not git_is_here(), reason="needs the repository")
def test_a_commit_is_checked_out_elsewhere_and_removed():
    with checked_out("HEAD") as folder:
        assert (folder / "attention_zoo" / "base.py").is_file()
    assert not folder.exists()


@pytest.mark.commands
@pytest.mark.skipif(not git_is_here(), reason="needs the repository")
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interruption_leaves_neither_processes_nor_folders(number, code, tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-u", "-P", str(SCRIPT), "HEAD", "softmax"]  # as the Makefile does
    running = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline().startswith("this tree against HEAD")
    deadline = time.monotonic() + 60
    while not (children := children_of(running.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(number)
    _, error = running.communicate(timeout=60)
    assert running.returncode == code and "Traceback" not in error
    assert list(tmp_path.glob("bench-check-*")) == []
    # One that was just being started reads the end of its input.
    while any(Path(f"/proc/{child}").exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children and not any(Path(f"/proc/{child}").exists() for child in children)


def children_of(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
