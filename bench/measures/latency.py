"""Latency of forward, backward and forward+backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.common.schema import PASSES, setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext
from bench.measures.device_state import energy
from bench.measures.flops import analytic
from bench.measures.peaks import Peaks, compulsory_bytes
from bench.measures.replay import in_three_ways
from bench.measures.rounds import time_in_rounds
from bench.measures.timing import Pass
from bench.records import roofline
from bench.records.metrics import Metric, median, spread


@register
@dataclass
class Latency(Benchmark):
    """Time of one call: forward, backward and both. Each pass is a cell: one may run out of memory, another not."""

    name: ClassVar[str] = "latency"
    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"
    cell_per: ClassVar[str | None] = "passes"

    # What is measured besides: the device's peaks in the same rounds as the forward pass; what a caller waits, and a
    # replay of the graph; the energy of the board. The last two on a GPU only.
    beside: list[str] | None = setting(None, choices=("ceilings", "ways", "energy"), condition=False)
    passes: list[str] = setting(list(PASSES), choices=PASSES, condition=False)
    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # calls are repeated until a sample lasts so long

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Raw samples per pass.

        Returns:
            `{"passes": {name: {"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method",
            "cache"}}, "tokens": batch_size * seq_len}`; a sample is nanoseconds per call. With `ceilings` beside, also
            `"flops"`, analytic ones of the forward pass, `"bytes"`, compulsory ones, and of that pass `"ceilings"`, as
            `bench=roofline`. A pass may have `"launch_bound"`, `"replay_ns"` and on a GPU `"ways"`, as
            `bench.measures.replay.in_three_ways`, and `"energy"`, as `bench.measures.device_state.energy`.
        """
        beside = self.beside or []
        label, attention, inputs = context.config["label"], context.attention(), context.inputs()
        check = context.correctness_check(inputs)
        check.check_before(label, attention, self.passes)
        passes = {}
        for name in self.passes:
            peaks = Peaks(context.dtype) if name == "forward" and "ceilings" in beside else None
            timed = {label: Pass(name, attention, inputs, check.gradient)}
            passes[name] = time_in_rounds(context, {label: check}, timed, self.min_sample_ms, peaks)[label]
        check.finish()
        for name, timing in passes.items():
            again, calls = Pass(name, attention, inputs, check.gradient), timing["calls_per_sample"]
            if "energy" in beside and context.device.type == "cuda":
                timing["energy"] = energy(context.device, context.device_state, again, calls)
            if "ways" in beside:
                timing |= in_three_ways(context.device, again, context.config["repeats"], self.min_sample_ms)
        batch_size, _, seq_len, _ = inputs[0].shape
        work: dict[str, Any] = {}
        if "ceilings" in beside:
            work["flops"] = analytic(attention, batch_size, seq_len)
            work["bytes"] = compulsory_bytes(attention, inputs)
        return {"passes": passes, "tokens": batch_size * seq_len, **work}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Of each pass `latency` in ns, `latency_per_token` in µs/token and `spread`.

        What was asked for beside: of the forward one `flops`, `throughput`, and its `share` of the ceiling; on a GPU of
        each pass `eager`, what a caller waits, and `replay`, from a graph, in ns; `energy_per_token` in J/token, and
        the board's `power` and `idle_power` in W.
        """
        for name, timed in measurements["passes"].items():
            samples, of_pass = timed["samples"], {"measured_pass": name}
            per_token = [sample / measurements["tokens"] / 1e3 for sample in samples]
            latency = median("latency", samples, "ns", name=f"latency_ms.{name}", shown=("ms", 1e-6), **of_pass)
            yield latency
            tracked = f"latency_us_per_token.{name}"
            yield median("latency_per_token", per_token, "µs/token", name=tracked, shown=None, **of_pass)
            yield spread(samples, name=f"spread_pct.{name}", **of_pass)
            for way in ("eager", "replay"):
                if way in timed.get("ways", ()):  # on a GPU
                    times = timed["ways"][way]["samples"]
                    yield median(way, times, "ns", name=f"{way}_ms.{name}", shown=("ms", 1e-6), **of_pass)
            if used := timed.get("energy"):
                yield from _energy(used, measurements["tokens"], of_pass)
            if name == "forward" and "flops" in measurements:
                yield from roofline.throughput(measurements["flops"], latency)
                if ceilings := timed.get("ceilings"):  # older records have FLOPs without them
                    yield roofline.share(samples, ceilings, measurements["flops"], measurements["bytes"])

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The median of each pass, and beside it what is known of its ceiling, its caller, its graph and its energy."""
        words: dict[str | None, list[str]] = {}
        for one in quantities:
            if one.metric == "share":
                words.setdefault(one.measured_pass, []).append(roofline.words(one))
            if one.metric in ("eager", "replay", "energy_per_token"):
                what = one.metric.partition("_")[0]
                words.setdefault(one.measured_pass, []).append(f"{what} {one.text}")
        times = [one for one in quantities if one.metric == "latency"]
        beside = {which: f" ({', '.join(of_pass)})" for which, of_pass in words.items()}
        return ", ".join(f"{one.measured_pass} {one.text}{beside.get(one.measured_pass, '')}" for one in times)


def _energy(used: Mapping[str, Any], tokens: int, of_pass: Mapping[str, Any]) -> Iterator[Metric]:
    per_token = used["joules"] / used["calls"] / tokens
    yield Metric("energy_per_token", per_token, "J/token", shown=("µJ/token", 1e6), **of_pass)
    yield Metric("power", used["joules"] / used["seconds"], "W", shown=("W", 1.0), **of_pass)
    if used["idle_w"] is not None:
        yield Metric("idle_power", used["idle_w"], "W", shown=("W", 1.0), **of_pass)
