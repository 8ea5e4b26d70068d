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
    length = task.batch(split, [0]).targets.shape[1]
    units, kinds = task.units(split, indices), task.kinds if split == "test" else ()
    right = torch.zeros((), dtype=torch.float64, device=device)
    by_position, by_unit, right_by_unit, by_kind = (
        Sums(size, device) for size in (length, max(units) + 1, max(units) + 1, len(kinds))
    )
    for first in range(0, count, batch_size):
        of_batch = range(first, min(first + batch_size, count))
        own = of_batch[world.rows(len(of_batch))]
        if not own:
            continue
        examples_of = [indices[number] for number in own]
        [(tokens, targets, mask)] = pieces(task.batch(split, examples_of), device)
        with autocast():
            losses, is_right = answers(model, tokens, targets, mask)
        rows, columns = (targets != IGNORED).nonzero(as_tuple=True)
        wrong = torch.zeros(len(own), device=device).index_add_(0, rows, (~is_right).float())
        right += is_right.sum()
        by_position.add(losses, columns)
        own_units = torch.tensor([units[number] for number in own], device=device)
        by_unit.add(losses, own_units[rows])
        right_by_unit.add((wrong == 0).float(), own_units)
        if kinds:
            of_answers = torch.from_numpy(np.stack([task.kinds_of(split, index) for index in examples_of])).to(device)
            by_kind.add(losses, of_answers[rows, columns])
        report(of_batch.stop, count)
    total, asked = by_position.over(world)
    if not math.isfinite(sum(total)):
        raise NonFiniteError(f"the loss of the {split} split is {sum(total) / sum(asked):g}")
    whole = right_by_unit.over(world)
    found = {
        "examples": count,
        "loss": sum(total) / sum(asked),
        "token_accuracy": float(world.total(right)) / sum(asked),
        "example_accuracy": sum(whole[0]) / count,
        "loss_by_position": [loss / times if times else None for loss, times in zip(total, asked, strict=True)],
        "loss_by_unit": linearised(*by_unit.over(world)),
    }
    if task.classes is not None:
        found["accuracy_by_unit"] = linearised(*whole)
    if kinds:
        parts = zip(kinds, *by_kind.over(world), strict=True)
        found["parts"] = {kind: {"answers": answers, "loss": loss} for kind, loss, answers in parts}
    return found
