"""This machine's devices side by side: a worker for each GPU and for each set of cores."""

from __future__ import annotations

import dataclasses
import os
import queue
import threading
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple

from bench.errors import ConfigError
from bench.execution.executors import Watch
from bench.execution.work import Work
from bench.measures.progress import Progress
from bench.plan.cell import Cell
from bench.plan.executors import Devices
from bench.plan.machine import is_gpu, measuring_identity, visible_gpus

# What an interrupted worker has to end its cell and save that.
PATIENCE_S = 20.0


class Worker(NamedTuple):
    """A GPU, as this process counts them, or a set of cores; None is all of them."""

    device: str
    cores: Collection[int] | None = None


def run(settings: Devices, work: Work, todo: Sequence[Cell], watch: Watch) -> None:
    """Measure as many together as there are devices; what must be alone comes at the end, in turn.

    Raises:
        ConfigError: a worker needs more cores than there are.
    """
    workers = cpu_workers(settings.cores_per_worker) + gpu_workers(todo)
    alone = [cell for cell in todo if work.alone(cell)]
    together = [cell for cell in todo if not work.alone(cell)]
    _Pool(work, watch).run(workers, together)
    first = {is_gpu(worker.device): worker for worker in reversed(workers)}
    for cell in alone:
        _Pool(work, watch).run(list(first.values()), [cell])


def cpu_workers(cores_per_worker: int | None) -> list[Worker]:
    """The sets of cores that this process may use.

    Raises:
        ConfigError: there is none so large.
    """
    if cores_per_worker is None:
        return [Worker("cpu")]
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if cores_per_worker > len(usable):
        raise ConfigError(
            f"hydra.launcher.cores_per_worker={cores_per_worker}: must be at most {len(usable)}, those of this process"
        )
    starts = range(0, len(usable) - cores_per_worker + 1, cores_per_worker)
    return [Worker("cpu", tuple(usable[start : start + cores_per_worker])) for start in starts]


def gpu_workers(cells: Sequence[Cell]) -> list[Worker]:
    """The GPUs that cells may run on: those named `cuda:N`, and for `cuda` all that are alike."""
    named = {cell.config["device"] for cell in cells if is_gpu(cell.config["device"])}
    if not named:
        return []
    first = measuring_identity("cuda:0")
    alike = {f"cuda:{index}" for index in range(len(visible_gpus())) if measuring_identity(f"cuda:{index}") == first}
    return [Worker(device) for device in sorted(named | (alike if "cuda:0" in named else set()))]


def takes(worker: Worker, cell: Cell) -> bool:
    """Whether a worker may run a cell: `cuda:0` is what `cuda` means, any GPU like the first one."""
    wanted = cell.config["device"]
    if wanted != "cuda:0" or not is_gpu(worker.device):
        return wanted == worker.device
    return measuring_identity(worker.device) == measuring_identity(wanted)


class _Event(NamedTuple):
    kind: str
    cell: Cell | None = None
    now: Progress | None = None
    error: BaseException | None = None


class _Pool:
    """A thread for each worker; they take cells from one list and tell the thread that made them."""

    def __init__(self, work: Work, watch: Watch) -> None:
        self._work, self._watch = work, watch
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._taking = threading.Lock()
        self._todo: deque[Cell] = deque()

    def run(self, workers: Sequence[Worker], todo: Sequence[Cell]) -> None:
        """Have all of them measured."""
        self._todo.extend(todo)
        # One that waits for a lock cannot be told to stop; it holds nothing that must be saved.
        threads = [threading.Thread(target=self._serve, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            self._listen(len(threads))
        except BaseException:
            self._stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
            self._drain()
            raise

    def _listen(self, working: int) -> None:
        while working:
            event = self._events.get()
            if event.kind == "idle":
                working -= 1
            if event.error is not None:
                raise event.error
            self._pass_on(event)

    def _drain(self) -> None:
        while not self._events.empty():
            self._pass_on(self._events.get())

    def _pass_on(self, event: _Event) -> None:
        if event.cell is None:
            return
        if event.now is not None:
            self._watch.told(event.cell, event.now)
        elif event.kind == "started":
            self._watch.started(event.cell)
        else:
            self._watch.ended(event.cell)

    def _serve(self, worker: Worker) -> None:
        error: BaseException | None = None
        try:
            if worker.cores is not None:
                os.sched_setaffinity(0, worker.cores)  # of this thread, and of all that it starts
            while not self._stop.is_set() and (cell := self._next(worker)) is not None:
                self._measure(cell, worker)
        except KeyboardInterrupt:
            pass
        except BaseException as raised:
            error = raised
        self._events.put(_Event("idle", error=error))

    def _next(self, worker: Worker) -> Cell | None:
        with self._taking:
            cell = next((cell for cell in self._todo if takes(worker, cell)), None)
            if cell is not None:
                self._todo.remove(cell)
            return cell

    def _measure(self, cell: Cell, worker: Worker) -> None:
        self._events.put(_Event("started", cell))
        config = {**cell.config, "device": worker.device}
        tell = lambda now: self._events.put(_Event("told", cell, now))  # noqa: E731
        try:
            here = dataclasses.replace(cell, config=config)
            self._work.measure(here, tell, cores=worker.cores, stop=self._stop)
        finally:
            self._events.put(_Event("ended", cell))
