"""Peak memory of one call, and the largest batch or length that fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.measures import Benchmark, register
from bench.measures.peak import METHODS, MIB, peak_bytes
from bench.measures.search import largest, runs
from bench.records.metrics import Metric
from bench.schema import setting

if TYPE_CHECKING:
    from torch import Tensor

    from bench.measures.workbench import Workbench

PASSES = ("forward", "forward_backward")


@register
@dataclass
class Memory(Benchmark):
    """Peak bytes over the baseline, and the largest batch or length that fits. Each pass is a cell."""

    name: ClassVar[str] = "memory"
    cell_per: ClassVar[str | None] = "passes"

    passes: list[str] = setting(list(PASSES), choices=PASSES, condition=False)
    largest: str | None = setting(None, choices=("batch_size", "seq_len"), condition=False)  # also bisect for it
    largest_limit: int = setting(65536, minimum=1, condition=False)  # where the bisection stops looking

    def measure(self, workbench: Workbench) -> dict[str, Any]:
        """Peak bytes over what was allocated before the call: inputs and parameters are the baseline.

        On a CPU the peak is the running sum of the allocator's own events, on a GPU the allocator's high-water mark.

        Returns:
            `{"passes": {name: {"peak_bytes", "baseline_bytes"}}, "method", "largest": None or {"axis", "value",
            "limit_bytes", "tried": {value: fits}}}`.
        """
        from bench.measures.timing import Pass

        attention, inputs = workbench.attention(), workbench.inputs()
        gate, label = workbench.gate(inputs), workbench.config["label"]
        gate.admit(label, attention, self.passes)
        baseline = sum(x.nbytes for x in (*inputs, *attention.parameters(), *attention.buffers()))
        passes = {}
        workbench.enter("measure")
        for done, name in enumerate(self.passes):
            call = Pass(name, attention, inputs, gate.gradient).run_unprepared
            bytes_over, result = peak_bytes(workbench.device, call)
            gate.first(label, name, result)
            del result
            passes[name] = {"peak_bytes": bytes_over, "baseline_bytes": baseline}
            workbench.progress(done + 1, len(self.passes))
        gate.close()
        del attention, inputs, gate
        return {
            "passes": passes,
            "method": METHODS[workbench.device.type],
            "largest": self.bisect(workbench) if self.largest else None,
        }

    def bisect(self, workbench: Workbench) -> dict[str, Any]:
        """As `bench.measures.search.largest`, from the cell's own size on."""
        assert self.largest is not None
        axis, name, limit = self.largest, self.passes[-1], self.largest_limit
        tried: dict[int, bool] = {}

        def fits(value: int) -> bool:
            tried[value] = _runs(workbench, axis, value, name)
            workbench.progress(len(tried), len(tried) + 1)
            return tried[value]

        return {
            "axis": axis,
            "value": largest(fits, workbench.config[axis], limit),
            "limit_bytes": workbench.memory_limit,
            "tried": {str(value): fit for value, fit in sorted(tried.items())},
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Of each pass its `peak_memory` in bytes; `largest_batch_size` or `largest_seq_len` of the last one."""
        for name, peak in measurements["passes"].items():
            yield Metric(
                "peak_memory", peak["peak_bytes"], "bytes", measured_pass=name, name=f"peak_mib.{name}", shown=MIB
            )
        if largest := measurements.get("largest"):
            axis = largest["axis"]
            yield Metric(f"largest_{axis}", largest["value"], axis, measured_pass=name, name=f"largest.{axis}")

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The peak of each pass, and what is the largest that fits."""
        return ", ".join(
            f"{one.measured_pass} {one.text}" if one.metric == "peak_memory" else f"largest {one.unit} {one.value}"
            for one in quantities
        )


def _runs(workbench: Workbench, axis: str, value: int, name: str) -> bool:
    from bench.measures.timing import Pass

    def call() -> None:
        attention, inputs = workbench.attention(**{axis: value}), _random_inputs(workbench, {axis: value})
        Pass(name, attention, inputs).run_unprepared()

    return runs(workbench.device, call)


def _random_inputs(workbench: Workbench, sizes: Mapping[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Drawn on the device in the cell's dtype: what fits there need not fit three times in the host's float32."""
    import torch

    shape = [{**workbench.config, **sizes}[key] for key in ("batch_size", "num_heads", "seq_len", "head_dim")]
    generator = torch.Generator(workbench.device).manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, device=workbench.device, dtype=workbench.dtype) for _ in range(3)
    )
    return query, key, value
