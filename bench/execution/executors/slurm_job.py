"""A task of an array of Slurm jobs: measures the cells of its list that have no new record yet.

Slurm may run it again at any time, and several times.
"""

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
from bench.execution.progress_bar import ProgressBar
from bench.plan.cell import Cell
from bench.plan.executors import Devices, Slurm, check
from bench.plan.machine import is_gpu, visible_gpus
from bench.records import plans

# Neither a success nor an error of the cells; see sysexits(3).
TRY_AGAIN = 75


def main(file: Path, index: int) -> int:
    """Measure the cells, in parallel if there are several GPUs; returns the exit code.

    The file is RESULTS/sweeps/SWEEP/slurm/NAME.json, a list of cell ids for each task.
    """
    interrupts = Interrupts()
    results_dir, sweep_id = file.parents[3], file.parents[1].name
    try:
        with interrupts.caught(signal.SIGUSR2):
            chunk = json.loads(file.read_text())[index]
            runner, cells = remote.load(results_dir, sweep_id)
            runner = dataclasses.replace(runner, defer_interrupts=interrupts.deferred)
            records = remote.NewRecords(runner, [cell for cell in cells if cell.cell_id in chunk])
            records.poll()
            todo = list(records.missing.values())
            on_gpus = any(is_gpu(cell.config["device"]) for cell in todo)
            if on_gpus and not visible_gpus():
                raise ConfigError(f"{os.uname().nodename} shows no GPU (nvidia-smi, CUDA_VISIBLE_DEVICES)")
            log = _Log(runner.store, todo)
            if on_gpus and len(visible_gpus()) > 1:
                devices.run(Devices(timings_alone=runner.executor.timings_alone), runner, todo, log)
            else:
                run_in_turn(runner, todo, log)
    except KeyboardInterrupt:
        print("interrupted: the next job goes on", file=sys.stderr)
        if interrupts.first == signal.SIGUSR2:
            # Requeue this job: the process that submitted it may be gone.
            settings = check(plans.load(results_dir, sweep_id).launcher)
            assert isinstance(settings, Slurm)
            if int(os.environ.get("SLURM_RESTART_COUNT", "0")) < settings.max_num_timeout:
                subprocess.run(["scontrol", "requeue", os.environ["SLURM_JOB_ID"]], check=False)
        return TRY_AGAIN
    except (ConfigError, OSError) as error:
        print(f"error: {without_credentials(one_line(error))}", file=sys.stderr)
        return 1
    return 0


class _Log(ProgressBar):
    """Also prints a line when a cell begins: if the job dies, the log's last line names the cell."""

    def on_cell_start(self, cell: Cell) -> None:
        say(f"{self._title(cell)} begins")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(os.environ["SLURM_ARRAY_TASK_ID"])))
