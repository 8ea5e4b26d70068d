"""Time of one call, as raw samples."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
from torch import Tensor

from attention_zoo import Attention

MAX_CALLS_PER_SAMPLE = 1000
WARMUP_CALLS = 2


class Timed(Protocol):
    """What a stopwatch takes the time of: `run`, on what `prepare` made."""

    def prepare(self) -> Any:
        """What `run` needs and what is not timed."""

    def run(self, prepared: Any) -> Any:
        """The timed call."""


class Pass:
    """One pass of a mechanism: `prepare` is not timed, `run` is.

    `forward` runs without autograd, `backward` on a graph that `prepare` made, `forward_backward` both. Gradients go
    to the inputs and to the mechanism's parameters, from a random output gradient.
    """

    def __init__(self, name: str, attention: Attention, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
        self.name, self.attention = name, attention
        self.inputs = inputs if name == "forward" else tuple(x.detach().requires_grad_() for x in inputs)
        parameters = [p for p in attention.parameters() if p.requires_grad]
        self.leaves = [*self.inputs, *parameters]
        generator = torch.Generator("cpu").manual_seed(0)
        query = inputs[0]
        gradient = torch.randn(query.shape, generator=generator) if name != "forward" else torch.empty(0)
        self.gradient = gradient.to(query)

    def prepare(self) -> Tensor | None:
        """What `run` needs and what is not timed."""
        return self.attention(*self.inputs) if self.name == "backward" else None

    def run(self, prepared: Tensor | None) -> Any:
        """The timed call."""
        if self.name == "forward":
            with torch.no_grad():
                return self.attention(*self.inputs)
        out = self.attention(*self.inputs) if prepared is None else prepared
        return torch.autograd.grad(out, self.leaves, self.gradient, allow_unused=True)

    def run_unprepared(self) -> Any:
        """The whole pass, with what is otherwise not timed."""
        return self.run(self.prepare())


class Stopwatch:
    """Times calls on a device: by the clock on a CPU, by events with a cold L2 cache on a GPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.flush: Tensor | None = None
        if device.type == "cuda":
            l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
            self.flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device=device)

    @property
    def method(self) -> dict[str, str]:
        """How a sample was taken, for the record."""
        on_gpu = self.flush is not None
        return {"method": "cuda_event" if on_gpu else "perf_counter", "cache": "cold" if on_gpu else "warm"}

    def time(self, measured: Timed) -> float:
        """Nanoseconds of one call."""
        prepared = measured.prepare()
        if self.flush is None:
            start = time.perf_counter_ns()
            measured.run(prepared)
            return float(time.perf_counter_ns() - start)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.flush.zero_()
        begin.record()
        measured.run(prepared)
        end.record()
        torch.cuda.synchronize(self.device)
        return begin.elapsed_time(end) * 1e6

    def calibrate(self, measured: Timed, min_sample_ms: float) -> int:
        """Warm up, and return how many calls make a sample last `min_sample_ms`."""
        fastest = min(self.time(measured) for _ in range(WARMUP_CALLS))
        return max(1, min(MAX_CALLS_PER_SAMPLE, int(-(-min_sample_ms * 1e6 // fastest))))

    def sample(self, measured: Timed, calls: int) -> float:
        """Nanoseconds per call, the mean over `calls` calls."""
        return sum(self.time(measured) for _ in range(calls)) / calls
