"""Uses this machine's devices in parallel: one worker for each GPU and each set of CPU cores."""

import contextlib
import dataclasses
import os
import queue
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

from bench.execution.device_locks import core_sets
from bench.execution.progress_bar import ProgressBar
from bench.execution.runner import Options, Runner
from bench.plan.cell import Cell
from bench.plan.executors import Devices
from bench.plan.machine import gpus_like_the_first, is_gpu

# How long an interrupted worker may take to end its cell and save the record.
INTERRUPTED_WITHIN_S = 20.0


class Worker(NamedTuple):
    """A GPU, by this process's index, or a set of CPU cores."""

    device: str
    takes: frozenset[str]
    """The configured devices whose cells the worker may measure."""
    cores: Collection[int] | None = None
    """None: all that this process may use."""


def run(settings: Devices, runner: Runner, todo: Sequence[Cell], callback: ProgressBar) -> None:
    """Measure as many cells in parallel as there are devices; cells that must run alone come last, in turn."""
    workers = cpu_workers(settings.cores_per_worker) + gpu_workers(todo)
    # Worker threads get no signals, so no interrupt can come while they save.
    pool = _Pool(dataclasses.replace(runner, defer_interrupts=contextlib.nullcontext), callback)
    pool.run(workers, [cell for cell in todo if not runner.alone(cell)])
    alone = [cell for cell in todo if runner.alone(cell)]
    for device in dict.fromkeys(cell.config["device"] for cell in alone):
        worker = next(worker for worker in workers if device in worker.takes)
        pool.run([worker], [cell for cell in alone if cell.config["device"] == device])


def require_usable(settings: Devices, todo: Sequence[Cell]) -> None:
    """Raise `ConfigError` if the requested sets of cores do not exist."""
    cpu_workers(settings.cores_per_worker)


def cpu_workers(cores_per_worker: int | None) -> list[Worker]:
    """One worker for each set of cores, or one with all cores; `ConfigError` if a set would be too large."""
    sets = core_sets(cores_per_worker, "hydra.launcher.cores_per_worker") if cores_per_worker else [None]
    return [Worker("cpu", frozenset({"cpu"}), cores) for cores in sets]


def gpu_workers(cells: Sequence[Cell]) -> list[Worker]:
    """One worker per GPU that cells may use: those named `cuda:N`; for `cuda` (= `cuda:0`) also all identical GPUs."""
    named = {cell.config["device"] for cell in cells if is_gpu(cell.config["device"])}
    alike = set(gpus_like_the_first()) if "cuda:0" in named else set()
    # In numeric order: cuda:10 comes after cuda:9.
    devices = sorted(named | alike, key=lambda device: int(device.partition(":")[2]))
    return [Worker(device, frozenset({device, *(["cuda:0"] if device in alike else [])})) for device in devices]


class _Pool:
    """A thread per worker; they take cells from one list. Callbacks run in the thread that called `run`."""

    def __init__(self, runner: Runner, callback: ProgressBar) -> None:
        self._runner, self._callback = runner, callback
        self._calls: queue.SimpleQueue[Callable[[], bool | None]] = queue.SimpleQueue()
        """Calls for the main thread to make; a call returns True when its worker has ended."""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._todo: list[Cell] = []
        self._measuring: set[threading.Thread] = set()

    def run(self, workers: Sequence[Worker], todo: Sequence[Cell]) -> None:
        """Measure all cells of `todo`."""
        self._todo.extend(todo)
        useful = [worker for worker in workers if any(cell.config["device"] in worker.takes for cell in todo)]
        for worker in useful:
            # A worker that waits for a lock cannot be stopped; it has nothing to save.
            threading.Thread(target=self._work, args=(worker,), daemon=True).start()
        working = len(useful)
        try:
            while working:
                working -= bool(self._calls.get()())
        except BaseException:
            with self._lock:
                self._stop.set()
                measuring = list(self._measuring)
            for thread in measuring:
                thread.join(INTERRUPTED_WITHIN_S)
            while not self._calls.empty():
                with contextlib.suppress(OSError):  # the disk may be full
                    self._calls.get()()
            raise

    def _work(self, worker: Worker) -> None:
        error: BaseException | None = None
        try:
            if worker.cores is not None:
                os.sched_setaffinity(0, worker.cores)  # for this thread and all that it starts
            while (cell := self._next(worker)) is not None:
                self._measure(cell, worker)
        except BaseException as raised:
            error = raised
        self._calls.put(partial(self._end, error))

    def _end(self, error: BaseException | None) -> bool:
        if error is not None and not self._stop.is_set():  # only the first error is raised
            raise error
        return True

    def _next(self, worker: Worker) -> Cell | None:
        with self._lock:
            places = (place for place, cell in enumerate(self._todo) if cell.config["device"] in worker.takes)
            return None if (place := next(places, None)) is None else self._todo.pop(place)

    def _measure(self, cell: Cell, worker: Worker) -> None:
        here = dataclasses.replace(cell, config={**cell.config, "device": worker.device})
        tell = self._callback.on_progress
        options = Options(on_progress=lambda far: self._calls.put(partial(tell, cell, far)), stop=self._stop)
        try:
            self._runner.measure(here, options, on_start=partial(self._start, cell), cores=worker.cores)
        finally:
            with self._lock:
                self._measuring.discard(threading.current_thread())
            self._calls.put(partial(self._callback.on_cell_end, cell))

    def _start(self, cell: Cell) -> None:
        with self._lock:
            if self._stop.is_set():
                raise KeyboardInterrupt
            self._measuring.add(threading.current_thread())
        self._calls.put(partial(self._callback.on_cell_start, cell))
