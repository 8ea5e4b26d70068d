"""Sweeps handed to launchers and sweepers of Hydra from elsewhere (joblib, submitit, Ray, ...): they run our jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from bench import measures
from bench.api import exit_code, finish, launch, planned, print_table, say_figures
from bench.common.errors import ConfigError, one_line
from bench.execution.results_folder import prepare_folder
from bench.execution.sweep import Sweep, needs_no_rerun, plan, run_sweep
from bench.measures.summary import Results
from bench.plan.compose import compose_jobs, expand
from bench.plan.explain import explained
from bench.plan.load import NAME, Loader
from bench.records import index
from bench.records.record import Record
from bench.records.store import latest
from bench.tracking.tracker import Tracker

THREADS = "OMP_NUM_THREADS"
OWN = {"launcher": "hydra_plugins.cell_sweeps.CellLauncher", "sweeper": "hydra_plugins.cell_sweeps.GridSweeper"}


def foreign(config: DictConfig) -> bool:
    """Whether the launcher or the sweeper is not the suite's own."""
    return any(config.hydra[key]._target_ != target for key, target in OWN.items())


class ExitCode(int):
    """A job's exit code, a number to sweepers, that says which cells the job had.

    They have other ids than where the whole was planned, if its node is of another kind.
    """

    cell_ids: tuple[str, ...] = ()

    @classmethod
    def of(cls, records: Sequence[Record]) -> ExitCode:
        """Of a job's records."""
        code = cls(exit_code(records))
        code.cell_ids = tuple(record.cell_id for record in records)
        return code


class Job:
    """What a launcher calls for each of its jobs, perhaps on another machine.

    Args:
        loader: composes configurations as the command did.
        mirrors: whether each job mirrors its own records, because nobody knows them all in the end.
    """

    def __init__(self, loader: Loader, mirrors: bool) -> None:
        self.loader = loader
        self.mirrors = mirrors
        self.worst = 0
        self.threads = os.environ.get(THREADS)

    def __call__(self, config: DictConfig) -> int:
        """Run the job that Hydra is at as a sweep of its own; returns its `ExitCode`."""
        # Launchers give their workers fewer threads; the cell is a process of its own, and what was planned has these.
        if self.threads is None:
            os.environ.pop(THREADS, None)
        else:
            os.environ[THREADS] = self.threads
        given = HydraConfig.get().overrides
        sweep = _sweep(self.loader, given.hydra, [given.task])
        self.worst = max(code := ExitCode.of(launch(sweep) if self.mirrors else run_sweep(sweep)), self.worst)
        return code

    def together(self, hydra: Sequence[str], jobs: Sequence[Sequence[str]]) -> list[JobReturn]:
        """Run the jobs of the suite's own launcher as one sweep; each is as good as all of them.

        Raises:
            ConfigError: a configuration that cannot be run, before anything is measured.
        """
        code = exit_code(launch(_sweep(self.loader, hydra, jobs), print_table))
        self.worst = max(code, self.worst)
        return [JobReturn(list(job), status=JobStatus.COMPLETED, _return_value=code) for job in jobs]


def run(loader: Loader, config: DictConfig, overrides: Sequence[str]) -> int:
    """Run a command line through the launcher and the sweeper that it names; returns the worst exit code.

    Raises:
        ConfigError: a configuration that cannot be run; with the suite's own sweeper, before anything is launched.
    """
    if config.dry_run:
        launch(planned(loader, overrides))
        return 0
    if config.hydra.sweeper._target_ != OWN["sweeper"]:  # it alone knows which jobs there will be
        return _hand_over(Job(loader, mirrors=True), overrides)[0]
    sweep = planned(loader, overrides)
    for cell in sweep.cells:
        if measures.get(cell.config["bench"]["name"]).compares:
            name = cell.config["bench"]["name"]
            raise ConfigError(f"bench={name}: measures all of a sweep in one process; it needs hydra/launcher=cells")
    tracker = Tracker(sweep.settings)
    code, returned = (0, []) if _all_done(sweep) else _hand_over(Job(loader, mirrors=False), overrides)
    titles = _titles(loader, sweep, expand(config, overrides), returned)
    store = Results(sweep.settings.results_dir)
    attempts = index.of_cells(store, titles)
    tracker.sync(store.read(attempt.file_name for attempt in attempts))
    standing = latest(attempts)
    records = index.read(store, (standing[cell_id] for cell_id in titles if cell_id in standing))
    if len(records) < len(titles):
        missing = next(title for cell_id, title in titles.items() if cell_id not in standing)
        count = f"{len(titles) - len(records)} of {len(titles)} cells"
        print(f"error: {count} have no record: {missing}, ...", file=sys.stderr)
        code = max(code, 1)
    if records:
        print_table(records)
        finish(sweep, records, tracker)
        say_figures(sweep)
    return max(code, exit_code(records))


def _sweep(loader: Loader, hydra: Sequence[str], jobs: Sequence[Sequence[str]]) -> Sweep:
    """The sweep of some jobs, each with what the command line said to Hydra."""
    with explained():
        return plan(compose_jobs(loader.load, [[*hydra, *job] for job in jobs]), [o for job in jobs for o in job])


def _titles(
    loader: Loader, sweep: Sweep, jobs: Sequence[Sequence[str]], returned: Sequence[ExitCode]
) -> dict[str, str]:
    """Of the cells to look for, by id: the one of here or, of a job on a node of another kind, the one of there."""
    titles = {cell.cell_id: cell.title for cell in sweep.cells}
    known = frozenset(titles)
    ran = {cell_id for code in returned for cell_id in code.cell_ids}
    for job, code in zip(jobs, returned, strict=False):  # a sweep that broke down returns nothing
        if not known.issuperset(code.cell_ids):
            for cell, there in zip(plan(compose_jobs(loader.load, [job]), job).cells, code.cell_ids, strict=False):
                titles[there] = cell.title
                if cell.cell_id not in ran:
                    titles.pop(cell.cell_id, None)
    return titles


def _hand_over(job: Job, overrides: Sequence[str]) -> tuple[int, list[ExitCode]]:
    """Let Hydra run the command; returns the worst exit code, and that of each job in their order."""
    codes: list[ExitCode] = []
    # Hydra writes into the folder before a job does.
    composed = job.loader.load_configuration(NAME, list(overrides), RunMode.MULTIRUN)
    prepare_folder(str(composed.results_dir))
    try:
        returned = Hydra("bench", job.loader).multirun(NAME, job, list(overrides), with_log_configuration=False)
        codes = [_code(each) for each in _jobs(returned)]
    except (ConfigError, HydraException, OSError):
        raise
    except Exception as error:  # a scheduler that says no
        codes = [_lost(error)]
    return max(job.worst, *codes, 0), codes


def _code(job: JobReturn) -> ExitCode:
    try:
        code = job.return_value
    except (ConfigError, HydraException, OSError):
        raise
    except Exception as error:  # a worker that died
        return _lost(error)
    return code if isinstance(code, ExitCode) else ExitCode(code)


def _lost(error: Exception) -> ExitCode:
    print(f"error: a job ended without a result: {one_line(error)}", file=sys.stderr)
    return ExitCode(1)


def _jobs(returned: Any) -> Iterator[JobReturn]:
    """The results of jobs, however a sweeper nests them; some return nothing."""
    if isinstance(returned, JobReturn):
        yield returned
    elif isinstance(returned, list | tuple):
        for each in returned:
            yield from _jobs(each)


def _all_done(sweep: Sweep) -> bool:
    store, rerun = Results(sweep.settings.results_dir), sweep.settings.rerun
    standing = latest(index.of_cells(store, (cell.cell_id for cell in sweep.cells)))
    return rerun != "all" and all(needs_no_rerun(standing.get(cell.cell_id), rerun) for cell in sweep.cells)
