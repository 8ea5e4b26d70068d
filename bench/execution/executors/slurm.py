"""Arrays of Slurm jobs: this process submits them, watches the queue and the records, and resubmits lost cells.

The jobs are commands (`bench.execution.executors.slurm_job`), and records tell which cells are done. submitit does
not fit: its jobs are pickled functions that ignore SIGTERM and count as ended only when Slurm's accounting says so.
"""

import contextlib
import json
import math
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import measures
from bench.common.errors import ConfigError, bounded, say
from bench.execution.executors import remote
from bench.execution.locks import hold
from bench.execution.progress_bar import ProgressBar
from bench.execution.runner import Runner
from bench.plan.cell import Cell
from bench.plan.executors import Slurm
from bench.records import plans
from bench.records.disk import write_atomically

TOOLS = ("sbatch", "squeue", "scancel")
ANSWERS_WITHIN_S = 120.0
# The size of an array, as Slurm's default MaxArraySize allows.
MAX_TASKS = 1000
# A cell gets a `crash` record after this many jobs that ended without any record; in the last job it was alone.
MAX_FAILED_JOBS = 3
# Also after this many interruptions: the cell needs more time than its jobs have, or ends them itself.
MAX_INTERRUPTIONS = 20
# While no job has written any record, only this many cells are tried, each alone: the cause may not be the cells.
MAX_TRIAL_JOBS = 10
POLL_S = 1.0
# Between two looks at the queue; rare, to spare the controller. Successful cells are seen earlier, by their records.
LOOK_S = 15.0


class Task(NamedTuple):
    """A job of an array: the name of the array, and its index there."""

    name: str
    number: int


class SubmissionError(Exception):
    """Slurm rejects a job or does not answer; one line says why."""


def require_usable(settings: Slurm, todo: Sequence[Cell]) -> None:
    """Raise `ConfigError` if Slurm is not installed, or a cell may take longer than a job."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise ConfigError(f"hydra/launcher=slurm: there is no {tool} here; must run where jobs are submitted")
    allowed = settings.timeout_min * 60 - settings.signal_delay_s
    for cell in todo:
        # A training resumes from its checkpoint in the next job.
        if cell.timeout > allowed and not measures.get(cell.config["bench"]["name"]).trains:
            raise ConfigError(
                f"timeout={cell.timeout:g}: must be at most {allowed} seconds, what"
                f" hydra.launcher.timeout_min={settings.timeout_min} leaves a job"
            )


def run(settings: Slurm, runner: Runner, todo: Sequence[Cell], callback: ProgressBar) -> None:
    """Measure the cells in jobs: first wait for existing jobs, then submit new ones. After Ctrl-C the jobs continue."""
    for cell in todo:
        if cell.unsupported is not None:  # its record needs no job
            runner.measure(cell)
            callback.on_cell_end(cell)
    rest = [cell for cell in todo if cell.unsupported is None]
    queue = Queue(settings, runner.store.root.absolute() / plans.FOLDER / runner.sweep_id / "slurm", runner.sweep_id)
    with hold(queue.folder / "head.lock", f"sweep {runner.sweep_id}"):
        try:
            earlier = queue.clear(queue.active())
        except SubmissionError as error:
            raise ConfigError(f"hydra/launcher=slurm: {error}") from None
        if earlier:
            say(f"slurm: {len(earlier)} jobs of this sweep are there, waiting for them")
        remote.begin(runner, rest)
        try:
            Submitter(queue, runner, rest, callback, earlier).run()
        except KeyboardInterrupt:
            if names := ",".join(queue.names()):
                results = shlex.quote(str(runner.store.root))
                wait = f"python -m bench.cli.wait {runner.sweep_id} --results {results}"
                say(f"slurm: jobs go on; `{wait}` waits for them, `scancel --name={names}` ends them")
            raise
        remote.end(runner)
        queue.cancel()


class Queue:
    """The jobs of a sweep, found by their names, since the process that submitted them may be gone.

    In `folder`, beside the sweep's plan, one file per array lists the cells of its tasks.
    """

    def __init__(self, settings: Slurm, folder: Path, sweep_id: str) -> None:
        self.settings, self.folder, self._prefix = settings, folder, f"attention-zoo-{sweep_id}-"
        folder.mkdir(exist_ok=True)

    def names(self) -> list[str]:
        """The names of the arrays that were submitted, or were about to be."""
        return sorted(file.stem for file in self.folder.glob(f"{self._prefix}*.json"))

    def active(self) -> set[Task]:
        """The tasks that wait or run; raises `SubmissionError` if the controller does not answer."""
        if not (names := self.names()):
            return set()
        answer = _call("squeue", "--noheader", "--array", f"--name={','.join(names)}", "--format=%j %K")
        found = re.findall(r"^(\S+) (\d+)\s*$", answer, re.MULTILINE)
        return {Task(name, int(number)) for name, number in found if name in names}

    def clear(self, active: Iterable[Task]) -> dict[Task, list[str]]:
        """Delete the files of arrays without an active task; returns the cell ids of each active task."""
        kept = {task.name for task in active}
        for name in set(self.names()) - kept:
            (self.folder / f"{name}.json").unlink()
        chunks = {name: json.loads((self.folder / f"{name}.json").read_text()) for name in kept}
        return {task: chunks[task.name][task.number] for task in active}

    def cancel(self) -> None:
        """Cancel the jobs that still wait, which have nothing left to do, and delete all arrays' files."""
        if names := self.names():
            with contextlib.suppress(SubmissionError):
                _call("scancel", "--quiet", "--state=PENDING", f"--name={','.join(names)}")
        self.clear(())

    def submit(self, chunks: Sequence[Sequence[Cell]]) -> list[Task]:
        """Submit an array with a task for each chunk; raises `SubmissionError` if Slurm rejects it."""
        name = f"{self._prefix}{secrets.token_hex(3)}"
        file = self.folder / f"{name}.json"
        # Written first: if this process is killed in between, either nothing or everything was submitted.
        write_atomically(file, json.dumps([[cell.cell_id for cell in chunk] for chunk in chunks]).encode())
        script = batch_script(self.settings, name, file, len(chunks))
        try:
            number = _call("sbatch", "--parsable", text=script).strip().partition(";")[0]
        except SubmissionError:
            # If the controller took the array but answered too late, its jobs find no file and end.
            file.unlink()
            raise
        say(f"slurm: submitted {number}_[0-{len(chunks) - 1}], {sum(map(len, chunks))} cells; logs in {self.folder}")
        return [Task(name, number) for number in range(len(chunks))]

    def last_log_line(self, task: Task) -> str:
        """The last line of a task's log."""
        try:
            lines = (self.folder / f"{task.name}_{task.number}.log").read_text(errors="replace").split("\n")
        except OSError:
            return "it has no log"
        return bounded(next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty"), 300)


def batch_script(settings: Slurm, name: str, file: Path, tasks: int) -> str:
    """The script for sbatch to submit an array; `file` lists the cells of its tasks."""
    same = ("cpus_per_task", "partition", "qos", "account", "constraint", "exclude", "gres")
    options = {
        **{key: getattr(settings, key) for key in same},
        "gpus_per_node": settings.gpus_per_node or None,
        "mem": None if settings.mem_gb is None else f"{math.ceil(settings.mem_gb * 1024)}M",
        "nodes": 1,
        "time": settings.timeout_min,
        "array": f"0-{tasks - 1}%{min(tasks, settings.array_parallelism)}",
        "job_name": name,
        "open_mode": "append",
        "output": str(file.parent).replace("%", "%%") + "/%x_%a.log",
        "requeue": True,
        # To the batch script's process, which `exec` replaces by the job.
        "signal": f"B:USR2@{settings.signal_delay_s}",
        **(settings.additional_parameters or {}),
    }
    flags = [
        f"#SBATCH --{key.replace('_', '-')}" + ("" if value is True else f"={shlex.quote(str(value))}")
        for key, value in options.items()
        if value is not None
    ]
    module = "bench.execution.executors.slurm_job"
    command = shlex.join([sys.executable, "-u", "-m", module, str(file)])
    return "\n".join(["#!/bin/bash", *flags, "", *(settings.setup or ()), f"exec {command}", ""])


class Submitter:
    """Submits jobs until each cell has a new record; `tasks` are the existing jobs, with the ids of their cells."""

    def __init__(
        self, queue: Queue, runner: Runner, todo: Sequence[Cell], callback: ProgressBar, tasks: dict[Task, list[str]]
    ) -> None:
        self._queue, self._runner, self._callback, self._tasks = queue, runner, callback, tasks
        self._new = remote.NewRecords(runner, todo)
        self._counts_at_submission = dict.fromkeys(tasks, 0)
        """The number of new records that the cells of a task had together."""
        self._ended_once: set[Task] = set()
        self._failed_jobs: Counter[str] = Counter()
        """By cell: successive jobs that ended without a record of any of their cells."""
        self._last_task: dict[str, Task] = {}
        self._any_job_worked = False
        self._last_message = ""

    def run(self) -> None:
        """Return when all cells have a new record."""
        next_look = 0.0
        while True:
            self._report()
            if not self._new.missing:
                return
            if time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + LOOK_S
            time.sleep(POLL_S)

    def _report(self) -> None:
        for cell in self._new.poll():
            self._callback.on_cell_end(cell)

    def _look(self) -> None:
        """Look at the queue, and submit the cells that are in no job."""
        try:
            ended = self._tasks.keys() - self._queue.active()
            self._report()
            # A slow file system may show records after the job has left the queue: it must be gone at two looks.
            for task in ended & self._ended_once:
                self._note_end(task)
            self._give_up()
            self._ended_once = ended - self._ended_once
            submitted = {cell_id for chunk in self._tasks.values() for cell_id in chunk}
            self._submit([cell for cell_id, cell in self._new.missing.items() if cell_id not in submitted])
        except SubmissionError as error:
            if not self._tasks and not self._last_task:
                raise ConfigError(f"hydra/launcher=slurm: {error}") from None
            line = f"slurm: {error}; trying again"  # the controller may be restarting or overloaded
            if line != self._last_message:
                say(line)
            self._last_message = line

    def _count(self, chunk: Iterable[str]) -> int:
        return sum(self._new.counts[cell_id] for cell_id in chunk)

    def _note_end(self, task: Task) -> None:
        chunk = self._tasks.pop(task)
        failed = self._count(chunk) <= self._counts_at_submission.pop(task)
        self._any_job_worked = self._any_job_worked or not failed
        for cell_id in chunk:
            self._failed_jobs[cell_id] = self._failed_jobs[cell_id] + 1 if failed else 0
            self._last_task[cell_id] = task

    def _give_up(self) -> None:
        """Write `crash` records for cells whose jobs keep failing, or for all cells if every job has failed."""
        missing = self._new.missing
        reasons = {cell_id: why for cell_id in missing if (why := self._why_hopeless(cell_id))}
        if reasons and not self._any_job_worked and not self._tasks:
            reasons = dict.fromkeys(missing, next(iter(reasons.values()))) | reasons
        for cell_id, why in reasons.items():
            remote.give_up(self._runner, missing[cell_id], why)
        self._report()

    def _why_hopeless(self, cell_id: str) -> str | None:
        if self._failed_jobs[cell_id] >= MAX_FAILED_JOBS:
            line = self._queue.last_log_line(self._last_task[cell_id])
            return f"{MAX_FAILED_JOBS} jobs ended without a record of it: {line}"
        if self._new.counts[cell_id] >= MAX_INTERRUPTIONS:
            return f"interrupted in each of {MAX_INTERRUPTIONS} jobs"
        return None

    def _submit(self, cells: Sequence[Cell]) -> None:
        chunks = self._split(cells)
        for start in range(0, len(chunks), MAX_TASKS):
            array = chunks[start : start + MAX_TASKS]
            for task, chunk in zip(self._queue.submit(array), array, strict=True):
                self._tasks[task] = [cell.cell_id for cell in chunk]
                self._counts_at_submission[task] = self._count(self._tasks[task])

    def _split(self, cells: Sequence[Cell]) -> list[Sequence[Cell]]:
        """The cells of each new job; at its last attempt a cell gets a job of its own, so that it harms no other."""
        if self._last_task and not self._any_job_worked:
            return [[cell] for cell in cells[: max(0, MAX_TRIAL_JOBS - len(self._tasks))]]
        size, lost = self._queue.settings.cells_per_job, self._failed_jobs | self._new.counts
        others = [cell for cell in cells if lost[cell.cell_id] < MAX_FAILED_JOBS - 1]
        alone = [[cell] for cell in cells if lost[cell.cell_id] >= MAX_FAILED_JOBS - 1]
        return [*(others[start : start + size] for start in range(0, len(others), size)), *alone]


def _call(tool: str, *arguments: str, text: str = "") -> str:
    command = [tool, *arguments]
    try:
        answer = subprocess.run(command, input=text, capture_output=True, text=True, timeout=ANSWERS_WITHIN_S)
    except subprocess.TimeoutExpired:
        raise SubmissionError(f"{tool} does not answer within {ANSWERS_WITHIN_S:g} s") from None
    except OSError as error:
        raise SubmissionError(f"{tool}: {error.strerror}") from None
    if answer.returncode != 0:
        lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
        raise SubmissionError(bounded("; ".join(lines) or f"{tool} ended with exit code {answer.returncode}", 400))
    return answer.stdout
