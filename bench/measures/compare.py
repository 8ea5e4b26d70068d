"""Several mechanisms in interleaved rounds of one process, so that drift of the machine affects all equally.

They may also differ in implementation and dtype: each is measured with the same inputs in its own dtype, and checked
with that dtype's tolerances.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.common.schema import PASSES, setting
from bench.measures import Sized, register
from bench.measures.context import CellContext
from bench.measures.rounds import Comparing, compared, time_in_rounds
from bench.measures.timing import Pass
from bench.records.metrics import Metric, median, speedups


@register
@dataclass
class Compare(Sized, Comparing):
    """Interleaved rounds of all mechanisms of the sweep in one process; the first one is the baseline."""

    name: ClassVar[str] = "compare"

    measured_pass: str = setting("forward", "pass that is timed", choices=PASSES, condition=False)

    def measure(self, context: CellContext) -> dict[str, Any]:
        """One sample of each mechanism per round, in alternating order: `{"pass": name}` and `compared`'s result."""
        attentions, dtypes = context.attentions(), {c["label"]: c["dtype"] for c in context.configs()}
        inputs = {dtype: context.inputs(dtype=dtype) for dtype in dict.fromkeys(dtypes.values())}
        by_dtype = {dtype: context.correctness_check(of_dtype) for dtype, of_dtype in inputs.items()}
        checks = {label: by_dtype[dtype] for label, dtype in dtypes.items()}
        passes = {}
        for label, attention in attentions.items():
            checks[label].check_before(label, attention, [self.measured_pass])
            passes[label] = Pass(self.measured_pass, attention, inputs[dtypes[label]], checks[label].gradient)
        timings = time_in_rounds(context, checks, passes, self.min_sample_ms)
        for check in by_dtype.values():
            check.finish()
        return {"pass": self.measured_pass, **compared(timings)}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`latency` of each mechanism in ns, and each candidate's `speedup` over the baseline."""
        samples, name = measurements["samples"], measurements["pass"]
        for label in measurements["labels"]:
            which = {"measured_pass": name, "attention": label}
            yield median("latency", samples[label], "ns", name=f"latency_ms.{label}", shown=("ms", 1e-6), **which)
        yield from speedups(samples, measurements["labels"], measured_pass=name)
