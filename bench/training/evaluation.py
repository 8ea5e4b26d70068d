"""Evaluates a model on a split: losses by position, by unit of replication and by kind of answer."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.common.errors import NonFiniteError
from bench.tasks import IGNORED, Batch, Task
from bench.training.world import World

Autocast = Callable[[], Any]


def answers(
    model: Callable[..., Tensor], tokens: Tensor, targets: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run a model on the examples of a `Batch`; logits are computed only at the `k` positions with a target.

    Returns:
        Losses `(k,)`, in nats, at least float32 and differentiable, and whether each answer is correct, `(k,)` bool.
    """
    asked = targets != IGNORED
    logits = model(tokens, asked) if mask is None else model(tokens, asked, mask)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = F.cross_entropy(logits, targets[asked], reduction="none")
    return losses, logits.detach().argmax(-1) == targets[asked]


def pieces(
    batch: Batch, device: torch.device, parts: int = 1, rows: slice = slice(None)
) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Rows of a batch on a device, split into equal parts: tokens, targets and mask of each part."""
    tensors = ([None] * parts if x is None else x[rows].to(device).chunk(parts) for x in batch)
    return list(zip(*tensors, strict=True))


def linearised(sums: Sequence[float], counts: Sequence[int]) -> list[float | None]:
    """Each unit's contribution to the mean over all answers; their mean is that mean, whatever the units' sizes.

    This is the linear part of a ratio of two sums over units (Cochran 1977, Sampling Techniques, section 6.3), so an
    interval of the mean of these values, or of differences, is one of the ratio. A unit without answers is none: None.

    Args:
        sums: of losses, or number of correct answers, in each unit.
        counts: number of answers in each unit.
    """
    mean, per_unit = sum(sums) / sum(counts), sum(counts) / sum(count > 0 for count in counts)
    both = zip(sums, counts, strict=True)
    return [mean + (own - mean * count) / per_unit if count else None for own, count in both]


class Sums:
    """Sums and counts of losses, by an index that each answer has, such as its position."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.sums = torch.zeros(2, size, dtype=torch.float64, device=device)

    def add(self, losses: Tensor, numbers: Tensor) -> None:
        """Add losses `(k,)` with the index of each."""
        both = torch.stack([losses.double(), torch.ones_like(losses, dtype=torch.float64)])
        self.sums.index_add_(1, numbers.to(self.sums.device), both)

    def over(self, world: World) -> tuple[list[float], list[int]]:
        """The sums over all processes, and the counts."""
        sums, counts = world.total(self.sums).tolist()
        return sums, [round(count) for count in counts]


class Tally:
    """What a model answers to examples of a split, by position, unit of replication and kind of answer."""

    def __init__(self, task: Task, split: str, indices: Sequence[int], device: torch.device) -> None:
        self.task, self.split, self.indices = task, split, indices
        self.units, self.kinds = task.units(split, indices), task.kinds if split == "test" else ()
        length, units = task.batch(split, [0]).targets.shape[1], max(self.units) + 1
        sizes = length, units, units, len(self.kinds)
        self.right = torch.zeros((), dtype=torch.float64, device=device)
        self.by_position, self.by_unit, self.right_by_unit, self.by_kind = (Sums(size, device) for size in sizes)

    def add(self, numbers: Sequence[int], targets: Tensor, losses: Tensor, is_right: Tensor) -> None:
        """Add the `answers` to examples, whose numbers are places in `indices`."""
        rows, columns = (targets != IGNORED).nonzero(as_tuple=True)
        wrong = torch.zeros(len(numbers), device=targets.device).index_add_(0, rows, (~is_right).float())
        self.right += is_right.sum()
        self.by_position.add(losses, columns)
        units = torch.tensor([self.units[number] for number in numbers], device=targets.device)
        self.by_unit.add(losses, units[rows])
        self.right_by_unit.add((wrong == 0).float(), units)
        if self.kinds:
            kinds = np.stack([self.task.kinds_of(self.split, self.indices[number]) for number in numbers])
            self.by_kind.add(losses, torch.from_numpy(kinds).to(targets.device)[rows, columns])

    def results(self, world: World) -> dict[str, Any]:
        """What `evaluate` returns, of the examples of all processes."""
        total, asked = self.by_position.over(world)
        if not math.isfinite(sum(total)):
            raise NonFiniteError(f"the loss of the {self.split} split is {sum(total) / sum(asked):g}")
        whole = self.right_by_unit.over(world)
        results = {
            "examples": len(self.indices),
            "loss": sum(total) / sum(asked),
            "token_accuracy": float(world.total(self.right)) / sum(asked),
            "example_accuracy": sum(whole[0]) / len(self.indices),
            "loss_by_position": [loss / times if times else None for loss, times in zip(total, asked, strict=True)],
            "loss_by_unit": linearised(*self.by_unit.over(world)),
        }
        if self.task.classes is not None:
            results["accuracy_by_unit"] = linearised(*whole)
        if self.kinds:
            parts = zip(self.kinds, *self.by_kind.over(world), strict=True)
            results["parts"] = {kind: {"answers": answers, "loss": loss} for kind, loss, answers in parts}
        return results


@torch.no_grad()
def evaluate(
    model: nn.Module,
    task: Task,
    split: str,
    examples: int,
    batch_size: int,
    world: World,
    autocast: Autocast,
    report: Callable[[int, int], None],
) -> dict[str, Any]:
    """Loss (nats) and accuracies over `examples` of a split, taken at equal distances from all over it.

    `report` is called after each batch with the number of examples evaluated so far and of all.

    Returns:
        `{"examples", "loss", "token_accuracy", "example_accuracy", "loss_by_position", "loss_by_unit"}`, the last with
        what each unit of replication contributes (`linearised`); for classes also `"accuracy_by_unit"`; for the test
        split, if the task distinguishes kinds of answers, also `"parts": {kind: {"answers": number, "loss": their
        sum}}`.
    """
    model.eval()
    device = next(model.parameters()).device
    size = task.size(split)
    count = min(examples, size or examples)
    indices = range(count) if size is None else [number * size // count for number in range(count)]
    tally = Tally(task, split, indices, device)
    for first in range(0, count, batch_size):
        of_batch = range(first, min(first + batch_size, count))
        own = of_batch[world.rows(len(of_batch))]
        if not own:
            continue
        [(tokens, targets, mask)] = pieces(task.batch(split, [indices[number] for number in own]), device)
        with autocast():
            losses, is_right = answers(model, tokens, targets, mask)
        tally.add(own, targets, losses, is_right)
        report(of_batch.stop, count)
    return tally.results(world)
