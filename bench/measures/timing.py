"""Times one call on a CPU or GPU, as raw samples."""

import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.inputs.base import Inputs

Result = tuple[Tensor | None, ...]

MAX_CALLS_PER_SAMPLE = 1000
WARMUP_CALLS = 2
# How long a GPU needs to get from idle clocks to its final ones.
WARMUP_S = {"cpu": 0.0, "cuda": 0.5}
# After other work on the device, calls take this long to be as fast as before; long calls do not show it.
REWARM_NS, LONG_CALL_NS = 3e6, 2e7
# A GPU sleeps this many times longer than the host takes to launch a call, so that the whole call is in its queue.
HEAD_START = 2.0
# The sleep before the launch time is known, and the longest sleep: the queue holds only about 1,000 launches.
FIRST_HEAD_START_NS, LONGEST_HEAD_START_NS = 5e4, 5e7
# A sleep is counted in clock cycles; the GPUs that the suite is for have at most this many.
CYCLES_PER_NS = 2
# The launch time is the median of this many calls.
LAUNCHED_CALLS = 3


class Timed:
    """Something to time: `run`, on what `prepare` returned."""

    name = ""

    def prepare(self) -> Any:
        """Return what `run` needs; not timed."""

    def run(self, prepared: Any) -> Any:
        """The timed call."""
        raise NotImplementedError


class Pass(Timed):
    """One pass of a mechanism.

    `forward` runs without autograd, `backward` on a graph that `prepare` built, `forward_backward` runs both. The
    output's gradient is `gradient`, None: random; inputs and the mechanism's parameters get gradients.
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
        """The output with its graph, for `backward`."""
        return self.attention(*self.inputs) if self.name == "backward" else None

    def run(self, prepared: Tensor | None) -> Result:
        """The timed call: returns the output and, except for `forward`, each leaf's gradient (None if it has none)."""
        if self.name == "forward":
            with torch.no_grad():
                return (self.attention(*self.inputs),)
        out = self.attention(*self.inputs) if prepared is None else prepared
        return (out.detach(), *torch.autograd.grad(out, self.leaves, self.gradient, allow_unused=True))

    def run_unprepared(self) -> Result:
        """The whole pass, including the untimed part."""
        return self.run(self.prepare())


class Launches(NamedTuple):
    """How the launches of a call reach a GPU."""

    host_ns: float
    """Time that the host takes to launch a call into an empty queue."""
    head_start_ns: float
    """How long the GPU sleeps before it begins."""
    queued: list[bool]
    """For each sampled call: whether all launches were queued before the first began, so no host time is included."""


class Stopwatch:
    """Times calls on a device: with the clock on a CPU, with events and a cold L2 cache on a GPU.

    The events are queued behind a sleep that lasts until all launches of the call are queued (`Launches`), so they
    measure the GPU's time only. With `eager`, a GPU is timed as a caller sees it: by the clock, from an idle device to
    an idle device. `result` is the result of the last call.
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
        """How samples are taken, for the record."""
        if self.flush is None:
            return {"method": "perf_counter", "cache": "warm"}
        return {"method": "perf_counter" if self.eager else "cuda_event", "cache": "cold"}

    def time(self, measured: Timed) -> float:
        """Nanoseconds of one call."""
        # Freed first, so that each call finds the memory in the same state.
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
        """Measure how long the host takes to launch a call, which sets the length of the GPU's sleep."""
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
        """The `Launches` for the record, with `queued` as the share of calls; empty if they were not measured."""
        if (known := self.launches.get(measured)) is None:
            return {}
        return {**known._asdict(), "queued": sum(known.queued) / max(1, len(known.queued))}

    def calibrate(self, measured: Timed, min_sample_ms: float, fastest_ns: float) -> int:
        """Warm the device up, and return how many calls make a sample last `min_sample_ms`.

        `fastest_ns` is the fastest time among earlier calls, of which there were at least `WARMUP_CALLS`.
        """
        end = time.monotonic() + WARMUP_S[self.device.type]
        while time.monotonic() < end:
            fastest_ns = min(fastest_ns, self.time(measured))
        self.note_launches(measured)
        return calls_lasting(min_sample_ms, fastest_ns)

    def rewarm(self, measured: Timed, fastest_ns: float) -> None:
        """Repeat the call, untimed, until caches are warm again after other work; does nothing with a cold cache."""
        end = time.perf_counter_ns() + REWARM_NS
        while self.flush is None and fastest_ns < LONG_CALL_NS and time.perf_counter_ns() < end:
            self.time(measured)

    def sample(self, measured: Timed, calls: int) -> float:
        """Nanoseconds per call, as the mean over `calls` calls."""
        known, total = self.launches.get(measured), 0.0
        for _ in range(calls):
            total += self.time(measured)
            if known:
                known.queued.append(self._was_queued)
        return total / calls


def calls_lasting(min_sample_ms: float, fastest_ns: float) -> int:
    """How many calls make a sample last `min_sample_ms`, if the fastest call takes `fastest_ns`."""
    return max(1, min(MAX_CALLS_PER_SAMPLE, int(-(-min_sample_ms * 1e6 // fastest_ns))))
