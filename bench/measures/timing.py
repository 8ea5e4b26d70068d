"""Time of one call, as raw samples, taken in rounds that alternate between what is compared."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
from torch import Tensor

Result = tuple[Tensor | None, ...]

MAX_CALLS_PER_SAMPLE = 1000
WARMUP_CALLS = 2
# A GPU takes this long from idle clocks to those it keeps.
WARMUP_S = {"cpu": 0.0, "cuda": 0.5}
# After something else had the device, a call takes this long to be as fast as it was; in a long one nobody sees it.
REWARM_NS, LONG_CALL_NS = 3e6, 2e7
# Longer than a launch takes and shorter than a loop of launches: every pass starts with the same lead on the device.
HEAD_START_CYCLES = 100_000


class Timed(Protocol):
    """What a stopwatch takes the time of: `run`, on what `prepare` made."""

    def prepare(self) -> Any:
        """What `run` needs and what is not timed."""

    def run(self, prepared: Any) -> Any:
        """The timed call."""


class Named(Timed, Protocol):
    """One of several passes or parts."""

    name: str


class Pass:
    """One pass of a mechanism: `prepare` is not timed, `run` is.

    `forward` runs without autograd, `backward` on a graph that `prepare` made, `forward_backward` both. Gradients of
    `gradient` go to the inputs and to the mechanism's parameters.

    Args:
        name: the pass.
        attention: the mechanism.
        inputs: query, key, value, `(batch, heads, seq_len, head_dim)`.
        gradient: of the output, shaped like query; None is a random one.
    """

    def __init__(
        self,
        name: str,
        attention: torch.nn.Module,
        inputs: tuple[Tensor, Tensor, Tensor],
        gradient: Tensor | None = None,
    ) -> None:
        self.name, self.attention = name, attention
        self.inputs = inputs if name == "forward" else tuple(x.detach().requires_grad_() for x in inputs)
        self.parameters = {name: p for name, p in attention.named_parameters() if p.requires_grad}
        self.leaves = [*self.inputs, *self.parameters.values()]
        if gradient is None and name != "forward":
            generator = torch.Generator("cpu").manual_seed(0)
            gradient = torch.randn(inputs[0].shape, generator=generator).to(inputs[0])
        self.gradient = gradient

    def prepare(self) -> Tensor | None:
        """What `run` needs and what is not timed."""
        return self.attention(*self.inputs) if self.name == "backward" else None

    def run(self, prepared: Tensor | None) -> Result:
        """The timed call: the output, and but for `forward` the gradient of each leaf, None where it has none."""
        if self.name == "forward":
            with torch.no_grad():
                return (self.attention(*self.inputs),)
        out = self.attention(*self.inputs) if prepared is None else prepared
        return (out.detach(), *torch.autograd.grad(out, self.leaves, self.gradient, allow_unused=True))

    def run_unprepared(self) -> Result:
        """The whole pass, with what is otherwise not timed."""
        return self.run(self.prepare())


class Stopwatch:
    """Times calls on a device: by the clock on a CPU, by events with a cold L2 cache on a GPU.

    `result` is what the last call returned.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.result: Any = None
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
        # Freed first, so that a call finds the memory as its predecessor did.
        self.result = None
        prepared = measured.prepare()
        if self.flush is None:
            start = time.perf_counter_ns()
            result = measured.run(prepared)
            elapsed = float(time.perf_counter_ns() - start)
        else:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.flush.zero_()
            torch.cuda.synchronize(self.device)
            torch.cuda._sleep(HEAD_START_CYCLES)
            begin.record()
            result = measured.run(prepared)
            end.record()
            torch.cuda.synchronize(self.device)
            elapsed = begin.elapsed_time(end) * 1e6
        self.result = result
        return elapsed

    def calibrate(self, measured: Timed, min_sample_ms: float, fastest_ns: float) -> int:
        """Call until the device is warm, and return how many calls make a sample last `min_sample_ms`.

        `fastest_ns` is the time of the fastest of the calls before, `WARMUP_CALLS` at least.
        """
        end = time.monotonic() + WARMUP_S[self.device.type]
        while time.monotonic() < end:
            fastest_ns = min(fastest_ns, self.time(measured))
        return max(1, min(MAX_CALLS_PER_SAMPLE, int(-(-min_sample_ms * 1e6 // fastest_ns))))

    def rewarm(self, measured: Timed, fastest_ns: float) -> None:
        """Call, untimed, until what other work put out of a cache is back in it; a cold one has nothing to lose."""
        end = time.perf_counter_ns() + REWARM_NS
        while self.flush is None and fastest_ns < LONG_CALL_NS and time.perf_counter_ns() < end:
            self.time(measured)

    def sample(self, measured: Timed, calls: int) -> float:
        """Nanoseconds per call, the mean over `calls` calls."""
        return sum(self.time(measured) for _ in range(calls)) / calls
