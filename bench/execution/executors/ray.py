"""Runs each cell as a Ray task: on a running cluster, or on a local one that ends with the sweep.

Tasks return nothing: records in the results folder, which all nodes must see, tell which cells are done.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import os
import secrets
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from bench.common.errors import ConfigError, UnfinishedError, one_line
from bench.execution.device_locks import core_sets, pin_to_free_cores
from bench.execution.executors import remote
from bench.execution.interrupts import Interrupts
from bench.execution.progress_bar import ProgressBar
from bench.execution.runner import Runner
from bench.plan.cell import Cell
from bench.plan.executors import Ray
from bench.plan.machine import gpu, gpus_like_the_first, is_gpu

POLL_S = 0.5
CONNECTS_WITHIN_S = 10.0
# How long interrupted tasks may take to end their cells and save the records.
INTERRUPTED_WITHIN_S = 20.0
# A shared file system may show a new record late.
ARRIVES_WITHIN_S = 60.0
LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # A cell that runs out of memory is a result, not a reason to retry.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray's processes use the loopback address, which is Ray's default on other systems than Linux.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Whoever can connect to them can run code, so they need a token.
    "RAY_AUTH_MODE": "token",
}
CPUS = "hydra.launcher.num_cpus"


def require_usable(settings: Ray, todo: Sequence[Cell]) -> None:
    """Raise `ConfigError` if Ray is not installed, the cluster does not answer, or it cannot run these cells."""
    for device in sorted(filter(is_gpu, {cell.config["device"] for cell in todo})):
        if device != "cuda:0":
            raise ConfigError(f"device={device!r}: Ray chooses the GPU of a task; must be auto, cpu or cuda")
        if not settings.num_gpus:
            raise ConfigError("hydra.launcher.num_gpus=0: must be at least 1 for cells on GPUs; device=cpu uses none")
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("hydra/launcher=ray: needs Ray; `pip install attention-zoo[ray]`")
    if settings.address is None:
        core_sets(settings.num_cpus, CPUS)
    elif settings.address != "auto":  # Ray itself would retry for many minutes
        host, _, port = settings.address.partition(":")
        with _connecting(settings):
            socket.create_connection((host, int(port)), CONNECTS_WITHIN_S).close()


def run(settings: Ray, runner: Runner, todo: Sequence[Cell], callback: ProgressBar) -> None:
    """Measure as many cells in parallel as the cluster has room for; a lost cell is retried up to `max_retries`."""
    remote.begin(runner, todo)
    with _cluster(settings, runner, gpus=any(cell.config["device"] == "cuda:0" for cell in todo)) as ray:
        Tasks(ray, settings, runner, todo, callback).run()
    remote.end(runner)


@contextlib.contextmanager
def _cluster(settings: Ray, runner: Runner, gpus: bool) -> Iterator[Any]:
    own = {**LOCAL, "RAY_AUTH_TOKEN": secrets.token_hex()} if settings.address is None else {}
    with contextlib.ExitStack() as stack:
        stack.callback(_restore, {name: os.environ.get(name) for name in (*own, "CUDA_VISIBLE_DEVICES")})
        os.environ.update(own)
        ray: Any = importlib.import_module("ray")
        if ray.is_initialized():
            raise ConfigError("hydra/launcher=ray: this process uses Ray for something else; ray.shutdown() ends that")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "address": settings.address}
        if settings.address is None:
            # Ray puts sockets in this folder, and their paths must be short.
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp"))
            alike = [gpu(device).uuid for device in gpus_like_the_first()] if gpus else []  # type: ignore[union-attr]
            if gpus:
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(alike)
            options |= {
                "_temp_dir": folder,
                "address": "local",
                "num_cpus": len(core_sets(settings.num_cpus, CPUS)) * settings.num_cpus,
                "num_gpus": len(alike),
                "include_dashboard": False,
                "object_store_memory": 80 * 2**20,  # the store stays empty; Ray's minimum
            }
            # Ray starts the dashboard's process even without a dashboard; that asks the network which cloud this is.
            node = importlib.import_module("ray._private.node").Node
            stack.enter_context(mock.patch.object(node, "start_api_server", lambda *_, **__: None, create=True))
        stack.callback(ray.shutdown)
        before = signal.getsignal(signal.SIGTERM)
        try:
            with _connecting(settings), runner.defer_interrupts():  # Ray may crash if interrupted half-way
                ray.init(**options)
        finally:  # restore our handler, which ray.init replaced
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)
        yield ray


def _restore(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        os.environ.pop(name, None) if value is None else os.environ.update({name: value})


@contextlib.contextmanager
def _connecting(settings: Ray) -> Iterator[None]:
    try:
        yield
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ConfigError(f"hydra.launcher.address={settings.address!r}: {one_line(error)}") from None


class Tasks:
    """The Ray tasks of a sweep. They return nothing: a cell has ended when it has a record."""

    def __init__(self, ray: Any, settings: Ray, runner: Runner, todo: Sequence[Cell], callback: ProgressBar) -> None:
        self._ray, self._settings, self._callback, self._todo = ray, settings, callback, todo
        self._arguments = str(runner.store.root.absolute()), runner.sweep_id, settings.num_cpus
        self._records = remote.NewRecords(runner, todo)
        self._lost: Counter[str] = Counter()
        self._reason = f"none was seen within {ARRIVES_WITHIN_S:.0f} s"
        self._running: dict[Any, Cell] = {}

    def run(self) -> None:
        """Measure all cells."""
        try:
            for cell in self._todo:
                self._submit(cell)
            while self._running:
                self._wait()
            # Tasks that were not lost have written a record, which may become visible here later.
            deadline = time.monotonic() + ARRIVES_WITHIN_S
            while any(map(self._may_go_on, self._records.missing)) and time.monotonic() < deadline:
                time.sleep(POLL_S)
                self._poll()
        except BaseException:
            # Interrupt running tasks, wait until their records are saved, and report those.
            for task in self._running:
                self._ray.cancel(task)
            self._ended(INTERRUPTED_WITHIN_S)
            raise
        if missing := list(self._records.missing.values()):
            count = f"{len(missing)} of {len(self._todo)} cells have no record"
            first = missing[0].title + ", ..." * (len(missing) > 1)
            raise UnfinishedError(f"{count}: {first}: {self._reason}; the same command goes on")

    def _submit(self, cell: Cell) -> None:
        # Ray's own retries ignore some kinds of loss, and have no limit for others.
        task = self._ray.remote(max_retries=0, num_cpus=self._settings.num_cpus)(measure)
        on_gpu = is_gpu(cell.config["device"])
        if on_gpu:
            task = task.options(num_gpus=self._settings.num_gpus)
        self._running[task.remote(*self._arguments, cell.cell_id, on_gpu)] = cell

    def _wait(self) -> None:
        """Collect ended tasks, and submit lost ones again; raises what a worker raised."""
        for task in self._ended(POLL_S):
            cell = self._running.pop(task)
            try:
                self._ray.get(task)
            except self._ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except self._ray.exceptions.RayError as error:
                if cell.cell_id in self._records.missing:
                    self._reason = one_line(error)
                    self._lost[cell.cell_id] += 1
                    if self._may_go_on(cell.cell_id):
                        self._submit(cell)

    def _ended(self, within_s: float) -> list[Any]:
        """The tasks that have ended after at most `within_s`; reports their records."""
        tasks = list(self._running)
        ended = self._ray.wait(tasks, num_returns=len(tasks), timeout=within_s, fetch_local=False)[0] if tasks else []
        self._poll()
        return ended

    def _may_go_on(self, cell_id: str) -> bool:
        return self._lost[cell_id] <= self._settings.max_retries

    def _poll(self) -> None:
        for cell in self._records.poll():
            self._callback.on_cell_end(cell)


def measure(results_dir: str, sweep_id: str, num_cpus: int, cell_id: str, on_gpu: bool) -> None:
    """The Ray task: measure one cell in this process."""
    interrupts = Interrupts()
    with contextlib.nullcontext() if on_gpu else pin_to_free_cores(num_cpus, CPUS) as cores:
        try:
            runner, todo = remote.load(Path(results_dir), sweep_id)
        except ConfigError as error:
            why = f"must be a folder that all nodes see: {one_line(error)}"
            raise ConfigError(f"results_dir={results_dir!r}: {why}") from None
        runner = dataclasses.replace(runner, defer_interrupts=interrupts.deferred)
        with interrupts.caught():
            for cell in todo:
                if cell.cell_id == cell_id:
                    runner.measure(cell, cores=cores)
