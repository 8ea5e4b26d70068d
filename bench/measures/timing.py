"""Time of one call, as raw samples, taken in rounds that alternate between what is compared."""

import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.inputs.base import Inputs

Result = tuple[Tensor | None, ...]

MAX_CALLS_PER_SAMPLE = 1000
WARMUP_CALLS = 2
# A GPU takes this long from idle clocks to those it keeps.
WARMUP_S = {"cpu": 0.0, "cuda": 0.5}
# After something else had the device, a call takes this long to be as fast as it was; in a long one nobody sees it.
REWARM_NS, LONG_CALL_NS = 3e6, 2e7
# A GPU sleeps so much longer than the host takes to launch a call, so that it finds all of it in its queue.
HEAD_START = 2.0
# What it sleeps before that is known, and at most: its queue holds about 1,000 launches, and a longer sleep no more.
FIRST_HEAD_START_NS, LONGEST_HEAD_START_NS = 5e4, 5e7
# A sleep is counted in cycles, of which the GPUs that the zoo is for have no more.
CYCLES_PER_NS = 2
# Calls whose median says how long the host takes.
LAUNCHED_CALLS = 3


class Timed:
    """What a stopwatch takes the time of: `run`, on what `prepare` made."""

    name = ""

    def prepare(self) -> Any:
        """What `run` needs and what is not timed."""

    def run(self, prepared: Any) -> Any:
        """The timed call."""
        raise NotImplementedError


class Pass(Timed):
    """One pass of a mechanism.

    `forward` runs without autograd, `backward` on a graph that `prepare` made, `forward_backward` both. Gradients of
    `gradient`, which is random where it is None, go to the inputs and to the mechanism's parameters.
    """

    def __init__(self, name: str, attention: torch.nn.Module, inputs: Inputs, gradient: Tensor | None = None) -> None:
        self.name, self.attention = name, attention
        self.inputs = inputs if name == "forward" else tuple(x.detach().requires_grad_() for x in inputs)
        self.leaves = [*self.inputs, *(p for p in attention.parameters() if p.requires_grad)]
        if gradient is None and name != "forward":
            generator = torch.Generator("cpu").manual_seed(0)
            gradient = torch.randn(inputs[0].shape, generator=generator).to(inputs[0])
        self.gradient = gradient

    def prepare(self) -> Tensor | None:
        """The output with its graph for `backward`."""
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


class Launches(NamedTuple):
    """How the calls of one thing reach a GPU."""

    host_ns: float
    """What the host takes to launch one, the queue being empty."""
    head_start_ns: float
    """What the GPU sleeps before it begins."""
    queued: list[bool]
    """Of each sampled one, whether its launches were all queued before the first began: no time of the host in it."""


class Stopwatch:
    """Times calls on a device: by the clock on a CPU, by events with a cold L2 cache on a GPU.

    The events stand in a queue behind a sleep that lasts until all launches of the call are in it (`Launches`), so that
    they say what the GPU takes. `eager` is what a caller sees on a GPU instead: the clock's time from an idle device to
    an idle device. `result` is what the last call returned.
    """

    def __init__(self, device: torch.device, *, eager: bool = False) -> None:
        self.device, self.eager = device, eager
        self.result: Any = None
        self.flush: Tensor | None = None
        self.launches: dict[Timed, Launches] = {}
        self._was_queued = False
        if device.type == "cuda":
            l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size
            self.flush = torch.empty(2 * l2_bytes, dtype=torch.int8, device=device)

    @property
    def method(self) -> dict[str, str]:
        """How a sample was taken, for the record."""
        if self.flush is None:
            return {"method": "perf_counter", "cache": "warm"}
        return {"method": "perf_counter" if self.eager else "cuda_event", "cache": "cold"}

    def time(self, measured: Timed) -> float:
        """Nanoseconds of one call."""
        # Freed first, so that a call finds the memory as its predecessor did.
        self.result = None
        prepared = measured.prepare()
        if self.flush is not None:
            self.flush.zero_()
            torch.cuda.synchronize(self.device)
            if not self.eager:
                return self._by_events(measured, prepared)
        start = time.perf_counter_ns()
        result = measured.run(prepared)
        if self.flush is not None:
            torch.cuda.synchronize(self.device)
        elapsed = float(time.perf_counter_ns() - start)
        self.result = result
        return elapsed

    def _by_events(self, measured: Timed, prepared: Any) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        known = self.launches.get(measured)
        torch.cuda._sleep(int(CYCLES_PER_NS * (known.head_start_ns if known else FIRST_HEAD_START_NS)))
        begin.record()
        self.result = measured.run(prepared)
        end.record()
        self._was_queued = not begin.query()
        torch.cuda.synchronize(self.device)
        return begin.elapsed_time(end) * 1e6

    def note_launches(self, measured: Timed) -> None:
        """Find out how long the host takes to launch a call, so that a GPU is given that much of a head start."""
        if self.flush is None or self.eager:
            return
        times = []
        for _ in range(LAUNCHED_CALLS):
            self.result = None
            prepared = measured.prepare()
            torch.cuda.synchronize(self.device)
            start = time.perf_counter_ns()
            self.result = measured.run(prepared)
            times.append(float(time.perf_counter_ns() - start))
            torch.cuda.synchronize(self.device)
        host_ns = statistics.median(times)
        head_start_ns = min(max(HEAD_START * host_ns, FIRST_HEAD_START_NS), LONGEST_HEAD_START_NS)
        self.launches[measured] = Launches(host_ns, head_start_ns, [])

    def launched(self, measured: Timed) -> dict[str, float]:
        """Its `Launches` for the record, `queued` being the share of the calls; nothing where that is not asked."""
        if (known := self.launches.get(measured)) is None:
            return {}
        return {**known._asdict(), "queued": sum(known.queued) / max(1, len(known.queued))}

    def calibrate(self, measured: Timed, min_sample_ms: float, fastest_ns: float) -> int:
        """Call until the device is warm, and return how many calls make a sample last `min_sample_ms`.

        `fastest_ns` is the time of the fastest of the calls before, `WARMUP_CALLS` at least.
        """
        end = time.monotonic() + WARMUP_S[self.device.type]
        while time.monotonic() < end:
            fastest_ns = min(fastest_ns, self.time(measured))
        self.note_launches(measured)
        return calls_lasting(min_sample_ms, fastest_ns)

    def rewarm(self, measured: Timed, fastest_ns: float) -> None:
        """Call, untimed, until what other work put out of a cache is back in it; a cold one has nothing to lose."""
        end = time.perf_counter_ns() + REWARM_NS
        while self.flush is None and fastest_ns < LONG_CALL_NS and time.perf_counter_ns() < end:
            self.time(measured)

    def sample(self, measured: Timed, calls: int) -> float:
        """Nanoseconds per call, the mean over `calls` calls."""
        known, total = self.launches.get(measured), 0.0
        for _ in range(calls):
            total += self.time(measured)
            if known:
                known.queued.append(self._was_queued)
        return total / calls


def calls_lasting(min_sample_ms: float, fastest_ns: float) -> int:
    """How many calls make a sample last `min_sample_ms`, if none is faster than `fastest_ns`."""
    return max(1, min(MAX_CALLS_PER_SAMPLE, int(-(-min_sample_ms * 1e6 // fastest_ns))))
