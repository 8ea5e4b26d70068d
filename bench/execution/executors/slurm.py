"""Arrays of Slurm jobs: this process submits, looks at the queue and the records, and submits again what was lost.

Of submitit this uses the batch script. Its jobs are functions that travel as pickles, answer no SIGTERM, and have ended
when accounting says so; ours are commands (`bench.execution.job`), and what they have done the records say.
"""

from __future__ import annotations

import contextlib
import importlib.util
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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import measures
from bench.common.errors import ConfigError, bounded, say
from bench.execution import rounds
from bench.execution.executors import Watch
from bench.execution.locks import hold
from bench.execution.work import Work
from bench.plan.cell import Cell
from bench.plan.executors import Slurm
from bench.records import plans
from bench.records.disk import write_atomically

TOOLS = ("sbatch", "squeue", "scancel", "srun")  # submitit looks for the last one
PATIENCE_S = 120.0
# What arrays may have where nobody has changed MaxArraySize.
MOST_TASKS = 1000
# A cell whose jobs end so often without any record, the last time alone in its job, gets one that says so.
MOST_FRUITLESS = 3
# So does one that was interrupted so often in a round: it takes longer than its jobs last, or ends them itself.
MOST_INTERRUPTED = 20
# Where no job has come to anything, so many try again first, with a cell each: the fault may be none of the cells'.
PROBES = 10
POLL_S = 1.0
# Between two looks at the queue: soon after something has happened, later as rarely as is polite to the controller.
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 60.0


class Task(NamedTuple):
    """A job of an array: the name of the array, and its index there."""

    name: str
    number: int


class SubmissionError(Exception):
    """Slurm does not take a job; one line says why."""


def require_usable(settings: Slurm, todo: Sequence[Cell]) -> None:
    """Raise `ConfigError` where there is no Slurm, or a cell may take longer than a job."""
    if importlib.util.find_spec("submitit") is None:
        raise ConfigError("hydra/launcher=slurm: needs submitit; install attention-zoo[slurm]")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise ConfigError(f"hydra/launcher=slurm: there is no {tool} here; must run where jobs are submitted")
    allowed = settings.timeout_min * 60 - settings.signal_delay_s
    for cell in todo:
        # What trains goes on in the next job where it stopped.
        if cell.timeout > allowed and not measures.get(cell.config["bench"]["name"]).trains:
            raise ConfigError(
                f"timeout={cell.timeout:g}: must be at most {allowed} seconds, what"
                f" hydra.launcher.timeout_min={settings.timeout_min} leaves a job"
            )


def run(settings: Slurm, work: Work, todo: Sequence[Cell], watch: Watch) -> None:
    """Have the cells measured by jobs: those that are there already, then new ones.

    Raises:
        ConfigError: Slurm does not take the jobs.
        KeyboardInterrupt: the jobs go on.
    """
    if not todo:
        rounds.forget(work)
        return
    for cell in todo:
        if cell.unsupported is not None:  # no job is needed to say so
            work.measure(cell)
            watch.ended(cell)
    jobs = Jobs(settings, work.store.root.absolute() / plans.FOLDER / work.sweep_id / "slurm", work.sweep_id)
    with hold(jobs.folder / "head.lock", f"sweep {work.sweep_id}", say):
        try:
            rest = _go_on(jobs, work, todo, watch)
            if rest:
                rounds.begin(work, rest)
                jobs.forget()
                _Head(jobs, work, rest, watch).run()
            rounds.forget(work)
            jobs.forget()
        except KeyboardInterrupt:
            _say_what_lives_on(jobs, work)
            raise


def _say_what_lives_on(jobs: Jobs, work: Work) -> None:
    if names := ",".join(jobs.names()):
        results = shlex.quote(str(work.store.root))
        wait = f"python -m bench.wait {work.sweep_id} --results {results}"
        say(f"slurm: jobs go on; `{wait}` waits for them, `scancel --name={names}` ends them")


def _go_on(jobs: Jobs, work: Work, todo: Sequence[Cell], watch: Watch) -> list[Cell]:
    """Wait for the jobs of a head that was killed; returns the cells that nobody has measured since."""
    try:
        living = jobs.living()
    except SubmissionError as error:
        raise ConfigError(f"hydra/launcher=slurm: {error}") from None
    with contextlib.suppress(plans.PlanError):  # nobody has begun one
        begun, cells = rounds.current(work.store.root, work.sweep_id)
        if living:
            say(f"slurm: {len(living)} jobs of this sweep are there, waiting for them")
            _Head(jobs, begun, cells, watch, {cell.cell_id for cell in todo}).run()
    arrivals = rounds.Arrivals(work, [cell for cell in todo if cell.unsupported is None])
    arrivals.new()
    return list(arrivals.missing.values())


class Jobs:
    """The jobs of a sweep, which anybody finds by name: a head that was killed leaves nothing else behind.

    Args:
        settings: what they ask for.
        folder: `slurm` beside the sweep's plan, with a file for each array that says which cells its tasks have.
        sweep_id: of the plan.
    """

    def __init__(self, settings: Slurm, folder: Path, sweep_id: str) -> None:
        self.settings, self.folder, self._prefix = settings, folder, f"attention-zoo-{sweep_id}-"
        folder.mkdir(exist_ok=True)
        self._held: set[Task] = set()

    def names(self) -> list[str]:
        """The names of the arrays that were submitted, or were about to be."""
        return sorted(file.stem for file in self.folder.glob(f"{self._prefix}*.json"))

    def chunks(self) -> dict[Task, list[str]]:
        """The ids of the cells that each task has."""
        lists = {name: json.loads((self.folder / f"{name}.json").read_text()) for name in self.names()}
        return {Task(name, number): chunk for name, chunks in lists.items() for number, chunk in enumerate(chunks)}

    def living(self) -> set[Task]:
        """The tasks that wait or run.

        Raises:
            SubmissionError: the controller does not answer.
        """
        names = self.names()
        if not names:
            return set()
        listed = _call("squeue", "--noheader", "--array", f"--name={','.join(names)}", "--format=%i|%j|%T|%r")
        living = set()
        for line in listed.splitlines():
            match = re.fullmatch(r"\d+_(\d+)\|([^|]+)\|([^|]*)\|(.*)", line.strip())
            if match and match[2] in names:
                task = Task(match[2], int(match[1]))
                living.add(task)
                self._mention_held(task, line, match[4])
        return living

    def _mention_held(self, task: Task, line: str, reason: str) -> None:
        if "held" in reason.lower() and task not in self._held:
            self._held.add(task)
            say(f"slurm: job {line.partition('|')[0]} does not start, {bounded(reason)}; `scontrol release` lets it")

    def submit(self, chunks: Sequence[Sequence[Cell]]) -> list[Task]:
        """Submit an array with a task for each chunk.

        Raises:
            SubmissionError: Slurm does not take it.
        """
        name = f"{self._prefix}{secrets.token_hex(3)}"
        file = self.folder / f"{name}.json"
        # Before its jobs: a head that is killed in between has submitted nothing, or all.
        write_atomically(file, json.dumps([[cell.cell_id for cell in chunk] for chunk in chunks]).encode())
        script = file.with_suffix(".sh")
        script.write_text(self._script(name, file, len(chunks)))
        try:
            answer = _call("sbatch", "--parsable", str(script))
        except SubmissionError:
            if not self._taken(name):
                file.unlink()
                script.unlink()
                raise
            answer = "?"
        number = answer.strip().partition(";")[0]
        say(f"slurm: submitted {number}_[0-{len(chunks) - 1}], {sum(map(len, chunks))} cells; logs in {self.folder}")
        return [Task(name, number) for number in range(len(chunks))]

    def _taken(self, name: str) -> bool:
        """Whether an array is there although sbatch has failed: a controller that answers late has taken it."""
        try:
            return bool(_call("squeue", "--noheader", f"--name={name}"))
        except SubmissionError:
            return True  # nobody knows; who has no job is found later

    def _script(self, name: str, file: Path, tasks: int) -> str:
        import submitit

        asked = ("cpus_per_task", "partition", "qos", "account", "constraint", "exclude", "gres", "setup")
        settings = self.settings
        given = {key: getattr(settings, key) for key in (*asked, "array_parallelism")}
        given |= {"time": settings.timeout_min, "gpus_per_node": settings.gpus_per_node or None}
        given |= {"mem": settings.mem_gb and f"{math.ceil(settings.mem_gb * 1024)}M"}
        log = str(self.folder).replace("%", "%%") + "/%x_%a.log"
        # To the script itself, which becomes the job's process.
        options = {"signal": f"B:USR2@{settings.signal_delay_s}", "requeue": True, "output": log}
        executor = submitit.SlurmExecutor(self.folder)
        executor.update_parameters(
            **{key: value for key, value in given.items() if value is not None},
            job_name=name,
            wckey=None,
            stderr_to_stdout=True,
            use_srun=False,
            additional_parameters={**options, **(settings.additional_parameters or {})},
        )
        executor.parameters["map_count"] = tasks
        command = shlex.join([sys.executable, "-u", "-m", "bench.execution.job", str(file)])
        return executor._make_submission_file_text(f"exec {command}", "")

    def last_words(self, task: Task) -> str:
        """The last line of a task's log."""
        try:
            lines = (self.folder / f"{task.name}_{task.number}.log").read_text(errors="replace").split("\n")
        except OSError:
            return "it has no log"
        return bounded(next((line.strip() for line in reversed(lines) if line.strip()), "its log is empty"), 300)

    def forget(self) -> None:
        """Have no jobs any more: those that still wait have nothing to do."""
        if names := self.names():
            with contextlib.suppress(SubmissionError):
                _call("scancel", "--quiet", "--state=PENDING", f"--name={','.join(names)}")
        for name in names:
            for suffix in (".json", ".sh"):
                (self.folder / f"{name}{suffix}").unlink(missing_ok=True)


class _Head:
    """Sees that the cells of a round get their records.

    Args:
        jobs: the sweep's; those that live already are waited for.
        work: the round's.
        todo: its cells.
        watch: told of cells that have ended.
        shown: the ids of those that it is told of; None: all.
    """

    def __init__(
        self, jobs: Jobs, work: Work, todo: Sequence[Cell], watch: Watch, shown: Iterable[str] | None = None
    ) -> None:
        self._jobs, self._work, self._watch = jobs, work, watch
        self._shown = frozenset(shown) if shown is not None else frozenset(cell.cell_id for cell in todo)
        self._arrivals = rounds.Arrivals(work, todo)
        self._chunks = jobs.chunks()
        self._records = dict.fromkeys(self._chunks, 0)
        """How many records the cells of a task had when it was submitted."""
        self._gone: set[Task] = set()
        self._fruitless: Counter[str] = Counter()
        self._last: dict[str, Task] = {}
        self._at_first = self._counts()
        self._interrupted: Counter[str] = Counter()
        self._barren = True
        """Whether no job has come to anything yet."""
        self._said = ""

    def run(self) -> None:
        """Until all have one."""
        pause, next_look = SHORTEST_PAUSE_S, 0.0
        while True:
            self._hear()
            if not self._arrivals.missing:
                return
            if time.monotonic() >= next_look:
                pause = SHORTEST_PAUSE_S if self._look() else min(pause * 1.5, LONGEST_PAUSE_S)
                next_look = time.monotonic() + pause
            time.sleep(POLL_S)

    def _hear(self) -> None:
        for cell in self._arrivals.new():
            if cell.cell_id in self._shown:
                self._watch.ended(cell)

    def _look(self) -> bool:
        """Submit what no job has; returns whether anything has happened."""
        try:
            living = self._jobs.living()
        except SubmissionError as error:  # it is being restarted, or has too much to do
            self._mention(f"slurm: {error}; trying again")
            return False
        gone = self._chunks.keys() - living
        # A slow file system shows records later than the queue loses their job: it has to be gone at two looks.
        counts = self._counts()
        for task in gone & self._gone:
            self._bury(task, counts)
        self._hear()
        self._give_up()
        self._gone = gone - self._gone
        held = {cell_id for chunk in self._chunks.values() for cell_id in chunk}
        idle = [cell for cell_id, cell in self._arrivals.missing.items() if cell_id not in held]
        return bool(idle and self._submit(idle)) or bool(gone)

    def _bury(self, task: Task, counts: Counter[str]) -> None:
        """Judge a task that is gone: one without a single record may be its cells' fault, or nobody's."""
        chunk = self._chunks.pop(task)
        fruitless = _of(counts, chunk) <= self._records.pop(task)
        self._barren = self._barren and fruitless
        for cell_id in chunk:
            self._fruitless[cell_id] = self._fruitless[cell_id] + 1 if fruitless else 0
            self._interrupted[cell_id] = _of(counts, [cell_id]) - _of(self._at_first, [cell_id])
            self._last[cell_id] = task

    def _give_up(self) -> None:
        """Write records for the cells that have come to nothing, or for all where nothing ever has."""
        missing = self._arrivals.missing
        hopeless = {cell_id: why for cell_id in missing if (why := self._hopeless(cell_id))}
        reasons = hopeless
        if hopeless and self._barren and not self._chunks:
            reasons = dict.fromkeys(missing, next(iter(hopeless.values()))) | hopeless
        for cell_id, why in reasons.items():
            rounds.give_up(self._work, missing[cell_id], why)
        self._hear()

    def _hopeless(self, cell_id: str) -> str | None:
        if self._fruitless[cell_id] >= MOST_FRUITLESS:
            words = self._jobs.last_words(self._last[cell_id])
            return f"{MOST_FRUITLESS} jobs ended without a record of it: {words}"
        if self._interrupted[cell_id] >= MOST_INTERRUPTED:
            return f"interrupted in each of {MOST_INTERRUPTED} jobs"
        return None

    def _submit(self, cells: Sequence[Cell]) -> bool:
        try:
            split = self._split(cells)
            for chunks in _arrays(split):
                before = self._counts()
                for task, chunk in zip(self._jobs.submit(chunks), chunks, strict=True):
                    self._chunks[task] = [cell.cell_id for cell in chunk]
                    self._records[task] = _of(before, self._chunks[task])
        except SubmissionError as error:
            if not self._chunks and not self._fruitless:
                raise ConfigError(f"hydra/launcher=slurm: {error}") from None
            self._mention(f"slurm: {error}; trying again")
            return False
        return bool(split)

    def _split(self, cells: Sequence[Cell]) -> list[Sequence[Cell]]:
        """Chunks; a cell whose jobs come to nothing is alone in the last one, and costs no other."""
        if self._barren and self._fruitless:
            probing = sum(self._fruitless[chunk[0]] > 0 for chunk in self._chunks.values())
            return [[cell] for cell in cells[: max(0, PROBES - probing)]]
        size = self._jobs.settings.cells_per_job
        suspect = {
            each for each in self._last if max(self._fruitless[each], self._interrupted[each]) >= MOST_FRUITLESS - 1
        }
        others = [cell for cell in cells if cell.cell_id not in suspect]
        alone = [[cell] for cell in cells if cell.cell_id in suspect]
        return [*(others[start : start + size] for start in range(0, len(others), size)), *alone]

    def _counts(self) -> Counter[str]:
        return Counter(name.partition("-")[0] for name in self._work.store.names())

    def _mention(self, line: str) -> None:
        if line != self._said:
            self._said = line
            say(line)


def _of(counts: Counter[str], chunk: Iterable[str]) -> int:
    """How many records cells have."""
    return sum(counts[cell_id[:16]] for cell_id in chunk)


def _arrays(chunks: Sequence[Sequence[Cell]]) -> Iterator[Sequence[Sequence[Cell]]]:
    for start in range(0, len(chunks), MOST_TASKS):
        yield chunks[start : start + MOST_TASKS]


def _call(tool: str, *arguments: str) -> str:
    try:
        answer = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        raise SubmissionError(f"{tool} does not answer within {PATIENCE_S:g} s") from None
    except OSError as error:
        raise SubmissionError(f"{tool}: {error.strerror}") from None
    if answer.returncode != 0:
        lines = [line.strip() for line in answer.stderr.splitlines() if line.strip()]
        raise SubmissionError(bounded("; ".join(lines) or f"{tool} ended with exit code {answer.returncode}", 400))
    return answer.stdout
