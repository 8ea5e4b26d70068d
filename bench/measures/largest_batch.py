"""The largest batch of which a step of training a whole model fits into memory (Skeinformer, Table 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext
from bench.measures.memory import METHODS, fits_in_memory, largest_fitting
from bench.measures.train import make_trainer
from bench.measures.train_step import Part, model_bytes, optimizer_bytes
from bench.records.metrics import Metric
from bench.training.loop import Trainer

GIB = 2**30


@register
@dataclass
class LargestBatch(Benchmark):
    """The most sequences of which forward, backward and optimiser fit into memory, by doubling and bisection.

    A batch fits where a step of it ran, and what it held at its peak is within the limit: parameters, buffers, the
    optimiser's state, and by the allocator's account what the step had over them. The limit is `bench.memory_limit`;
    without it a GPU's own memory, on a CPU four fifths of what is free when the cell starts. A CPU's process may take
    more than the limit, so nothing is exhausted to find it. With `training.accumulate` a batch is so many equal pieces.
    """

    name: ClassVar[str] = "largest_batch"
    trains: ClassVar[bool] = True
    one_process: ClassVar[bool] = True
    judges_memory: ClassVar[bool] = True
    headline_format: ClassVar[str] = "largest batch {largest_batch}, accumulate={accumulation} for the cell's own"

    largest_limit: int = setting(65536, minimum=1, condition=False)  # where the bisection stops looking

    def measure(self, context: CellContext) -> dict[str, Any]:
        """A step of each batch that is tried.

        Returns:
            `{"largest": sequences, "tried": {sequences: peak bytes, None where memory ran out}, "limit_bytes",
            "pieces": that a batch is accumulated from, "wanted": the cell's batch_size, "accumulation": the fewest
            equal pieces of it that fit one by one, "method"}`.

        Raises:
            MemoryError: not even one sequence (per piece) fits.
        """
        trainer = make_trainer(context)
        limit = context.memory_limit if self.memory_limit is None else int(self.memory_limit * GIB)
        pieces, wanted = trainer.settings.accumulate, trainer.batch_size
        tried: dict[int, int | None] = {}

        def fits(piece: int) -> bool:
            total = tried[piece * pieces] = step_bytes(trainer, piece * pieces)
            context.progress(len(tried), len(tried) + 1)
            return total is not None and (limit is None or total <= limit)

        context.enter("measure")
        with torch.random.fork_rng():  # of dropout
            first = Part("step", trainer, pieces)
            first.run(first.prepare())  # after which the optimiser has its state
            most = largest_fitting(fits, 1, max(1, self.largest_limit // pieces))
        if not most:
            raise MemoryError(f"a step of {pieces} sequences takes {tried[pieces]} bytes, the limit is {limit}")
        return {
            "largest": most * pieces,
            "tried": {str(batch_size): total for batch_size, total in sorted(tried.items())},
            "limit_bytes": limit,
            "pieces": pieces,
            "wanted": wanted,
            "accumulation": next(n for n in range(1, wanted + 1) if wanted % n == 0 and wanted // n <= most),
            "method": METHODS[context.device.type],
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`largest_batch`; `accumulation`, in how many equal pieces the cell's own batch has to be read; `limit`."""
        yield Metric("largest_batch", measurements["largest"])
        yield Metric("accumulation", measurements["accumulation"])
        if measurements["limit_bytes"] is not None:
            yield Metric("limit", measurements["limit_bytes"], "bytes", shown=None)


def step_bytes(trainer: Trainer, batch_size: int) -> int | None:
    """What a step held at its peak, the model and the optimiser's state included; None where memory ran out."""
    peaks: list[int] = []
    if not fits_in_memory(trainer.device, lambda: peaks.append(Part("step", trainer, batch_size).peak_bytes())):
        trainer.optimizer.zero_grad(set_to_none=True)
        return None
    return peaks[0] + model_bytes(trainer) + optimizer_bytes(trainer)
