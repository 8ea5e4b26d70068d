"""A call on a GPU in three ways, in rounds that alternate between them, each with a cold L2 cache.

`queued`: the launches are all in the GPU's queue before the first one begins. `eager`: what a caller sees who waits for
the device before and after. `replay`: from a CUDA graph, without a host that launches kernel after kernel.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from typing import Any

import torch

from bench.common.errors import one_line
from bench.measures.timing import WARMUP_CALLS, Pass, Stopwatch, Timed, calls_lasting

# A call that takes so little of its caller's time waits for the host.
LAUNCH_BOUND = 0.8


class Replay:
    """A pass captured in a graph, as something to take the time of."""

    def __init__(self, measured: Pass) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        # What is allocated or compiled at the first calls cannot be captured, nor can what waits for the device: a
        # capture that fails leaves PyTorch in a state of which it promises nothing.
        with torch.cuda.stream(side):
            measured.run_unprepared()
            with _no_waiting():
                measured.run_unprepared()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = measured.run_unprepared()

    def prepare(self) -> None:
        """Nothing."""

    def run(self, prepared: None) -> None:
        """The replay."""
        self.graph.replay()


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """What waits for the device raises."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def in_three_ways(device: torch.device, measured: Pass, rounds: int, min_sample_ms: float) -> dict[str, Any]:
    """Time a warm pass in each way that there is, after all else: a capture that fails may leave its mark.

    Args:
        device: of the pass.
        measured: the pass; a backward pass alone is not captured, because its graph would hold the forward pass too.
        rounds: samples of each way.
        min_sample_ms: how long a sample lasts at least, in milliseconds.

    Returns:
        `{"replay_ns": median of the replays in nanoseconds, "launch_bound": whether the device takes far less than an
        eager caller waits, "ways": {way: {"samples": [ns per call], "calls_per_sample", "method", "cache", ...}},
        "no_replay": None or why there is none}`; on a CPU the first two, which are None. What was measured before is
        measured: where something fails here there are no `"ways"`, and `"no_replay"` says why.
    """
    nothing: dict[str, Any] = {"replay_ns": None, "launch_bound": None}
    if device.type != "cuda":
        return nothing
    try:
        return _in_three_ways(device, measured, rounds, min_sample_ms)
    except Exception as error:
        return {**nothing, "no_replay": _words(error)}


def _in_three_ways(device: torch.device, measured: Pass, rounds: int, min_sample_ms: float) -> dict[str, Any]:
    queued, eager = Stopwatch(device), Stopwatch(device, eager=True)
    ways: dict[str, tuple[Stopwatch, Timed]] = {"queued": (queued, measured), "eager": (eager, measured)}
    replay, refusal = _captured(measured)
    if replay is not None:
        ways["replay"] = queued, replay
    timed = _timed(ways, rounds, min_sample_ms)
    medians = {way: statistics.median(timing["samples"]) for way, timing in timed.items()}
    alone = medians.get("replay", medians["queued"])
    return {
        "replay_ns": medians.get("replay"),
        "launch_bound": alone < LAUNCH_BOUND * medians["eager"],
        "ways": timed,
        "no_replay": refusal,
    }


def _captured(measured: Pass) -> tuple[Replay | None, str | None]:
    """The pass in a graph, or why there is none."""
    if measured.name == "backward":
        return None, "its graph would hold the forward pass too"
    try:
        replay = Replay(measured)
        replay.run(None)
        torch.cuda.synchronize()
    # PyTorch refuses a capture by errors of many classes.
    except Exception as error:
        return None, _words(error)
    return replay, None


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _timed(ways: dict[str, tuple[Stopwatch, Timed]], rounds: int, min_sample_ms: float) -> dict[str, dict[str, Any]]:
    calls = {}
    for way, (stopwatch, one) in ways.items():
        stopwatch.note_launches(one)
        calls[way] = calls_lasting(min_sample_ms, min(stopwatch.time(one) for _ in range(WARMUP_CALLS)))
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for done in range(rounds):
        for way in list(ways)[:: -1 if done % 2 else 1]:
            stopwatch, one = ways[way]
            samples[way].append(stopwatch.sample(one, calls[way]))
    return {
        way: {
            "samples": samples[way],
            "calls_per_sample": calls[way],
            **stopwatch.method,
            **stopwatch.launched(one),
        }
        for way, (stopwatch, one) in ways.items()
    }
