"""Latency of forward, backward and forward+backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.measures import Benchmark, register
from bench.records import roofline
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
        """Raw samples per pass, and those of the device's ceilings beside the forward pass.

        Where memory is limited there are no ceilings: the mechanism has it alone.

        Returns:
            `{"passes": {name: {"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method",
            "cache"}}, "tokens": batch_size * seq_len, "flops": analytic forward FLOPs, "bytes": compulsory ones}`; a
            sample is nanoseconds per call. The forward pass has `"ceilings"` too, as `bench=roofline`.
        """
        from bench.measures.ceilings import Ceilings, compulsory_bytes
        from bench.measures.replay import launches
        from bench.measures.rounds import time_in_rounds
        from bench.measures.timing import Pass

        label, attention, inputs = workbench.config["label"], workbench.attention(), workbench.inputs()
        gate = workbench.gate(inputs)
        gate.admit(label, attention, self.passes)
        passes = {}
        for name in self.passes:
            measured = {label: Pass(name, attention, inputs, gate.gradient)}
            beside = Ceilings(workbench.dtype) if name == "forward" and self.memory_limit is None else None
            passes[name] = time_in_rounds(workbench, {label: gate}, measured, self.min_sample_ms, beside)[label]
        gate.close()
        for name, timing in passes.items():
            timing |= launches(workbench.device, Pass(name, attention, inputs, gate.gradient), timing["samples"])
        batch_size, _, seq_len, _ = inputs[0].shape
        return {
            "passes": passes,
            "tokens": batch_size * seq_len,
            "flops": attention.flops(batch_size, seq_len),
            "bytes": compulsory_bytes(attention, inputs),
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Quantity]:
        """Of each pass `latency` in ns, `latency_per_token` in µs/token and `spread`.

        Of the forward one also `flops`, `throughput`, and its `share` of the ceiling.
        """
        for name, timed in measurements["passes"].items():
            samples, of_pass = timed["samples"], {"measured_pass": name}
            per_token = [sample / measurements["tokens"] / 1e3 for sample in samples]
            latency = median("latency", samples, "ns", name=f"latency_ms.{name}", shown=("ms", 1e-6), **of_pass)
            yield latency
            tracked = f"latency_us_per_token.{name}"
            yield median("latency_per_token", per_token, "µs/token", name=tracked, shown=None, **of_pass)
            yield spread(samples, name=f"spread_pct.{name}", **of_pass)
            if name == "forward":
                yield from roofline.throughput(measurements["flops"], latency)
                if ceilings := timed.get("ceilings"):  # older records have none
                    yield roofline.share(samples, ceilings, measurements["flops"], measurements["bytes"])

    @classmethod
    def headline(cls, quantities: Sequence[Quantity]) -> str:
        """The median of each pass, and of the forward one its share of the ceiling where it is known."""
        shares = {
            one.measured_pass: f" ({one.value:.3g} % of the ceiling)" for one in quantities if one.metric == "share"
        }
        times = (one for one in quantities if one.metric == "latency")
        return ", ".join(f"{one.measured_pass} {one.text}{shares.get(one.measured_pass, '')}" for one in times)
