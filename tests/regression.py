"""Is this tree slower than another commit? `python -P tests/regression.py [COMMIT [CASE,...]]`, or `make bench-check`.

Two processes, one with the `attention_zoo` of each, take turns: round after round, each times the same calls on the
same inputs, so that drift of the machine hits both. A case is slower where the whole 95 % interval of the ratio of the
rounds is beyond `TOLERANCE`. (Two processes of one commit would differ by a factor of two where the allocator gives
memory back after some calls of one and not of the other; `KEEPING` forbids it in both.)

Exit code 0: no case is slower; 1: some are, each with a line; 2: no such commit or case.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.records.statistics import Ratio, ratio_interval

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("regression_worker.py")
COMMIT = "HEAD~1"
TOLERANCE = 0.05
ROUNDS = 15
WARMUP_CALLS = 3
SAMPLE_NS = 40e6
# glibc's allocator takes all memory from one heap and keeps it.
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


@dataclass(frozen=True)
class Case:
    """What is timed: one pass of a mechanism with its own hyperparameters, 4 heads of 64, one sequence."""

    mechanism: str
    seq_len: int
    causal: bool = False
    measured_pass: str = "forward"

    @property
    def name(self) -> str:
        """As it is chosen and printed."""
        direction = "causal " if self.causal else ""
        return f"{self.mechanism} {direction}{self.measured_pass} {self.seq_len}"


CASES = (
    Case("flash", 2048),
    Case("softmax", 1024),
    Case("linformer", 4096),
    Case("skeinformer", 4096),
    Case("nystromformer", 4096),
    Case("performer", 4096),
    Case("bigbird", 4096),
    Case("reformer", 4096),
    Case("informer", 2048),
    Case("polysketch", 4096, causal=True),
    Case("linear", 4096, causal=True),
    Case("performer", 4096, causal=True),
    Case("polynomial", 1024, causal=True),
    Case("skeinformer", 2048, measured_pass="forward_backward"),
    Case("polysketch", 2048, causal=True, measured_pass="forward_backward"),
)


class Mistake(Exception):
    """Of whoever runs the check, in one line."""


class Refused(Exception):
    """A tree cannot run a case, with its reason."""


class Tree:
    """A process with the `attention_zoo` of a folder; started when it is asked, and again after it has died."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None

    def time(self, case: Case, calls: int) -> float:
        """Nanoseconds per call.

        Raises:
            Refused: the tree has no such mechanism, or it raises, or its process died.
        """
        # -P: not the folder of the script, which is this tree's. A session of its own: Ctrl-C is for the parent.
        process = self._process = self._process or subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, **KEEPING, "PYTHONPATH": str(self.folder)},
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({**asdict(case), "calls": calls}), file=process.stdin, flush=True)
            line = process.stdout.readline()
        if not line:
            self.close()
            raise Refused(f"its process ended with {process.returncode}")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        return float(answer["ns"])

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A temporary folder with the `attention_zoo` of a commit.

    Raises:
        Mistake: there is no such commit, or no `attention_zoo` in it.
    """
    git = ["git", "-C", str(ROOT), "archive", "--format=tar", commit, "attention_zoo"]
    archive = subprocess.run(git, capture_output=True)
    if archive.returncode:
        raise Mistake(f"COMMIT={commit}: must be a commit that has attention_zoo; {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="bench-check-") as folder:
        subprocess.run(["tar", "--extract", "--directory", folder], input=archive.stdout, check=True)
        yield Path(folder)


def chosen(names: str) -> list[Case]:
    """The cases whose name contains one of these, separated by commas; all for none.

    Raises:
        Mistake: one of them is in no name.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if not any(name in case.name for case in CASES):
            raise Mistake(f"CASES={name}: must be part of one of: {', '.join(case.name for case in CASES)}")
    return [case for case in CASES if not wanted or any(name in case.name for name in wanted)]


def speed(case: Case, before: Tree, now: Tree, rounds: int = ROUNDS) -> Ratio:
    """How many times faster `now` is than `before`, from rounds in alternating order.

    Raises:
        Refused: one of them cannot run the case.
    """
    fastest = max(min(tree.time(case, 1) for _ in range(WARMUP_CALLS)) for tree in (before, now))
    calls = math.ceil(SAMPLE_NS / fastest)
    times: dict[Tree, list[float]] = {before: [], now: []}
    for done in range(rounds):
        for tree in (now, before) if done % 2 else (before, now):
            times[tree].append(tree.time(case, calls))
    return ratio_interval(times[before], times[now])


def check(cases: Sequence[Case], before: Tree, now: Tree) -> list[str]:
    """Print a line per case; returns the reasons why it is not as fast as before, one line each."""
    slower, allowed = [], 1 / (1 + TOLERANCE)
    for case in cases:
        try:
            ratio = speed(case, before, now)
        except Refused as reason:
            print(f"{case.name:<40} skipped: {reason}", flush=True)
            continue
        words = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] times as fast"
        is_slower = ratio.high < allowed  # the whole interval
        print(f"{case.name:<40} {words}{': slower' if is_slower else ''}", flush=True)
        if is_slower:
            slower.append(f"{case.name}: {words}, allowed is {allowed:.3f}")
    return slower


def main(commit: str = COMMIT, names: str = "") -> int:
    """Compare this tree with a commit; returns the exit code."""
    try:
        cases = chosen(names)
        with checked_out(commit) as folder:
            print(f"this tree against {commit}; 95 % intervals over {ROUNDS} rounds")
            with contextlib.closing(Tree(folder)) as before, contextlib.closing(Tree(ROOT)) as now:
                slower = check(cases, before, now)
    except Mistake as mistake:
        print(f"error: {mistake}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    for reason in slower:
        print(f"error: {reason}", file=sys.stderr)
    return 1 if slower else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main(*sys.argv[1:]))
