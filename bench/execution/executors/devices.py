"""This machine's devices side by side: a worker for each GPU and for each set of cores."""

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

# What an interrupted worker has to end its cell and save that.
INTERRUPTED_WITHIN_S = 20.0


class Worker(NamedTuple):
    """A GPU, as this process counts them, or a set of cores."""

    device: str
    takes: frozenset[str]
    """The devices of configurations whose cells it may measure."""
    cores: Collection[int] | None = None
    """None: all that this process may use."""


def run(settings: Devices, runner: Runner, todo: Sequence[Cell], callback: ProgressBar) -> None:
    """Measure as many together as there are devices; what must be alone comes at the end, in turn."""
    workers = cpu_workers(settings.cores_per_worker) + gpu_workers(todo)
    # No signal reaches a worker's thread in the middle of saving.
    pool = _Pool(dataclasses.replace(runner, defer_interrupts=contextlib.nullcontext), callback)
    pool.run(workers, [cell for cell in todo if not runner.alone(cell)])
    alone = [cell for cell in todo if runner.alone(cell)]
    for device in dict.fromkeys(cell.config["device"] for cell in alone):
        worker = next(worker for worker in workers if device in worker.takes)
        pool.run([worker], [cell for cell in alone if cell.config["device"] == device])


def require_usable(settings: Devices, todo: Sequence[Cell]) -> None:
    """Raise `ConfigError` where there are no such sets of cores."""
    cpu_workers(settings.cores_per_worker)


def cpu_workers(cores_per_worker: int | None) -> list[Worker]:
    """One for each set of cores, or one with all; `ConfigError` where there is no set so large."""
    sets = core_sets(cores_per_worker, "hydra.launcher.cores_per_worker") if cores_per_worker else [None]
    return [Worker("cpu", frozenset({"cpu"}), cores) for cores in sets]


def gpu_workers(cells: Sequence[Cell]) -> list[Worker]:
    """One for each GPU that cells may run on: those named `cuda:N`, and for `cuda`, the first, all that are like it."""
    named = {cell.config["device"] for cell in cells if is_gpu(cell.config["device"])}
    alike = set(gpus_like_the_first()) if "cuda:0" in named else set()
    # As they are counted: cuda:10 comes after cuda:9.
    devices = sorted(named | alike, key=lambda device: int(device.partition(":")[2]))
    return [Worker(device, frozenset({device, *(["cuda:0"] if device in alike else [])})) for device in devices]


class _Pool:
    """A thread for each worker; they take cells from one list. The callback is called in the thread that made this."""

    def __init__(self, runner: Runner, callback: ProgressBar) -> None:
        self._runner, self._callback = runner, callback
        self._calls: queue.SimpleQueue[Callable[[], bool | None]] = queue.SimpleQueue()
        """What the workers have to tell; it gives True for a worker that has ended."""
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._todo: list[Cell] = []
        self._measuring: set[threading.Thread] = set()

    def run(self, workers: Sequence[Worker], todo: Sequence[Cell]) -> None:
        """Have all of them measured."""
        self._todo.extend(todo)
        useful = [worker for worker in workers if any(cell.config["device"] in worker.takes for cell in todo)]
        for worker in useful:
            # A worker that waits for a lock cannot be told to stop; it holds nothing that must be saved.
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
                with contextlib.suppress(OSError):  # a full disk, again
                    self._calls.get()()
            raise

    def _work(self, worker: Worker) -> None:
        error: BaseException | None = None
        try:
            if worker.cores is not None:
                os.sched_setaffinity(0, worker.cores)  # of this thread, and of all that it starts
            while (cell := self._next(worker)) is not None:
                self._measure(cell, worker)
        except BaseException as raised:
            error = raised
        self._calls.put(partial(self._end, error))

    def _end(self, error: BaseException | None) -> bool:
        if error is not None and not self._stop.is_set():  # the first one counts
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
