"""Latency of forward, backward and forward+backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.measures import Benchmark, register
from bench.records.quantities import Quantity, median, spread
from bench.schema import PASSES, setting

if TYPE_CHECKING:
    from bench.measures.workbench import Workbench


@register
@dataclass
class Latency(Benchmark):
    """Time of one call: forward, backward and both. Each pass is a cell: one may run out of memory, another not."""

    name: ClassVar[str] = "latency"
    cell_per: ClassVar[str | None] = "passes"

    passes: list[str] = setting(list(PASSES), choices=PASSES, condition=False)
    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # calls are repeated until a sample lasts so long

    def measure(self, workbench: Workbench) -> dict[str, Any]:
        """Raw samples per pass.

        Returns:
            `{"passes": {name: {"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method",
            "cache"}}, "tokens": batch_size * seq_len, "flops": analytic forward FLOPs}`; a sample is nanoseconds per
            call.
        """
        from bench.measures.replay import launches
        from bench.measures.rounds import time_in_rounds
        from bench.measures.timing import Pass

        label, attention, inputs = workbench.config["label"], workbench.attention(), workbench.inputs()
        gate = workbench.gate(inputs)
        gate.admit(label, attention, self.passes)
        passes = {}
        for name in self.passes:
            measured = {label: Pass(name, attention, inputs, gate.gradient)}
            passes[name] = time_in_rounds(workbench, gate, measured, self.min_sample_ms)[label]
        gate.close()
        for name, timing in passes.items():
            timing |= launches(workbench.device, Pass(name, attention, inputs, gate.gradient), timing["samples"])
        batch_size, _, seq_len, _ = inputs[0].shape
        return {"passes": passes, "tokens": batch_size * seq_len, "flops": attention.flops(batch_size, seq_len)}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Quantity]:
        """Of each pass `latency` in ns, `latency_per_token` in µs/token and `spread`; `flops` and `throughput`."""
        for name, timed in measurements["passes"].items():
            samples, of_pass = timed["samples"], {"measured_pass": name}
            per_token = [sample / measurements["tokens"] / 1e3 for sample in samples]
            latency = median("latency", samples, "ns", name=f"latency_ms.{name}", shown=("ms", 1e-6), **of_pass)
            yield latency
            tracked = f"latency_us_per_token.{name}"
            yield median("latency_per_token", per_token, "µs/token", name=tracked, shown=None, **of_pass)
            yield spread(samples, name=f"spread_pct.{name}", **of_pass)
            if name == "forward":
                flops = measurements["flops"]
                yield Quantity("flops", flops, "FLOP", measured_pass=name, shown=None)
                rate = flops / latency.value / 1e3
                tracked = "tflop_per_s.forward"
                yield Quantity("throughput", rate, "TFLOP/s", measured_pass=name, name=tracked, shown=None)

    @classmethod
    def headline(cls, quantities: Sequence[Quantity]) -> str:
        """The median of each pass."""
        return ", ".join(f"{one.measured_pass} {one.text}" for one in quantities if one.metric == "latency")
