"""One step of training a whole model: its parts' times, apart and together, and its peak memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.measures import Benchmark, register
from bench.measures.peak import METHODS, MIB
from bench.records.metrics import Metric, median, rate
from bench.schema import setting

if TYPE_CHECKING:
    from bench.measures.workbench import Workbench


@register
@dataclass
class TrainStep(Benchmark):
    """Steps per second and peak memory of a whole model, and what forward, backward and optimiser take of it."""

    name: ClassVar[str] = "train_step"
    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"
    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True

    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # calls are repeated until a sample lasts so long

    def measure(self, workbench: Workbench) -> dict[str, Any]:
        """A sample of each part in every round.

        Returns:
            `{"parts": {name: {"unit": "ns", "samples": [...], "calls_per_sample", ...}}, "pieces": that a batch is
            accumulated from, "tokens": of a step, "parameters", "peak_bytes": of a step, gradients included, over the
            model and the optimiser's state, "model_bytes", "optimizer_bytes", "memory_method"}`; a sample is
            nanoseconds per call, of one piece where it is forward's or backward's.
        """
        import torch

        from bench.measures.rounds import time_in_rounds
        from bench.measures.step import PARTS, Part, model_bytes, optimizer_bytes
        from bench.measures.train import make_trainer

        trainer = make_trainer(workbench)
        parts = {name: Part(name, trainer) for name in PARTS}
        with torch.random.fork_rng():  # of dropout
            timings = time_in_rounds(workbench, {}, parts, self.min_sample_ms)
            peak = parts["step"].peak_bytes()
        return {
            "parts": timings,
            "pieces": trainer.settings.accumulate,
            "tokens": trainer.batch_size * workbench.config["seq_len"],
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "model_bytes": model_bytes(trainer),
            "optimizer_bytes": optimizer_bytes(trainer),
            "peak_bytes": peak,
            "memory_method": METHODS[workbench.device.type],
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Of the whole batch `forward_time`, ..., `step_time` in ns, `steps_per_second`, `tokens_per_second`; peak."""
        for part, timing in measurements["parts"].items():
            pieces = measurements["pieces"] if part in ("forward", "backward") else 1
            samples = [pieces * sample for sample in timing["samples"]]
            time = median(f"{part}_time", samples, "ns", name=f"{part}_ms", shown=("ms", 1e-6))
            yield time
            if part == "step":
                yield rate("steps_per_second", 1, time)
                yield rate("tokens_per_second", measurements["tokens"], time)
        yield Metric("peak_memory", measurements["peak_bytes"], "bytes", name="peak_mib", shown=MIB)

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """Speed and memory."""
        text = {one.metric: one.text for one in quantities}
        return f"{text['steps_per_second']}, {text['tokens_per_second']} tokens, peak {text['peak_memory']}"
