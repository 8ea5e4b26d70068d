"""One step of training a whole model: its parts' times, apart and together, and its peak memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.measures import Benchmark, register
from bench.measures.peak import METHODS, MIB, peak_bytes
from bench.records.quantities import Quantity, median
from bench.schema import setting

if TYPE_CHECKING:
    from bench.measures.workbench import Workbench
    from bench.training.loop import Trainer

PARTS = ("forward", "backward", "optimizer", "step")


@register
@dataclass
class TrainStep(Benchmark):
    """Steps per second and peak memory of a whole model, and what forward, backward and optimiser take of it."""

    name: ClassVar[str] = "train_step"
    trains: ClassVar[bool] = True

    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # calls are repeated until a sample lasts so long

    def measure(self, workbench: Workbench) -> dict[str, Any]:
        """A sample of each part in every round.

        Returns:
            `{"parts": {name: {"unit": "ns", "samples": [...], "calls_per_sample"}}, "tokens": of a step, "parameters",
            "peak_bytes": of a step, over parameters and the optimiser's state, "parameter_bytes",
            "optimizer_bytes", "method", "cache"}`; a sample is nanoseconds per call.
        """
        import torch

        from bench.measures.timing import WARMUP_CALLS, Stopwatch
        from bench.measures.train import make_trainer

        trainer = make_trainer(workbench)
        parts = {name: Part(name, trainer) for name in PARTS}
        stopwatch = Stopwatch(workbench.device)
        workbench.enter("warmup")
        with torch.random.fork_rng():
            fastest = {name: min(stopwatch.time(part) for _ in range(WARMUP_CALLS)) for name, part in parts.items()}
            calls = {name: stopwatch.calibrate(part, self.min_sample_ms, fastest[name]) for name, part in parts.items()}
            workbench.enter("measure")
            samples: dict[str, list[float]] = {name: [] for name in parts}
            for done in range(workbench.config["repeats"]):
                for name in list(parts)[:: -1 if done % 2 else 1]:
                    samples[name].append(stopwatch.sample(parts[name], calls[name]))
                workbench.progress(done + 1, workbench.config["repeats"])
            trainer.optimizer.zero_grad(set_to_none=True)
            peak, _ = peak_bytes(workbench.device, lambda: parts["step"].run(None))
        state = (x for of in trainer.optimizer.state.values() for x in of.values() if isinstance(x, torch.Tensor))
        return {
            "parts": {
                name: {"unit": "ns", "samples": samples[name], "calls_per_sample": calls[name]} for name in parts
            },
            "tokens": trainer.batch_size * workbench.config["seq_len"],
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "parameter_bytes": sum(p.nbytes for p in trainer.model.parameters()),
            "optimizer_bytes": sum(x.nbytes for x in state),
            "peak_bytes": peak,
            "memory_method": METHODS[workbench.device.type],
            **stopwatch.method,
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Quantity]:
        """`step_time` in ns, `steps_per_second`, `tokens_per_second`, each part's `forward_time`...; `peak_memory`."""
        for name, part in measurements["parts"].items():
            yield median(f"{name}_time", part["samples"], "ns", name=f"{name}_ms", shown=("ms", 1e-6))
        step = median("step_time", measurements["parts"]["step"]["samples"], "ns")
        for metric, amount in (("steps_per_second", 1), ("tokens_per_second", measurements["tokens"])):
            low, middle, high = (amount * 1e9 / value for value in (step.high, step.value, step.low))
            yield Quantity(metric, middle, "1/s", low, high, "95%", shown=("/s", 1.0))
        yield Quantity("peak_memory", measurements["peak_bytes"], "bytes", name="peak_mib", shown=MIB)

    @classmethod
    def headline(cls, quantities: Sequence[Quantity]) -> str:
        """Speed and memory."""
        text = {one.metric: one.text for one in quantities}
        return f"{text['steps_per_second']}, {text['tokens_per_second']} tokens, peak {text['peak_memory']}"


class Part:
    """A part of a step, on a batch of the task."""

    def __init__(self, name: str, trainer: Trainer) -> None:
        self.name, self.trainer = name, trainer
        batch = trainer.task.batch("train", range(trainer.batch_size))
        self.tokens, self.targets = batch.tokens.to(trainer.device), batch.targets.to(trainer.device)

    def prepare(self) -> Any:
        """The parts before it, which are not timed."""
        self.trainer.model.train()
        self.trainer.optimizer.zero_grad(set_to_none=True)
        if self.name in ("forward", "step"):
            return None
        loss = self._loss()
        if self.name == "optimizer":
            loss.backward()
        return loss

    def run(self, prepared: Any) -> Any:
        """The timed call."""
        loss = self._loss() if prepared is None else prepared
        if self.name in ("backward", "step"):
            loss.backward()
        if self.name in ("optimizer", "step"):
            self.trainer.update(0.0)
        return loss.detach()

    def _loss(self) -> Any:
        return self.trainer.loss(self.tokens, self.targets)
