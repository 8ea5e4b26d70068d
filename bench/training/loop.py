"""The training loop. Each step depends only on the seed, the step's number, and the saved state of the run."""

import contextlib
import copy
import functools
import hashlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bench.common.errors import NonFiniteError
from bench.tasks import IGNORED, Batch, Task
from bench.training.evaluation import answers, evaluate, pieces
from bench.training.optimizer import optimizer_of
from bench.training.pretraining import mask_tokens
from bench.training.schedule import beta1, learning_rate
from bench.training.settings import Training
from bench.training.world import World

LOGGED = ("train_loss", "gradient_norm", "learning_rate")
STATE = ("step", "curve", "evaluations", "best", "seconds")
"""Attributes of a trainer that are part of the state of a run as they are."""


def derived_seed(*key: int | str) -> int:
    """A 63-bit seed derived from a key by hashing; similar keys give unrelated seeds."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


LONG = ("loss_by_position", "loss_by_unit", "accuracy_by_unit")
"""Results of an evaluation that are kept only for the test at the end."""


def training_indices(seed: int, step: int, batch_size: int, size: int | None, order: str = "shuffled") -> list[int]:
    """The examples of a step: every epoch has each of `size` once, shuffled; with size None no example repeats.

    With `order` `sequential`, every epoch has the order of the split.
    """
    positions = range(step * batch_size, (step + 1) * batch_size)
    if size is None:
        return list(positions)
    if order == "sequential":
        return [position % size for position in positions]
    return [int(_permutation(seed, position // size, size)[position % size]) for position in positions]


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(derived_seed(seed, "order", epoch))
    return torch.randperm(size, generator=generator)


class Trainer:
    """Trains a model on a task, step by step.

    Args:
        model: in float32 (float64 for checks), on the device.
        task: the task to learn.
        settings: of the training.
        seed: for the data, their order and dropout.
        batch_size: examples per step, over all accumulated parts and processes.
        dtype: bfloat16 means autocast for products; the weights keep their dtype.
        world: the processes that train together; None: this process only.
    """

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        settings: Training,
        *,
        seed: int,
        batch_size: int,
        dtype: torch.dtype,
        world: World | None = None,
    ) -> None:
        self.model, self.task, self.settings = model, task, settings
        self.seed, self.batch_size, self.dtype = seed, batch_size, dtype
        self.device = next(model.parameters()).device
        self.world = world or World()
        wrapped = self.world.wrapped(model)
        self.run: Callable[..., Tensor] = torch.compile(wrapped) if settings.compile else wrapped
        self.optimizer = optimizer_of(model, settings)
        self.step = 0
        self.curve: dict[str, list[float]] = {name: [] for name in LOGGED}
        self.evaluations: list[dict[str, Any]] = []
        self.best: dict[str, Any] | None = None
        self.seconds: list[float] = []
        self.report: Callable[..., None] = lambda done, total, note: None
        """Called while examples are evaluated, which may take as long as training."""

    def train_step(self) -> None:
        """Train on one batch.

        Raises:
            NonFiniteError: the loss or a gradient is not finite; names the step and the first parameter.
        """
        began = time.perf_counter()
        self.model.train()
        self.optimizer.zero_grad(set_to_none=True)
        indices = training_indices(self.seed, self.step, self.batch_size, self.task.size("train"), self.settings.order)
        batch = self.task.batch("train", indices)
        if self.step < self.settings.pretrain_steps:
            batch = mask_tokens(batch, derived_seed(self.seed, "hidden", self.step))
        elif self.step == self.settings.pretrain_steps > 0:
            self.optimizer = optimizer_of(self.model, self.settings)
        loss = self._accumulated(batch)
        norm, rate = self.update(loss)
        for name, value in zip(LOGGED, (loss, norm, rate), strict=True):
            self.curve[name].append(value)
        self.seconds.append(time.perf_counter() - began)
        self.step += 1

    @functools.cached_property
    def tokens(self) -> int:
        """Tokens of a batch; an example may be a pair of documents."""
        return self.batch_size * self.task.batch("test", [0]).tokens.numel()

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done, or the validation loss has not decreased for `patience` evaluations."""
        losses, patience = [found["loss"] for found in self.evaluations], self.settings.patience
        has_stalled = patience is not None and bool(losses) and len(losses) - losses.index(min(losses)) > patience
        return has_stalled or self.step >= self.settings.steps

    def validate(self) -> None:
        """Evaluate on the validation split if the step is due, and keep the weights if they are the best so far."""
        settings = self.settings
        is_due = self.step % settings.evaluate_every == 0 or self.step == settings.steps
        if not is_due or self.step <= settings.pretrain_steps:
            return
        found = self.evaluate("validation", settings.evaluation_examples)
        self.evaluations.append({name: value for name, value in found.items() if name not in LONG})
        if settings.checkpoint == "best" and (self.best is None or found["loss"] < self.best["loss"]):
            self.best = {"step": self.step, "loss": found["loss"], "model": copy.deepcopy(self.model.state_dict())}

    def load_best_weights(self) -> int:
        """Load the weights that will be tested (the best ones, if kept); returns their step."""
        if self.best is None:
            return self.step
        self.model.load_state_dict(self.best["model"])
        return int(self.best["step"])

    def loss(self, tokens: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """The mean loss over the answers of a batch."""
        with self._autocast():
            return answers(self.run, tokens, targets, mask)[0].mean()

    def update(self, loss: float) -> tuple[float, float]:
        """Clip the gradients and update the weights; returns the gradient norm and the learning rate."""
        limit = math.inf if self.settings.clip is None else self.settings.clip
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), limit))
        if not math.isfinite(loss) or not math.isfinite(norm):
            gradients = ((name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None)
            first = next((name for name, gradient in gradients if not gradient.isfinite().all()), None)
            what = f"the gradient of {first} is not finite" if first else "every gradient is finite"
            raise NonFiniteError(f"step={self.step}: loss {loss:g}, {what}")
        rate = learning_rate(self.settings, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
            if "betas" in group:
                group["betas"] = (beta1(self.settings, self.step), self.settings.beta2)
        self.optimizer.step()
        return norm, rate

    def _accumulated(self, batch: Batch) -> float:
        """Accumulate the gradients of a batch's mean loss, part by part; returns the loss."""
        # Of a few tokens none may be hidden in pretraining: then nothing is learned.
        asked, parts = max(1, int((batch.targets != IGNORED).sum())), self.settings.accumulate
        own = self.world.rows(len(batch.tokens))
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for part, piece in enumerate(pieces(batch, self.device, parts, own)):
            # Seeded for each step and part, so that a resumed run repeats the same dropout.
            torch.manual_seed(derived_seed(self.seed, "dropout", self.step, part, self.world.rank))
            last = part == parts - 1
            with contextlib.nullcontext() if last else self.world.alone(self.run), self._autocast():
                loss = answers(self.run, *piece)[0].sum() / asked
                # Gradients are averaged over processes, but should be summed.
                (loss * self.world.size).backward()
            total += loss.detach()
        return float(self.world.total(total))

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def evaluate(self, split: str, examples: int) -> dict[str, Any]:
        """The step, and the result of `bench.training.evaluation.evaluate` for the present weights."""
        return {"step": self.step, **self.evaluated(self.model, self.task, split, examples)}

    def evaluated(self, model: nn.Module, task: Task, split: str, examples: int, how: str = "") -> dict[str, Any]:
        """The result of `bench.training.evaluation.evaluate` for a model and a task, in batches as in training.

        `how` says in progress reports what is not as in training, such as `, without sketch`.
        """
        report = functools.partial(self.report, note=f"{split} examples{how}")
        return evaluate(model, task, split, examples, self.batch_size, self.world, self._autocast, report)

    def state(self) -> dict[str, Any]:
        """The state from which a run can resume."""
        return {
            **{name: getattr(self, name) for name in STATE},
            "source": self.task.source,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": {name: generator.get_state() for name, generator in self._generators().items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Resume from a `state`; raises `ValueError` for one of a training on another text (`task.fallback`)."""
        if (source := state.get("source", self.task.source)) != self.task.source:
            raise ValueError(f"was trained on {source}")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name in STATE:
            setattr(self, name, state[name])
        for name, generator in self._generators().items():
            generator.set_state(state["generators"][name])

    def _generators(self) -> dict[str, torch.Generator]:
        """Random generators that modules own, as a user's mechanism may."""
        return {
            f"{module}.{name}": value
            for module, of_module in self.model.named_modules()
            for name, value in vars(of_module).items()
            if isinstance(value, torch.Generator)
        }
