"""A task of an array of Slurm jobs: measures those cells of its list that lack a new record.

Slurm may run it again at any moment, as often as it likes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from bench.common.errors import ConfigError, one_line, say, without_credentials
from bench.execution.executors import devices, remote, run_in_turn
from bench.execution.interrupts import Interrupts
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.plan.executors import Devices, Slurm, check
from bench.plan.machine import is_gpu, visible_gpus
from bench.records import plans
from bench.records.store import Store
from bench.records.table import line

# Neither a success nor the cells' fault; see sysexits(3).
TRY_AGAIN = 75


def main(file: Path, index: int) -> int:
    """Measure; returns the exit code.

    Args:
        file: RESULTS/sweeps/SWEEP/slurm/NAME.json, a list of cell ids for each task.
        index: of this one.
    """
    interrupts = Interrupts()
    results_dir, sweep_id = file.parents[3], file.parents[1].name
    try:
        with interrupts.caught(signal.SIGUSR2):
            chunk = json.loads(file.read_text())[index]
            measure(results_dir, sweep_id, chunk, interrupts)
    except KeyboardInterrupt:
        print("interrupted: the next job goes on", file=sys.stderr)
        if interrupts.first == signal.SIGUSR2:
            _requeue(results_dir, sweep_id)
        return TRY_AGAIN
    except (ConfigError, OSError, plans.PlanError) as error:
        print(f"error: {without_credentials(one_line(error))}", file=sys.stderr)
        return 1
    return 0


def measure(results_dir: Path, sweep_id: str, chunk: list[str], interrupts: Interrupts) -> None:
    """Measure the cells of a chunk, on several GPUs together if there are as many.

    Raises:
        ConfigError: cells need a GPU, and the node shows none.
        PlanError: there is nothing to do.
        KeyboardInterrupt: after the interrupted cell's record was saved.
    """
    runner, cells = remote.load(results_dir, sweep_id)
    records = remote.NewRecords(runner, [cell for cell in cells if cell.cell_id in chunk])
    records.poll()
    todo = list(records.missing.values())
    gpus = len(visible_gpus()) if any(is_gpu(cell.config["device"]) for cell in todo) else None
    if gpus == 0:
        raise ConfigError(f"{os.uname().nodename} shows no GPU (nvidia-smi, CUDA_VISIBLE_DEVICES)")
    runner = dataclasses.replace(runner, defer_interrupts=interrupts.deferred)
    if gpus is not None and gpus > 1:
        devices.run(Devices(timings_alone=runner.timings_alone), runner, todo, _Log(runner.store))
    else:
        run_in_turn(runner, todo, _Log(runner.store))


class _Log:
    """A line when a cell begins and one when it has ended: of a job that dies, the last one says where it was."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def on_cell_start(self, cell: Cell) -> None:
        say(f"{cell.title} begins")

    def on_progress(self, cell: Cell, progress: Progress) -> None:
        """Nothing is said of it; curves are mirrored by the process that sees the records."""

    def on_cell_end(self, cell: Cell) -> None:
        for record in self._store.of_cell(cell.cell_id)[-1:]:
            say(line(record))


def _requeue(results_dir: Path, sweep_id: str) -> None:
    """Go on in a job of the same number: the process that submitted this one may be gone."""
    settings = check(plans.load(results_dir, sweep_id).launcher)
    assert isinstance(settings, Slurm)
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")) < settings.max_num_timeout:
        subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(os.environ["SLURM_ARRAY_TASK_ID"])))
