"""Kernels compiled for GPUs that are not there: calls are launched on tensors without memory, and only compiled.

`python -m bench.kernels.ahead_of_time` compiles the catalogue, prints what came out and compares it with the table.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import torch

from attention_zoo.ops import launching
from attention_zoo.ops.launching import Configuration
from bench.kernels import recorded
from bench.kernels.call import Call, catalogue
from bench.kernels.compiled import Compiled

TARGETS = (80, 90, 100)
# Of a compiler's message, which shows the code before.
LINES = 4


class _Launch(NamedTuple):
    name: str
    configuration: Configuration
    kernel: Any


def compile_call(call: Call, target: int) -> list[Compiled]:
    """Every kernel that a call launches, compiled as its launch on `sm_<target>` would have it.

    Raises:
        RuntimeError: kernels are interpreted in this process, or one does not compile.
    """
    from triton import knobs

    if knobs.runtime.interpret:
        raise RuntimeError("TRITON_INTERPRET is set: kernels are compiled in a process without it")
    launches: list[_Launch] = []
    with _compiling(target, launches):
        call.make(torch.device("meta"))()
    versions: Counter[str] = Counter()
    found = []
    for launch in {id(launch.kernel): launch for launch in launches}.values():
        versions[launch.name] += 1
        version = versions[launch.name]
        found.append(_read(call, launch.name if version == 1 else f"{launch.name} {version}", target, launch))
    return found


@contextlib.contextmanager
def _compiling(target: int, launches: list[_Launch]) -> Iterator[None]:
    """Launches compile for the target, run nothing and are added to `launches`; a cache on disk hides nothing."""
    from triton import knobs
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    configurations: list[Configuration] = []
    run, fitting = JITFunction.run, launching.fitting

    def look(*args: Any) -> Configuration:
        configurations.append(fitting(*args))
        return configurations[-1]

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        try:
            with contextlib.redirect_stdout(io.StringIO()) as log:
                kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        except Exception as error:
            raise RuntimeError(f"{self.__name__} does not compile for sm_{target}: {_reason(error)}") from error
        # What was compiled before comes from Triton's memory, without a word of ptxas.
        vars(kernel).setdefault("log", log.getvalue())
        launches.append(_Launch(self.__name__, _configuration(configurations, kwargs), kernel))
        return kernel

    with (
        mock.patch.object(driver, "_active", _Driver(target)),
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
    """The end of what a compiler says: where it stood, and what it met there."""
    said = []
    cause: BaseException | None = error
    while cause is not None:
        said += [line for line in str(cause).splitlines() if line.strip()]
        cause = cause.__cause__
    return "\n".join(said[-LINES:])


def _configuration(found: list[Configuration], given: dict[str, Any]) -> Configuration:
    """That of a launch: the tiles of the last found whose names and options it was given, with the sizes given."""
    warps, stages, registers = given.get("num_warps", 4), given.get("num_stages", 3), given.get("maxnreg")
    for tiles, *options in reversed(found):
        if options == [warps, stages, registers] and tiles.keys() <= given.keys():
            return Configuration({name: given[name] for name in tiles}, warps, stages, registers)
    return Configuration({}, warps, stages, registers)


def _read(call: Call, name: str, target: int, launch: _Launch) -> Compiled:
    log, metadata = launch.kernel.log, launch.kernel.metadata
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    if registers is None or spills is None:
        raise RuntimeError(f"ptxas says nothing of the registers of {name}: {log!r}")
    return Compiled(
        call=call,
        kernel=name,
        target=target,
        configuration=launch.configuration,
        warps=metadata.num_warps,
        registers=int(registers[1]),
        spill_bytes=max(int(spills[1]), int(spills[2])),
        shared_bytes=metadata.shared,
        columns=metadata.tmem_size or 0,
        warnings=tuple(line.strip() for line in log.splitlines() if re.search(r"\(C\d+\)", line)),
        ptx=launch.kernel.asm["ptx"],
        cubin=launch.kernel.asm["cubin"],
    )


class _Driver:
    """What Triton asks of a driver to compile; a device's number is its target, for kernels are kept by device."""

    def __init__(self, target: int) -> None:
        self.target = target

    def get_current_device(self) -> int:
        return self.target

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.target, 32)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is 1 where something is worse than in the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.kernels.ahead_of_time", description=__doc__)
    parser.add_argument("--target", type=int, nargs="+", choices=TARGETS, default=TARGETS, help="compute capabilities")
    parser.add_argument("--match", default="", help="a regular expression: calls whose name it is found in")
    parser.add_argument("--write", action="store_true", help="put what came out into the table")
    given = parser.parse_args(arguments)
    calls = [call for calls in catalogue().values() for call in calls]
    matching = [call for call in calls if re.search(given.match, call.name)]
    rows, failures = [], []
    for call in matching:
        for target in given.target:
            try:
                found = [recorded.row(kernel) for kernel in compile_call(call, target)]
            except Exception as error:  # a compiler fails in many ways, and the others are still to be compiled
                failures.append(f"{call.name}: {error}")
                continue
            rows += found
            print(*map(str, found), sep="\n", flush=True)
    table = recorded.read()
    if given.write:
        recorded.write(recorded.renewed(table, rows, {call.name for call in calls}))
    else:
        failures += recorded.regressions(table, rows)
    print(f"{len(rows)} kernels of {len(matching)} calls compiled")
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
