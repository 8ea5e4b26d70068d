"""What a call costs a GPU alone: replayed from a CUDA graph, without a host that launches kernel after kernel."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from bench.measures.timing import Pass, Stopwatch

REPLAYS = 10
# A call whose graph takes less than this share of its time waits for the host.
LAUNCH_BOUND = 0.8


class Replay:
    """A pass captured in a graph, as something to take the time of."""

    def __init__(self, measured: Pass) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        # What is allocated or compiled at the first calls cannot be captured.
        with torch.cuda.stream(side):
            for _ in range(2):
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


def launches(device: torch.device, measured: Pass, samples: Sequence[float]) -> dict[str, float | bool | None]:
    """Whether the host is what a pass waits for.

    Args:
        device: of the pass.
        measured: the pass; a backward pass alone is not captured, because its graph would hold the forward pass too.
        samples: nanoseconds of its calls as they were timed.

    Returns:
        `{"replay_ns": nanoseconds of one replay, "launch_bound": whether that is far less than the samples}`, both None
        on a CPU, and where it cannot be captured.
    """
    if device.type != "cuda" or measured.name == "backward":
        return {"replay_ns": None, "launch_bound": None}
    try:
        replay, stopwatch = Replay(measured), Stopwatch(device)
        fastest = statistics.median(stopwatch.time(replay) for _ in range(REPLAYS))
    # PyTorch refuses a capture by errors of many classes, and what was measured is measured.
    except Exception:
        return {"replay_ns": None, "launch_bound": None}
    return {"replay_ns": fastest, "launch_bound": fastest < LAUNCH_BOUND * statistics.median(samples)}
