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
from omegaconf import DictConfig

from bench import measures
from bench.api import exit_code, finish, launch, planned, print_table
from bench.errors import ConfigError, one_line
from bench.execution.reruns import stands
from bench.execution.sweep import Sweep, plan, run_sweep
from bench.plan.compose import compose_jobs
from bench.plan.explain import explained
from bench.plan.load import NAME, Loader
from bench.records.record import Record
from bench.records.store import Store, latest
from bench.tracking.tracker import Tracker

THREADS = "OMP_NUM_THREADS"
OWN = {"launcher": "hydra_plugins.cell_sweeps.CellLauncher", "sweeper": "hydra_plugins.cell_sweeps.GridSweeper"}


def foreign(config: DictConfig) -> bool:
    """Whether the launcher or the sweeper is not the suite's own."""
    return any(config.hydra[key]._target_ != target for key, target in OWN.items())


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
        """Run the job that Hydra is at as a sweep of its own; returns its exit code."""
        # Launchers give their workers fewer threads; the cell is a process of its own, and what was planned has these.
        if self.threads is None:
            os.environ.pop(THREADS, None)
        else:
            os.environ[THREADS] = self.threads
        given = HydraConfig.get().overrides
        sweep = _sweep(self.loader, given.hydra, [given.task])
        self.worst = max(code := exit_code(launch(sweep) if self.mirrors else run_sweep(sweep)), self.worst)
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
    if config.hydra.sweeper._target_ != OWN["sweeper"]:  # it alone knows which jobs there will be
        return _hand_over(Job(loader, mirrors=True), overrides)
    sweep = planned(loader, overrides)
    for cell in sweep.cells:
        if measures.get(cell.config["bench"]["name"]).compares:
            name = cell.config["bench"]["name"]
            raise ConfigError(f"bench={name}: measures all of a sweep in one process; it needs hydra/launcher=cells")
    tracker = Tracker(sweep.settings)
    code = 0 if _all_done(sweep) else _hand_over(Job(loader, mirrors=False), overrides)
    attempts = _attempts(sweep)
    tracker.sync(attempts)
    standing = latest(attempts)
    records = [standing[cell.cell_id] for cell in sweep.cells if cell.cell_id in standing]
    if len(records) < len(sweep.cells):
        missing = next(cell.title for cell in sweep.cells if cell.cell_id not in standing)
        count = f"{len(sweep.cells) - len(records)} of {len(sweep.cells)} cells"
        print(f"error: {count} have no record: {missing}, ...", file=sys.stderr)
        code = max(code, 1)
    if records:
        print_table(records)
        finish(sweep, records, tracker)
    return max(code, exit_code(records))


def _sweep(loader: Loader, hydra: Sequence[str], jobs: Sequence[Sequence[str]]) -> Sweep:
    """The sweep of some jobs, each with what the command line said to Hydra."""
    with explained():
        return plan(compose_jobs(loader.load, [[*hydra, *job] for job in jobs]), [o for job in jobs for o in job])


def _hand_over(job: Job, overrides: Sequence[str]) -> int:
    """Let Hydra run the command; returns the worst exit code that a job gave."""
    try:
        returned = Hydra("bench", job.loader).multirun(NAME, job, list(overrides), with_log_configuration=False)
        codes = [int(each.return_value) for each in _jobs(returned)]
    except (ConfigError, HydraException, OSError):
        raise
    except Exception as error:  # a worker that died, a scheduler that says no
        print(f"error: a job ended without a result: {one_line(error)}", file=sys.stderr)
        return 1
    return max(job.worst, *codes, 0)


def _jobs(returned: Any) -> Iterator[JobReturn]:
    """The results of jobs, however a sweeper nests them; some return nothing."""
    if isinstance(returned, JobReturn):
        yield returned
    elif isinstance(returned, list | tuple):
        for each in returned:
            yield from _jobs(each)


def _attempts(sweep: Sweep) -> list[Record]:
    cell_ids = {cell.cell_id for cell in sweep.cells}
    return [record for record in Store(sweep.settings.results_dir).load() if record.cell_id in cell_ids]


def _all_done(sweep: Sweep) -> bool:
    standing = latest(_attempts(sweep))
    rerun = sweep.settings.rerun
    return rerun != "all" and all(stands(standing.get(cell.cell_id), rerun) for cell in sweep.cells)
