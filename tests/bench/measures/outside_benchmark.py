"""A benchmark from outside the package: with its YAML, all that there is of it."""

from dataclasses import dataclass
from typing import ClassVar

from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.records.metrics import Metric


@register
@dataclass
class OutputNorm(Benchmark):
    """The Frobenius norm of the output, to a power."""

    name: ClassVar[str] = "output_norm"
    power: int = setting(1, minimum=1)

    def measure(self, context):
        out = context.attention()(*context.inputs())
        return {"norm": out.norm().item() ** self.power, "curve": [float(k) for k in range(100)]}

    @classmethod
    def quantities(cls, measurements):
        yield Metric("output_norm", measurements["norm"], "1", shown=("kilo", 1e-3))
