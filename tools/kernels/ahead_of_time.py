"""Compile kernels for GPUs that are not present: launches on tensors without memory (`meta`) only compile.

`python -m tools.kernels.ahead_of_time` compiles the catalogue, prints the results and compares them with the table.
What an interrupted run compiled is not compiled again while the code is the same.
"""

import contextlib
import io
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch

from attention_zoo.ops import launching
from attention_zoo.ops.launching import Configuration
from bench.common import signals
from bench.common.errors import Parser
from tools.kernels import recorded
from tools.kernels.call import Call, catalogue
from tools.kernels.compiled import Compiled
from tools.kernels.progress import Progress, kernel_code

TARGETS = (80, 90, 100)
# Last lines of a compiler's message to keep; the lines before show the code.
LINES = 4


class _Launch(NamedTuple):
    function: str
    configuration: Configuration
    kernel: Any


def compile_call(call: Call, target: int) -> list[Compiled]:
    """Compile every kernel that a call launches, in the configuration that it has on `sm_<target>`.

    Raises:
        RuntimeError: kernels are interpreted in this process, or one does not compile.
    """
    if launching.IS_INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are compiled in a process without it")
    launches: list[_Launch] = []
    with _compiling(target, launches):
        call.make(torch.device("meta"))()
    versions: Counter[str] = Counter()
    found = []
    for launch in {id(launch.kernel): launch for launch in launches}.values():
        versions[launch.function] += 1
        found.append(_read(call, versions[launch.function], target, launch))
    return found


@contextlib.contextmanager
def _compiling(target: int, launches: list[_Launch]) -> Iterator[None]:
    """Inside, launches only compile for the target and are added to `launches`; Triton's disk cache is not used."""
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    configurations: list[Configuration] = []
    run, fitting = JITFunction.run, launching.fitting
    # What Triton needs of a driver to compile. Kernels are cached by device, so its number is the target.
    without_device = SimpleNamespace(
        get_current_device=lambda: target,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", target, 32),
    )

    def look(*args: Any) -> Configuration:
        configurations.append(fitting(*args))
        return configurations[-1]

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        try:
            with contextlib.redirect_stdout(io.StringIO()) as log:
                kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:
            raise RuntimeError(f"{self.__name__} does not compile for sm_{target}: {_reason(error)}") from error
        # Triton keeps compiled kernels in memory; a second launch has no output of ptxas.
        vars(kernel).setdefault("log", log.getvalue())
        launches.append(_Launch(self.__name__, _configuration(configurations, kwargs), kernel))
        return kernel

    with (
        mock.patch.object(driver, "_active", without_device),
        mock.patch.object(launching, "architecture", lambda device: target),
        mock.patch.object(launching, "fitting", look),
        mock.patch.object(JITFunction, "run", compile_only),
        tempfile.TemporaryDirectory() as cache,
        knobs.cache.scope(),
        knobs.nvidia.scope(),
    ):
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = cache, True
        yield


def _reason(error: BaseException) -> str:
    """The last lines of a compiler's messages: the place and the error."""
    said = []
    cause: BaseException | None = error
    while cause is not None:
        said += [line for line in str(cause).splitlines() if line.strip()]
        cause = cause.__cause__
    return "\n".join(said[-LINES:])


def _configuration(found: list[Configuration], given: dict[str, Any]) -> Configuration:
    """The configuration of a launch: the last one looked up with its options and names of tiles, with its sizes."""
    warps, stages, registers = given.get("num_warps", 4), given.get("num_stages", 3), given.get("maxnreg")
    for tiles, *options in reversed(found):
        if options == [warps, stages, registers] and tiles.keys() <= given.keys():
            return Configuration({name: given[name] for name in tiles}, warps, stages, registers)
    return Configuration({}, warps, stages, registers)


def _read(call: Call, version: int, target: int, launch: _Launch) -> Compiled:
    log, metadata = launch.kernel.log, launch.kernel.metadata
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise RuntimeError(f"ptxas says nothing of the registers of {launch.function}: {log!r}")
    return Compiled(
        call=call,
        function=launch.function,
        version=version,
        target=target,
        configuration=launch.configuration,
        warps=metadata.num_warps,
        registers=int(registers[1]),
        spill_bytes=max(int(spills[1]), int(spills[2])),
        shared_bytes=metadata.shared,
        columns=metadata.tmem_size or 0,
        warnings=tuple(line.strip() for line in log.splitlines() if re.search(r"\(C\d+\)", line)),
        cubin=launch.kernel.asm["cubin"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 1 if a kernel fails or is worse than in the table."""
    parser = Parser(prog="python -m tools.kernels.ahead_of_time", description=__doc__)
    parser.add_argument("--target", type=int, nargs="+", choices=TARGETS, default=TARGETS, help="compute capabilities")
    parser.add_argument("--match", default="", help="a regular expression: calls whose name it is found in")
    parser.add_argument("--write", action="store_true", help="put what came out into the table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes that compile (%(default)s)")
    parser.add_argument("--progress", type=Path, default=Path("runs/kernels.jsonl"), help="what was done (%(default)s)")
    given = parser.parse_args(arguments)
    names = [name for name in _calls() if re.search(given.match, name)]
    jobs = [(name, target) for name in names for target in given.target]
    outcomes = list(_outcomes(jobs, given.jobs, Progress(given.progress, kernel_code())))
    rows = [row for outcome in outcomes for row in outcome.rows]
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    table = recorded.read()
    if given.write:
        recorded.write(recorded.renewed(table, rows, _calls()))
    else:
        failures += recorded.regressions(table, rows)
        for version in sorted({row.triton for row in rows} - {row.triton for row in table}):
            print(f"{recorded.TABLE.name} has no rows of Triton {version}: nothing is compared", file=sys.stderr)
    print(f"{len(rows)} kernels of {len(names)} calls compiled")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


# A call's name and a target.
_Job = tuple[str, int]


class _Outcome(NamedTuple):
    rows: list[recorded.Row]
    failures: list[str]


def _outcomes(jobs: Sequence[_Job], processes: int, progress: Progress) -> Iterator[_Outcome]:
    """What earlier runs compiled, then the rest, which is printed."""
    done = {(line["call"], line["target"]): line["rows"] for line in progress.lines()}
    left = [job for job in jobs if job not in done]
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} were compiled by earlier runs ({progress.file})", flush=True)
    yield from (_Outcome([recorded.Row(*row) for row in done[job]], []) for job in jobs if job in done)
    with contextlib.ExitStack() as stack:
        every: Callable[..., Iterator[_Outcome]] = map
        if processes > 1:
            # spawn, because torch's threads do not survive a fork.
            workers = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"))
            every = stack.enter_context(workers).map
        for (name, target), outcome in zip(left, every(_attempt, left), strict=True):
            if not outcome.failures:
                progress.add(call=name, target=target, rows=outcome.rows)
            print(*outcome.rows, sep="\n", end="\n" if outcome.rows else "", flush=True)
            yield outcome


def _attempt(job: _Job) -> _Outcome:
    """The rows of a call for a target, or the reason why it does not compile."""
    name, target = job
    try:
        return _Outcome([recorded.row(kernel) for kernel in compile_call(_calls()[name], target)], [])
    except Exception as error:  # compilers raise many types of errors, and the other calls must still compile
        return _Outcome([], [f"{name}: {error}"])


def _calls() -> dict[str, Call]:
    return {call.name: call for calls in catalogue().values() for call in calls}


if __name__ == "__main__":
    sys.exit(signals.run(main))
