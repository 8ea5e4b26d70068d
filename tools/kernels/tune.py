"""Find the fastest configuration of each kernel on a GPU: `python -m tools.kernels.tune` prints rows for its table.

The candidates are those of the operation's `tiles.py` and similar ones; those that do not compile are left out.
"""

import contextlib
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.launching import Configuration, Entry
from bench.common import signals
from bench.common.errors import Parser
from tools.kernels.call import Call, catalogue
from tools.kernels.progress import Progress, kernel_code

# Largest relative difference of two configurations' results, by bytes of the dtype: twice the error allowed to each.
TOLERANCE = {2: 2e-2, 4: 2e-5}
TINY = 1e-30
ROUNDS, LAUNCHES = 20, 8
# A candidate must need less than this share of the table's time to replace its configuration.
GAIN = 0.99
# A candidate during which the process died is tried once more, as the cause may have been another.
TRIES = 2

Table = tuple[Entry, ...]
Launch = Callable[[], Any]
# From a launch, makes a function that returns the nanoseconds of one launch.
Capture = Callable[[Launch], Callable[[], float]]


class Lookup(NamedTuple):
    """A launch's lookup in a table: the arguments of `launching.fitting`, and the configuration that it returns."""

    table: Table
    kernel: str
    arch: int
    bits: int
    dims: Mapping[str, int]
    configuration: Configuration


class Winner(NamedTuple):
    """The fastest configuration of a kernel in a call; `times` are nanoseconds of the call by configuration."""

    call: str
    lookup: Lookup
    configuration: Configuration
    times: Mapping[str, float]

    def __str__(self) -> str:
        """A comment and the new entry for the table; only the comment if the table already has the fastest."""
        _, kernel, arch, bits, dims, own = self.lookup
        said = f"# {self.call}: {self.times[self.configuration.name] / 1e6:.4g} ms"
        if self.configuration == own:
            return f"{said}, {kernel} as in the table ({own.name})"
        before = f"{self.times[own.name] / 1e6:.4g} ms" if own.name in self.times else "nothing"
        tiles, warps, stages, registers = self.configuration
        capped = "" if registers is None else f", registers={registers}"
        row = f"Configuration({dict(tiles)}, {warps}, {stages}{capped}), arch=({arch}, {arch}), bits={bits}"
        row = f"Entry('{kernel}', {row}, at_most={dict(dims)}),".replace("'", '"')
        return f"{said}, {before} with {own.name}\n{row}"


def tune(call: Call, device: torch.device, progress: Progress, capture: Capture) -> Iterator[Winner]:
    """Find the fastest configuration of each kernel of a call; its other kernels are configured as in the table."""
    asked, expected = lookups(call, device)
    for lookup in asked:
        named = {c.name: c for c in (lookup.configuration, *candidates(lookup))}
        if len(named) == 1:
            continue
        done = progress.lines(call=call.name, kernel=lookup.kernel, step="timed", candidates=sorted(named))
        times = done[-1]["times"] if done else _race(call, device, expected, lookup, named, progress, capture)
        if times:
            best, own = min(times, key=times.__getitem__), lookup.configuration.name
            fastest = own if times[best] > GAIN * times.get(own, math.inf) else best
            yield Winner(call.name, lookup, named[fastest], times)


def lookups(call: Call, device: torch.device) -> tuple[list[Lookup], Any]:
    """The lookups of a call in tables (the first for each kernel), and its result."""
    found: dict[str, Lookup] = {}
    fitting = launching.fitting

    def look(table: Table, kernel: str, arch: int, bits: int, dims: Mapping[str, int]) -> Configuration:
        answer = fitting(table, kernel, arch, bits, dims)
        found.setdefault(kernel, Lookup(table, kernel, arch, bits, dims, answer))
        return answer

    with mock.patch.object(launching, "fitting", look):
        result = _result(call, device)
    return list(found.values()), result


def candidates(lookup: Lookup) -> list[Configuration]:
    """Configurations to try: the table's for this kernel, and the current one with a number changed (half, double)."""
    own = lookup.configuration
    tried = [row.configuration for row in lookup.table if row.kernel == lookup.kernel]
    for factor in (0.5, 2):
        tried += [own._replace(tiles={**own.tiles, name: int(factor * size)}) for name, size in own.tiles.items()]
        tried.append(own._replace(num_warps=int(factor * own.num_warps)))
    return [*tried, own._replace(num_stages=own.num_stages + 1), own._replace(num_stages=max(1, own.num_stages - 1))]


@contextlib.contextmanager
def _using(kernel: str, given: Configuration) -> Iterator[None]:
    """Context manager: inside, a kernel is launched with this configuration."""
    fitting = launching.fitting

    def look(table: Table, name: str, *sizes: Any) -> Configuration:
        return given if name == kernel else fitting(table, name, *sizes)

    with mock.patch.object(launching, "fitting", look):
        yield


def _race(
    call: Call,
    device: torch.device,
    expected: Any,
    lookup: Lookup,
    named: Mapping[str, Configuration],
    progress: Progress,
    capture: Capture,
) -> dict[str, float]:
    """Median nanoseconds of the call with each correct candidate, measured in interleaved rounds."""
    launch, samplers = call.make(device), {}
    for name, configuration in named.items():
        said = {"call": call.name, "kernel": lookup.kernel, "configuration": name}
        if len(progress.lines(**said, step="started")) - len(progress.lines(**said, step="ended")) >= TRIES:
            continue
        progress.add(**said, step="started")
        try:
            with _using(lookup.kernel, configuration):
                wrong = _difference(_result(call, device), expected) > TOLERANCE[call.dtype.itemsize]
                if not wrong:
                    samplers[name] = capture(launch)
            outcome = "is wrong" if wrong else "is right"
        except Exception as error:  # candidates that need too many resources raise many types of errors
            outcome = f"{type(error).__name__}: {error}"[:300]
        # After a CUDA error, in whatever words, the process can no longer use the device: this raises it again, before
        # the candidate counts as ended, so that it is one that ends the process.
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        progress.add(**said, step="ended", outcome=outcome)
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    for turn in range(ROUNDS):
        for name in list(samplers)[:: -1 if turn % 2 else 1]:
            samples[name].append(samplers[name]())
    times = {name: statistics.median(taken) for name, taken in samples.items()}
    progress.add(call=call.name, kernel=lookup.kernel, step="timed", candidates=sorted(named), times=times)
    return times


def _result(call: Call, device: torch.device) -> Any:
    """The result of a launch on fixed inputs; new memory is filled with NaN, so that unwritten outputs are found."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.manual_seed(0)
    launch = call.make(device)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return launch()
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def _difference(result: Any, expected: Any) -> float:
    """The largest relative difference between tensors of two results, in the Frobenius norm.

    Places where NaN is expected are ignored: no kernel writes there.
    """
    if isinstance(expected, Tensor):
        result, expected = (result,), (expected,)
    largest = 0.0
    for x, y in zip(result, expected, strict=True):
        if isinstance(y, Tensor):
            x, y = x[~y.isnan()].double(), y[~y.isnan()].double()
            difference = float((x - y).norm() / y.norm().clamp_min(TINY))
            largest = max(largest, math.inf if math.isnan(difference) else difference)
    return largest


def captured(launch: Launch) -> Callable[[], float]:
    """A function that times a CUDA graph of several launches, so that short kernels do not wait for the host."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()

    def sample() -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1e6 * start.elapsed_time(end) / LAUNCHES

    return sample


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = Parser(prog="python -m tools.kernels.tune", description=__doc__)
    parser.add_argument("--match", default="", help="a regular expression: calls whose name it is found in")
    parser.add_argument("--progress", type=Path, default=Path("runs/tuning.jsonl"), help="what was done (%(default)s)")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("kernels are tuned on a CUDA device, and there is none", file=sys.stderr)
        return 2
    progress = Progress(given.progress, f"{torch.cuda.get_device_name()}, {kernel_code()}")
    for call in (call for calls in catalogue().values() for call in calls):
        if re.search(given.match, call.name):
            for winner in tune(call, torch.device("cuda"), progress, captured):
                print(winner, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(signals.run(main))
