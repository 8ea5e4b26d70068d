"""Training steps of whole models: time and memory of a step, comparisons in rounds, and the largest batch that fits.

Steps and their parts are timed as a user waits for them, by the clock, on a GPU too: a step waits for the norm of its
gradients, so that no queue could hide its launches, and those of a small model take longer than its kernels.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext, held_bytes
from bench.measures.memory import METHODS, MIB, fits_in_memory, largest_fitting, peak_bytes
from bench.measures.rounds import Comparing, TimedInRounds, compared, time_in_rounds
from bench.measures.timing import Timed
from bench.measures.train import make_trainer
from bench.records.metrics import Metric, median, rate, speedups
from bench.training.evaluation import pieces
from bench.training.loop import Trainer, training_indices

PARTS = ("forward", "backward", "optimizer", "step")
GIB = 2**30


@register
@dataclass
class TrainStep(TimedInRounds):
    """Steps per second and peak memory of a whole model, and the times of forward, backward and optimizer."""

    name: ClassVar[str] = "train_step"
    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True
    headline_format: ClassVar[str] = "{steps_per_second}, {tokens_per_second} tokens, peak {peak_memory}"

    def measure(self, context: CellContext) -> dict[str, Any]:
        """One sample of each part per round.

        Returns:
            `{"parts": {name: {"unit": "ns", "samples": [...], "calls_per_sample", ...}}, "pieces": per accumulated
            batch, "tokens": per step, "parameters", "peak_bytes": of a step with its gradients, over the model and the
            optimizer's state, "model_bytes", "optimizer_bytes", "memory_method"}`; a sample is nanoseconds per call,
            for forward and backward of one piece.
        """
        trainer = make_trainer(context)
        parts = {name: Part(name, trainer) for name in PARTS}
        with torch.random.fork_rng():  # for dropout
            timings = time_in_rounds(context, {}, parts, self.min_sample_ms, eager=True)
            peak = parts["step"].peak_bytes()
        counts = {"pieces": trainer.settings.accumulate, "tokens": trainer.tokens}
        counts["parameters"] = sum(p.numel() for p in trainer.model.parameters())
        held = {"model_bytes": held_bytes(trainer.model), "optimizer_bytes": optimizer_bytes(trainer)}
        return {"parts": timings, **counts, **held, "peak_bytes": peak, "memory_method": METHODS[context.device.type]}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Per batch: `forward_time`, ..., `step_time` in ns, `steps_per_second`, `tokens_per_second`; `peak_memory`."""
        for part, timing in measurements["parts"].items():
            pieces = measurements["pieces"] if part in ("forward", "backward") else 1
            samples = [pieces * sample for sample in timing["samples"]]
            time = median(f"{part}_time", samples, "ns", name=f"{part}_ms", shown=("ms", 1e-6))
            yield time
            if part == "step":
                yield rate("steps_per_second", 1, time)
                yield rate("tokens_per_second", measurements["tokens"], time)
        yield Metric("peak_memory", measurements["peak_bytes"], "bytes", name="peak_mib", shown=MIB)


@register
@dataclass
class CompareTrainStep(Comparing):
    """Interleaved rounds of whole training steps with every mechanism of the sweep; the first one is the baseline."""

    name: ClassVar[str] = "compare_train_step"
    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True

    def measure(self, context: CellContext) -> dict[str, Any]:
        """One sample of every mechanism's step per round, all on the same batch: the result of `compared`."""
        contexts = {config["label"]: CellContext(config, context.cache_dir) for config in context.configs()}
        steps = {label: Part("step", make_trainer(of_label)) for label, of_label in contexts.items()}
        with torch.random.fork_rng():  # for dropout
            return compared(time_in_rounds(context, {}, steps, self.min_sample_ms, eager=True))

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`step_time` of each mechanism in ns, `steps_per_second`, and each candidate's `speedup`."""
        for label in measurements["labels"]:
            samples = measurements["samples"][label]
            time = median("step_time", samples, "ns", name=f"step_ms.{label}", shown=("ms", 1e-6), attention=label)
            yield time
            yield rate("steps_per_second", 1, time, name=f"steps_per_second.{label}", attention=label)
        yield from speedups(measurements["samples"], measurements["labels"])


@register
@dataclass
class LargestBatch(Benchmark):
    """The largest batch whose forward, backward and optimizer step fit into memory, by doubling and bisection.

    A batch fits if a step ran, and its peak memory is within the limit: parameters, buffers, the optimizer's state, and
    what the step allocated on top. The limit is `bench.memory_limit`; by default a GPU's whole memory, or on a CPU 80 %
    of what is free when the cell starts. On a CPU the process may use more than the limit, so that the search never
    exhausts the memory. With `training.accumulate`, a batch consists of that many equal pieces.
    """

    name: ClassVar[str] = "largest_batch"
    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True
    judges_memory: ClassVar[bool] = True
    headline_format: ClassVar[str] = "largest batch {largest_batch}, accumulate={accumulation} for the cell's own"

    largest_limit: int = setting(65536, "largest batch size that the search tries", minimum=1, condition=False)

    def measure(self, context: CellContext) -> dict[str, Any]:
        """A step of each batch size that is tried.

        Returns:
            `{"largest": sequences, "tried": {sequences: peak bytes, None where memory ran out}, "limit_bytes",
            "pieces": per accumulated batch, "wanted": the cell's batch_size, "accumulation": the smallest number of
            equal pieces of it that each fit, "method"}`.

        Raises:
            MemoryError: not even one sequence (per piece) fits.
        """
        trainer = make_trainer(context)
        limit = context.memory_limit if self.memory_limit is None else int(self.memory_limit * GIB)
        parts, wanted = trainer.settings.accumulate, trainer.batch_size
        tried: dict[int, int | None] = {}

        def fits(piece: int) -> bool:
            total = tried[piece * parts] = step_bytes(trainer, piece * parts)
            context.progress(len(tried), len(tried) + 1)
            return total is not None and (limit is None or total <= limit)

        context.enter("measure")
        with torch.random.fork_rng():  # for dropout
            first = Part("step", trainer, parts)
            first.run(first.prepare())  # creates the optimizer's state
            most = largest_fitting(fits, 1, max(1, self.largest_limit // parts))
        if not most:
            raise MemoryError(f"a step of {parts} sequences takes {tried[parts]} bytes, the limit is {limit}")
        sizes = {"largest": most * parts, "tried": {str(size): total for size, total in sorted(tried.items())}}
        accumulation = next(n for n in range(1, wanted + 1) if wanted % n == 0 and wanted // n <= most)
        asked = {"limit_bytes": limit, "pieces": parts, "wanted": wanted, "accumulation": accumulation}
        return sizes | asked | {"method": METHODS[context.device.type]}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`largest_batch`; `accumulation`, the number of equal pieces for the cell's own batch; `limit`."""
        yield Metric("largest_batch", measurements["largest"])
        yield Metric("accumulation", measurements["accumulation"])
        if measurements["limit_bytes"] is not None:
            yield Metric("limit", measurements["limit_bytes"], "bytes", shown=None)


class Part(Timed):
    """A part of a training step, on the first batch of the task; `step` is the whole step.

    With `training.accumulate` a step reads its batch in pieces; the forward and backward parts take one piece.
    `batch_size` counts the examples of all pieces; None: the trainer's.
    """

    def __init__(self, name: str, trainer: Trainer, batch_size: int | None = None) -> None:
        self.name, self.trainer = name, trainer
        size = trainer.task.size("train")
        indices = training_indices(trainer.seed, 0, batch_size or trainer.batch_size, size)
        batch = trainer.task.batch("train", indices)
        self.pieces = pieces(batch, trainer.device, trainer.settings.accumulate)

    def prepare(self) -> Tensor | None:
        """Do what precedes the part in a step, untimed."""
        model = self.trainer.model.train()
        # The optimizer reuses old gradients, since a sample may have many short calls.
        if self.name == "optimizer" and any(parameter.grad is not None for parameter in model.parameters()):
            return None
        self.trainer.optimizer.zero_grad(set_to_none=True)
        if self.name == "optimizer":
            self._gradients()
        return self.trainer.loss(*self.pieces[0]) if self.name == "backward" else None

    def run(self, prepared: Tensor | None) -> None:
        """The timed call."""
        if self.name == "forward":
            self.trainer.loss(*self.pieces[0])
        if prepared is not None:
            prepared.backward()
        if self.name == "step":
            self._gradients()
        if self.name in ("optimizer", "step"):
            self.trainer.update(0.0)

    def _gradients(self) -> None:
        for piece in self.pieces:
            (self.trainer.loss(*piece) / len(self.pieces)).backward()

    def peak_bytes(self) -> int:
        """The largest number of bytes that the part allocated at once, gradients included."""

        def call() -> None:
            self.run(self.prepare())
            self.trainer.optimizer.zero_grad(set_to_none=True)

        self.trainer.optimizer.zero_grad(set_to_none=True)
        return peak_bytes(self.trainer.device, call)[0]


def optimizer_bytes(trainer: Trainer) -> int:
    """The size of the optimizer's state; 0 before its first step."""
    state = (x for of_parameter in trainer.optimizer.state.values() for x in of_parameter.values())
    return sum(x.nbytes for x in state if hasattr(x, "nbytes"))


def step_bytes(trainer: Trainer, batch_size: int) -> int | None:
    """Peak memory of a step, including the model and the optimizer's state; None if memory ran out."""
    peaks: list[int] = []
    if not fits_in_memory(trainer.device, lambda: peaks.append(Part("step", trainer, batch_size).peak_bytes())):
        trainer.optimizer.zero_grad(set_to_none=True)
        return None
    return peaks[0] + held_bytes(trainer.model) + optimizer_bytes(trainer)
