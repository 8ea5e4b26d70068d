"""Samples taken in rounds, one of each in turn and in alternating order: drift of the machine hits all alike.

Those of mechanisms and passes beside one another, and those of one call on a GPU in three ways, with a cold L2 cache.
`queued`: the launches are all in the GPU's queue before the first one begins. `eager`: what a caller sees who waits for
the device before and after. `replay`: from a CUDA graph, without a host that launches kernel after kernel.
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

# A call that takes so little of its caller's time waits for the host.
LAUNCH_BOUND = 0.8

Each = TypeVar("Each")


@dataclass
class TimedInRounds(Benchmark):
    """A benchmark whose samples are times, one of each round."""

    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"

    min_sample_ms: float = setting(
        20.0, "shortest sample: calls are repeated until it lasts so long", minimum=0, condition=False
    )


@dataclass
class Comparing(TimedInRounds):
    """A benchmark that takes one sample of every mechanism of the sweep per round; the first is the baseline."""

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
    """All in the order of a round; every second round is backwards."""
    return list(each)[:: -1 if done % 2 else 1]


def time_in_rounds(
    context: CellContext,
    checks: Mapping[str, CorrectnessCheck],
    passes: Mapping[str, Timed],
    min_sample_ms: float,
    peaks: Peaks | None = None,
) -> dict[str, dict[str, Any]]:
    """Time passes of mechanisms that were checked before; their first and last results are checked here.

    `checks` and `passes` are by label: mechanisms that share their inputs share a check, and what has none is not
    checked. Each sample lasts `min_sample_ms` at least. Peaks are sampled in every round of the `repeats`, too.

    Returns:
        By label `{"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method", "cache"}`; a sample is
        nanoseconds per call, the mean over `calls_per_sample` of them. With peaks also `"ceilings"`, as
        `Peaks.measured`; on a GPU also what `Stopwatch.launched` says.

    Raises:
        IncorrectError: a result is wrong, or the last one is not the first.
    """
    stopwatch, rounds = Stopwatch(context.device), context.config["repeats"]
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
    """What `time_in_rounds` gave as the record of a comparison has it, of which the first label is the baseline.

    Returns:
        `{"labels": [baseline, ...], "samples": {label: [ns per call, one per round]}, "calls_per_sample": {label:
        calls}, "method", "cache"}`; on a GPU by label also what `Stopwatch.launched` says.
    """
    one = next(iter(timings.values()))
    keys = [key for key in ("samples", "calls_per_sample", *Launches._fields) if key in one]
    columns = {key: {label: timing[key] for label, timing in timings.items()} for key in keys}
    method = {key: one[key] for key in ("method", "cache")}
    return {"labels": list(timings), **columns, **method}


class Replay(Timed):
    """A pass captured in a graph, as something to take the time of."""

    def __init__(self, measured: Pass) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        # What is allocated or compiled at the first calls cannot be captured, nor can what waits for the device: a
        # capture that fails leaves PyTorch in a state of which it promises nothing.
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
        """The replay."""
        self.graph.replay()


def in_three_ways(device: torch.device, measured: Pass, rounds: int, min_sample_ms: float) -> dict[str, Any]:
    """Time a warm pass in each way that there is, after all else: a capture that fails may leave its mark.

    A backward pass alone is not captured, because its graph would hold the forward pass too. What was measured before
    is measured: where something fails here there are no `"ways"`, and `"no_replay"` says why.

    Returns:
        `{"replay_ns": median of the replays in nanoseconds, "launch_bound": whether the device takes far less than an
        eager caller waits, "ways": {way: {"samples": [ns per call], "calls_per_sample", "method", "cache", ...}},
        "no_replay": None or why there is none}`; on a CPU the first two, which are None.
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
        except Exception as error:  # PyTorch refuses a capture by errors of many classes
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
