"""Takes samples in rounds, one of each mechanism in alternating order, so that drift affects all equally.

A GPU pass can also be timed in three ways, with a cold L2 cache. `queued`: all launches are in the GPU's queue before
the first one begins. `eager`: what a caller measures who waits for the device before and after. `replay`: from a CUDA
graph, without the host launching kernel after kernel.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch

from bench.common.errors import one_line
from bench.common.schema import setting
from bench.measures import Benchmark
from bench.measures.context import CellContext
from bench.measures.correctness import CorrectnessCheck
from bench.measures.peaks import Peaks
from bench.measures.timing import WARMUP_CALLS, Launches, Pass, Stopwatch, Timed, calls_lasting
from bench.records.metrics import Metric

# A call is launch-bound if the device needs less than this share of the time that an eager caller waits.
LAUNCH_BOUND = 0.8

Each = TypeVar("Each")


@dataclass
class TimedInRounds(Benchmark):
    """A benchmark whose samples are times, one per round."""

    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"

    min_sample_ms: float = setting(
        20.0,
        "shortest sample in ms: calls are repeated until it lasts this long, at most 1,000 times",
        minimum=0,
        condition=False,
    )


@dataclass
class Comparing(TimedInRounds):
    """A benchmark with one sample of every mechanism of the sweep per round; the first one is the baseline."""

    compares: ClassVar[bool] = True

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The verdict on each candidate."""
        return ", ".join(
            f"{one.attention} {one.value:.3g}x [{one.low:.3g}, {one.high:.3g}] {one.baseline}: {one.verdict}"
            for one in quantities
            if one.verdict
        )


def in_turn(each: Iterable[Each], done: int) -> list[Each]:
    """All items in the order of a round; every second round is reversed."""
    return list(each)[:: -1 if done % 2 else 1]


def time_in_rounds(
    context: CellContext,
    checks: Mapping[str, CorrectnessCheck],
    passes: Mapping[str, Timed],
    min_sample_ms: float,
    peaks: Peaks | None = None,
    *,
    eager: bool = False,
) -> dict[str, dict[str, Any]]:
    """Time passes of mechanisms that were checked before; their first and last results are checked here.

    `checks` and `passes` are by label: mechanisms that share their inputs share a check, and a label without a check is
    not checked. Each sample lasts at least `min_sample_ms`, or is of `MAX_CALLS_PER_SAMPLE` calls. Peaks are
    sampled in each of the `repeats` rounds. With `eager`, a GPU is timed as a caller sees it.

    Returns:
        By label `{"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method", "cache"}`; a sample is
        nanoseconds per call, the mean over `calls_per_sample` calls. With peaks also `"ceilings"`, as
        `Peaks.measured`; on a GPU, unless `eager`, also the result of `Stopwatch.launched`.

    Raises:
        IncorrectError: a result is wrong, or the last result differs from the first.
    """
    stopwatch, rounds = Stopwatch(context.device, eager=eager), context.config["repeats"]
    context.enter("warmup")
    fastest = dict.fromkeys(passes, math.inf)
    for sign in (-1, 1):
        for check in checks.values():
            check.set_sign(sign)
        for label, measured in passes.items():
            fastest[label] = min(fastest[label], stopwatch.time(measured))
            if label in checks:
                checks[label].check_first(label, measured.name, stopwatch.result)
    calls = {label: stopwatch.calibrate(measured, min_sample_ms, fastest[label]) for label, measured in passes.items()}
    if peaks:
        peaks.prepare(stopwatch)
    context.enter("measure")
    samples: dict[str, list[float]] = {label: [] for label in passes}
    for done in range(rounds):
        for check in checks.values():
            check.set_sign(-1 if done % 2 else 1)
        if peaks:
            peaks.sample(stopwatch)
        for label, measured in in_turn(passes.items(), done):
            if peaks:
                stopwatch.rewarm(measured, fastest[label])
            samples[label].append(stopwatch.sample(measured, calls[label]))
            if done >= rounds - 2 and label in checks:
                checks[label].check_last(label, measured.name, stopwatch.result)
        context.progress(done + 1, rounds)
    common = {"unit": "ns", "warmup_calls": WARMUP_CALLS} | ({"ceilings": peaks.measured()} if peaks else {})
    return {label: common | _sampled(stopwatch, one, samples[label], calls[label]) for label, one in passes.items()}


def _sampled(stopwatch: Stopwatch, one: Timed, samples: list[float], calls: int) -> dict[str, Any]:
    return {"samples": samples, "calls_per_sample": calls, **stopwatch.method, **stopwatch.launched(one)}


def compared(timings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Convert the result of `time_in_rounds` to a comparison's record; the first label is the baseline.

    Returns:
        `{"labels": [baseline, ...], "samples": {label: [ns per call, one per round]}, "calls_per_sample": {label:
        calls}, "method", "cache"}`; on a GPU also the values of `Stopwatch.launched`, by label.
    """
    one = next(iter(timings.values()))
    keys = [key for key in ("samples", "calls_per_sample", *Launches._fields) if key in one]
    columns = {key: {label: timing[key] for label, timing in timings.items()} for key in keys}
    method = {key: one[key] for key in ("method", "cache")}
    return {"labels": list(timings), **columns, **method}


class Replay(Timed):
    """A pass captured in a CUDA graph, to be timed."""

    def __init__(self, measured: Pass) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        # Allocation and compilation in the first calls cannot be captured, nor can waiting for the device. PyTorch
        # gives no guarantee about its state after a failed capture, so such passes are found first.
        with torch.cuda.stream(side):
            measured.run_unprepared()
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                measured.run_unprepared()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = measured.run_unprepared()
        self.run()
        torch.cuda.synchronize()

    def run(self, prepared: None = None) -> None:
        """Replay the graph."""
        self.graph.replay()


def in_three_ways(device: torch.device, measured: Pass, rounds: int, min_sample_ms: float) -> dict[str, Any]:
    """Time a warm pass in each way that works. Call it last, since a failed capture may leave side effects.

    A backward pass alone is not captured, because its graph would also need the forward pass. An error here does not
    affect earlier measurements: the result then has no `"ways"`, and `"no_replay"` is the reason.

    Returns:
        `{"replay_ns": median of the replays in nanoseconds, "launch_bound": whether the device needs much less time
        than an eager caller waits, "ways": {way: {"samples": [ns per call], "calls_per_sample", "method", "cache",
        ...}}, "no_replay": None or why there is none}`; on a CPU only the first two, both None.
    """
    nothing: dict[str, Any] = {"replay_ns": None, "launch_bound": None}
    if device.type != "cuda":
        return nothing
    try:
        return _in_three_ways(device, measured, rounds, min_sample_ms)
    except Exception as error:
        return {**nothing, "no_replay": f"{type(error).__name__}: {one_line(error)}"}


def _in_three_ways(device: torch.device, measured: Pass, rounds: int, min_sample_ms: float) -> dict[str, Any]:
    queued, no_replay = Stopwatch(device), None
    ways: dict[str, tuple[Stopwatch, Timed]] = {"queued": (queued, measured)}
    ways["eager"] = Stopwatch(device, eager=True), measured
    if measured.name == "backward":
        no_replay = "its graph would hold the forward pass too"
    else:
        try:
            ways["replay"] = queued, Replay(measured)
        except Exception as error:  # PyTorch raises many classes of errors for a failed capture
            no_replay = f"{type(error).__name__}: {one_line(error)}"
    calls = {}
    for way, (stopwatch, one) in ways.items():
        stopwatch.note_launches(one)
        calls[way] = calls_lasting(min_sample_ms, min(stopwatch.time(one) for _ in range(WARMUP_CALLS)))
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for done in range(rounds):
        for way, (stopwatch, one) in in_turn(ways.items(), done):
            samples[way].append(stopwatch.sample(one, calls[way]))
    timed = {way: _sampled(*pair, samples[way], calls[way]) for way, pair in ways.items()}
    medians = {way: statistics.median(of_way) for way, of_way in samples.items()}
    alone = medians.get("replay", medians["queued"])
    is_bound = alone < LAUNCH_BOUND * medians["eager"]
    return {"replay_ns": medians.get("replay"), "launch_bound": is_bound, "ways": timed, "no_replay": no_replay}
