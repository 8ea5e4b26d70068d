"""Latency of forward, backward and forward+backward; and how close the forward pass is to the device's peaks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attention_zoo import Attention
from bench.common.schema import PASSES, setting
from bench.inputs.base import NAMES, Inputs
from bench.measures import Sized, register
from bench.measures.context import CellContext, held_bytes, num_features
from bench.measures.device_state import energy
from bench.measures.flops import analytic
from bench.measures.peaks import Peaks
from bench.measures.rounds import TimedInRounds, in_three_ways, time_in_rounds
from bench.measures.timing import Pass
from bench.records import roofline
from bench.records.metrics import Metric, median, spread

# From this rate on, headlines use TFLOP/s.
MANY = 1e13


@register
@dataclass
class Latency(TimedInRounds):
    """Time of one call: forward, backward and both. Each pass is a cell, since one may run out of memory."""

    name: ClassVar[str] = "latency"
    cell_per: ClassVar[str | None] = "passes"

    # Also measured: the device's peaks in the same rounds as the forward pass; on a GPU, the times that an eager caller
    # waits and of a CUDA graph's replay, and the energy of the board.
    beside: list[str] | None = setting(
        None,
        "also measure: the device's peaks (ceilings), other ways to time, energy",
        choices=("ceilings", "ways", "energy"),
        condition=False,
    )
    passes: list[str] = setting(list(PASSES), "passes to time; each is a cell", choices=PASSES, condition=False)

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Raw samples per pass.

        Returns:
            `{"passes": {name: as `time_in_rounds`}, "tokens": batch_size * seq_len}`. With `ceilings` in `beside` also
            `"flops"` and `"bytes"` of the forward pass, and its `"ceilings"`, as in `bench=roofline`. A pass may also
            have the results of `in_three_ways`, and `"energy"`, as from `bench.measures.device_state.energy`.
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
        work = _work(attention, inputs) if "ceilings" in beside else {}
        return {"passes": passes, "tokens": batch_size * seq_len, **work}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """For each pass `latency` in ns, `latency_per_token` in µs/token and `spread`.

        If asked for in `beside`: for the forward pass `flops`, `throughput`, and its `share` of the ceiling; on a GPU,
        for each pass, `eager` (the time that a caller waits) and `replay` (of a CUDA graph) in ns, `energy_per_token`
        in J/token, and the board's `power` and `idle_power` in W.
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
                if ceilings := timed.get("ceilings"):  # older records have FLOPs without ceilings
                    yield roofline.share(samples, ceilings, measurements["flops"], measurements["bytes"])

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The median of each pass, with its share of the ceiling, eager time, replay and energy if they are known."""
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


@register
@dataclass
class Roofline(Sized, TimedInRounds):
    """The forward pass and the peaks of the device in interleaved rounds of one process.

    Only the forward pass: `Attention.flops` counts no other, and a backward pass may recompute much.
    """

    name: ClassVar[str] = "roofline"

    def measure(self, context: CellContext) -> dict[str, Any]:
        """One sample of the forward pass and of each peak per round.

        Returns:
            As `time_in_rounds` with peaks, and `{"flops": analytic forward FLOPs, "bytes": compulsory, "features": d or
            None}`.
        """
        label, attention, inputs = context.config["label"], context.attention(), context.inputs()
        check = context.correctness_check(inputs)
        check.check_before(label, attention)
        peaks = Peaks(context.dtype, self.min_sample_ms, every=True)
        passes = {label: Pass("forward", attention, inputs)}
        timing = time_in_rounds(context, {label: check}, passes, self.min_sample_ms, peaks)[label]
        check.finish()
        return timing | _work(attention, inputs) | {"features": num_features(attention)}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`latency`, `flops`, `throughput`, `bytes`, `intensity`, `share`, and each ceiling by its name."""
        samples, flops, moved = (measurements[key] for key in ("samples", "flops", "bytes"))
        of_pass: dict[str, Any] = {"measured_pass": "forward"}
        latency = median("latency", samples, "ns", name="latency_ms.forward", shown=("ms", 1e-6), **of_pass)
        yield latency
        yield from roofline.throughput(flops, latency)
        yield Metric("bytes", moved, "bytes", shown=None, **of_pass)
        yield Metric("intensity", flops / moved, "FLOP/byte", shown=("FLOP/byte", 1.0), **of_pass)
        yield roofline.share(samples, measurements["ceilings"], flops, moved)
        yield from roofline.rates(measurements["ceilings"])

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The share of the ceiling, the rate that was reached, and which ceiling limits; or why there is no share."""
        values = {one.metric: one.value for one in quantities}
        (share,) = (one for one in quantities if one.metric == "share")
        if share.verdict in roofline.BEYOND:
            return roofline.words(share)
        reached = 1e12 * values["throughput"]
        if share.verdict == "memory":
            of = f"{reached / values['intensity'] / 1e9:.3g} of {values['copy'] / 1e9:.3g} GB/s"
        else:
            scale, unit = (1e12, "TFLOP/s") if values["gemm"] >= MANY else (1e9, "GFLOP/s")
            of = f"{reached / scale:.3g} of {values['gemm'] / scale:.3g} {unit}"
        return f"{roofline.words(share)} ({of}, {share.verdict})"


def _work(attention: Attention, inputs: Inputs) -> dict[str, int]:
    """FLOPs of a forward pass, and bytes that it must move: inputs that it reads, parameters, buffers, the output."""
    query = inputs[0]
    read = sum(x.nbytes for name, x in zip(NAMES, inputs, strict=True) if name in attention.info.reads)
    moved = read + query.nbytes + held_bytes(attention)
    return {"flops": analytic(attention, len(query), query.shape[2]), "bytes": moved}


def _energy(used: Mapping[str, Any], tokens: int, of_pass: Mapping[str, Any]) -> Iterator[Metric]:
    per_token = used["joules"] / used["calls"] / tokens
    yield Metric("energy_per_token", per_token, "J/token", shown=("µJ/token", 1e6), **of_pass)
    yield Metric("power", used["joules"] / used["seconds"], "W", shown=("W", 1.0), **of_pass)
    if used["idle_w"] is not None:
        yield Metric("idle_power", used["idle_w"], "W", shown=("W", 1.0), **of_pass)
