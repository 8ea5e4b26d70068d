"""How far a mechanism is from what its device could do: its share of the roofline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext, num_features
from bench.measures.flops import analytic
from bench.measures.peaks import Peaks, compulsory_bytes
from bench.measures.rounds import time_in_rounds
from bench.measures.timing import Pass
from bench.records import roofline
from bench.records.metrics import Metric, median

# From here on people say TFLOP/s.
MANY = 1e13


@register
@dataclass
class Roofline(Benchmark):
    """The forward pass and the peaks of the device in interleaved rounds of one process.

    The forward pass only: `Attention.flops` counts no other, and what a backward pass runs depends on how much it
    computes again.
    """

    name: ClassVar[str] = "roofline"
    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"

    # d: columns, rows, projection dimension or features of the mechanism; None: its own
    num_features: int | None = setting(None, minimum=1, condition=False)
    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # calls are repeated until a sample lasts so long

    def measure(self, context: CellContext) -> dict[str, Any]:
        """One sample of the forward pass and one of each peak per round.

        Returns:
            `{"unit": "ns", "samples": [ns per call], "calls_per_sample", "warmup_calls", "method", "cache", "ceilings":
            {name: {"work": FLOPs, bytes or exponentials of a call, "samples": [ns per call], "calls_per_sample"}},
            "flops": analytic forward FLOPs, "bytes": compulsory, "features": d or None}`.
        """
        label, attention, inputs = context.config["label"], context.attention(), context.inputs()
        check = context.correctness_check(inputs)
        check.check_before(label, attention)
        peaks = Peaks(context.dtype, self.min_sample_ms, every=True)
        passes = {label: Pass("forward", attention, inputs)}
        timing = time_in_rounds(context, {label: check}, passes, self.min_sample_ms, peaks)[label]
        check.finish()
        batch_size, _, seq_len, _ = inputs[0].shape
        return timing | {
            "flops": analytic(attention, batch_size, seq_len),
            "bytes": compulsory_bytes(attention, inputs),
            "features": num_features(attention),
        }

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
        """The share, what was reached of which ceiling, and which one it is; or why there is no share."""
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
