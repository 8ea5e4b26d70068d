"""Training steps of several models in interleaved rounds of one process: drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.measures import Benchmark, register
from bench.records.metrics import Metric, median, rate, speedup, verdicts
from bench.schema import setting

if TYPE_CHECKING:
    from bench.measures.workbench import Workbench


@register
@dataclass
class CompareTrainStep(Benchmark):
    """Interleaved rounds of whole training steps with every mechanism of the sweep; the first is the baseline."""

    name: ClassVar[str] = "compare_train_step"
    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"
    compares: ClassVar[bool] = True
    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True

    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # calls are repeated until a sample lasts so long

    def measure(self, workbench: Workbench) -> dict[str, Any]:
        """One sample of every mechanism's step per round, in alternating order, all of the same batch.

        Returns:
            As `bench.measures.rounds.compared`.
        """
        import torch

        from bench.measures.rounds import compared, time_in_rounds
        from bench.measures.step import Part
        from bench.measures.train import make_trainer
        from bench.measures.workbench import Workbench

        benches = {config["label"]: Workbench(config, workbench.cache_dir) for config in workbench.configs()}
        steps = {label: Part("step", make_trainer(of_label)) for label, of_label in benches.items()}
        with torch.random.fork_rng():  # of dropout
            return compared(time_in_rounds(workbench, {}, steps, self.min_sample_ms))

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`step_time` of each mechanism in ns, `steps_per_second`, and of each candidate its `speedup`."""
        baseline, *candidates = measurements["labels"]
        for label in measurements["labels"]:
            samples = measurements["samples"][label]
            time = median("step_time", samples, "ns", name=f"step_ms.{label}", shown=("ms", 1e-6), attention=label)
            yield time
            yield rate("steps_per_second", 1, time, name=f"steps_per_second.{label}", attention=label)
        for label in candidates:
            yield speedup(baseline, label, measurements["samples"])

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The verdict on each candidate."""
        return verdicts(quantities)
