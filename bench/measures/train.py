"""Training a model on a task: its curve, and what it can in the end."""

import copy
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from attention_zoo import UnsupportedError
from attention_zoo.branches import WithoutBranch, branches
from bench import models, tasks
from bench.common.errors import ConfigError
from bench.measures import Benchmark, register
from bench.measures.context import CellContext
from bench.measures.progress import Point
from bench.models.layers import MultiHead
from bench.records.metrics import Metric, fraction, mean
from bench.training import checkpoint, saved
from bench.training.loop import Trainer
from bench.training.settings import Training
from bench.training.world import join

GROUPS = "groups of test examples"
"""That an interval of the accuracy is over: each is of the examples of one unit of replication."""
VALIDATED = ("loss", "token_accuracy", "example_accuracy")
LOGGED_POINTS = 250
"""How many gradient norms and learning rates a record holds at most. Of longer runs it has every second, or third..."""


@register
@dataclass
class Train(Benchmark):
    """A model of `model.*` learns a task of `task.*` as `training.*` says, with the cell's mechanism in every layer."""

    name: ClassVar[str] = "train"
    trains: ClassVar[bool] = True
    headline_format: ClassVar[str] = "loss {loss}, right {token_accuracy}, {steps_per_second}"

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Train from the newest good checkpoint of this cell on, or from the beginning.

        Returns:
            `{"curve": {"train_loss": of each step, "gradient_norm", "learning_rate": of every "logged_every"-th step},
            "logged_every", "seconds": of each step,
            "validation": [{"step", "loss", "token_accuracy", "example_accuracy", "examples"}],
            "test": the same of the weights that were chosen and "loss_by_position", "loss_by_unit", of classes
            "accuracy_by_unit" and of a text "parts", "branches": the same of a hybrid without one of them, by its name,
            "longer": the same at other lengths, by the length,
            "baselines": {"unigram", "bigram"} of a text,
            "unit": of replication in words,
            "parameters", "state_bytes": of decoding after `seq_len` tokens, all layers, batch 1, None where nothing
            decodes, "vocabulary", "source", "resumed_from": [steps], "processes"}`; losses are in nats. Branches and
            other lengths have no losses by position. Seconds and losses of steps and positions have four digits, other
            curves three.

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
            IncorrectError: the mechanism sees tokens that it must not see.
            ConfigError: the task or the model cannot have one of `training.test_lengths`.
        """
        context.require_causal()
        trainer, keep = make_trainer(context), context.keep
        trainer.report = context.progress
        state_bytes = _state_bytes(trainer, context.config["seq_len"])
        with torch.random.fork_rng():
            if keep:
                checkpoint.resume(keep, trainer, context.say)
            resumed_from = trainer.step
            for length in trainer.settings.test_lengths or ():
                _open(context, trainer, length)  # raises before hours of training, not after them
            context.enter("measure")
            self._train(context, trainer, None if trainer.world.rank else keep)
            examples = trainer.settings.test_examples
            tested_step = trainer.load_best_weights()
            if keep and not trainer.world.rank:  # before tests, which may need more memory than steps
                contents = saved.Saved(context.config, *_sizes(trainer.task))
                saved.save(keep, trainer.model, contents, trainer.task.tokenizer)
            test = trainer.evaluate("test", examples) | {"step": tested_step}
            test["loss_by_position"] = _rounded(test["loss_by_position"])
            more = {"branches": _without_branches(trainer), "longer": _at_other_lengths(context, trainer)}
        task = trainer.task
        found = {"seconds": _rounded(trainer.seconds), "validation": trainer.evaluations, "test": test}
        parameters = sum(p.numel() for p in trainer.model.parameters())
        size = {"parameters": parameters, "state_bytes": state_bytes, "vocabulary": task.vocabulary}
        how = {"source": task.source, "resumed_from": resumed_from, "processes": trainer.world.size}
        of_task = {"baselines": task.baselines(), "unit": task.unit}
        return {**logged(trainer.curve), **found, **more, **of_task, **size, **how}

    @classmethod
    def curves(cls, measurements: Mapping[str, Any]) -> dict[str, list[Point]]:
        """Loss of each step, norm of the gradients and learning rate of some; what each evaluation found."""
        every = dict.fromkeys(measurements["curve"], measurements.get("logged_every", 1))
        every["train_loss"] = measurements.get("train_loss_every", 1)  # some committed records keep fewer
        steps = {
            name: [Point(number * every[name], value) for number, value in enumerate(values, 1)]
            for name, values in measurements["curve"].items()
        }
        found = measurements["validation"]
        return steps | {f"validation_{name}": [Point(one["step"], one[name]) for one in found] for name in VALIDATED}

    def _train(self, context: CellContext, trainer: Trainer, keep: Path | None) -> None:
        settings, first = trainer.settings, trainer.step
        began = last_saved = time.monotonic()
        while not trainer.is_finished:
            trainer.train_step()
            trainer.validate()
            now = time.monotonic()
            if keep and not trainer.is_finished and now - last_saved >= settings.checkpoint_seconds:
                checkpoint.save(keep, trainer.step, trainer.state())
                last_saved = now
            per_step = (now - began) / (trainer.step - first)
            tokens = trainer.tokens / per_step
            left = per_step * (settings.steps - trainer.step)
            note = f"loss {trainer.curve['train_loss'][-1]:.4g}, {tokens:,.0f} tokens/s, {left / 60:.1f} min left"
            context.progress(trainer.step, settings.steps, note, _newest(trainer))

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Of the test split `loss` (nats, and `loss_by_position`), `perplexity`, accuracies, `state_bytes`, curves.

        Of a text also the `unigram_loss` and the `bigram_loss`, of its whole test split. `raw` has what is at each
        position or evaluation, the value is the last of it.
        """
        test = measurements["test"]
        yield Metric("loss", test["loss"], "nats", name="loss.test", shown=("nats", 1.0))
        yield Metric("perplexity", math.exp(min(test["loss"], 700.0)), name="perplexity.test", shown=None)
        for name in ("token_accuracy", "example_accuracy"):
            yield fraction(name, test[name], name=f"{name}.test")
        raw = np.array(test["loss_by_position"], dtype=float)  # NaN where nothing is asked
        last = float(raw[np.isfinite(raw)][-1])
        yield Metric("loss_by_position", last, "nats", raw=raw, name="loss.last_position", shown=None)
        yield from _by_unit("loss", test)
        if "accuracy_by_unit" in test:
            right = np.array(test["accuracy_by_unit"], dtype=float)  # NaN where a unit has no example
            shown: dict[str, Any] = {"name": "accuracy.test", "over": GROUPS, "shown": ("%", 100.0)}
            yield dataclasses.replace(mean("accuracy", right[~np.isnan(right)], **shown), raw=right)
        if measurements.get("state_bytes") is not None:
            yield Metric("state_bytes", measurements["state_bytes"], "bytes", shown=None)
        for kind, part in test.get("parts", {}).items():
            if part["answers"]:
                yield Metric(f"loss_{kind}", part["loss"] / part["answers"], "nats", name=f"loss.{kind}", shown=None)
            share = part["answers"] / sum(each["answers"] for each in test["parts"].values())
            yield Metric(f"share_{kind}", share, name=f"share.{kind}", shown=None)
        for branch, found in measurements.get("branches", {}).items():
            yield from _by_unit(f"loss_without_{branch}", found)
        for length, found in measurements.get("longer", {}).items():
            yield from _by_unit(f"loss_at_{length}", found)
        for name, loss in measurements.get("baselines", {}).items():
            yield Metric(f"{name}_loss", loss, "nats", name=f"loss.{name}", shown=None)
        raw = np.array(measurements["curve"]["train_loss"], dtype=float)
        yield Metric("train_loss", float(raw[-1]), "nats", raw=raw, name="loss.train", shown=None)
        for metric in ("step", *VALIDATED):
            raw = np.array([found[metric] for found in measurements["validation"]], dtype=float)
            name, tracked = f"validation_{metric}", f"{metric}.validation"
            unit = "nats" if metric == "loss" else "1"
            yield Metric(name, float(raw[-1]), unit, raw=raw, name=tracked, shown=None)
        # Of the steps alone, so that it does not depend on how often one looks.
        raw = np.cumsum(measurements["seconds"])[[found["step"] - 1 for found in measurements["validation"]]]
        yield Metric("validation_seconds", float(raw[-1]), "s", raw=raw, name="training_seconds", shown=None)
        yield Metric("steps_per_second", 1 / float(np.median(measurements["seconds"])), "1/s", shown=("/s", 1.0))


def logged(curve: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """What a record keeps of curves over all steps: the losses, and the other curves thinned."""
    every = math.ceil(len(curve["train_loss"]) / LOGGED_POINTS)
    thinned = {name: _rounded(values[every - 1 :: every], 3) for name, values in curve.items()}
    return {"curve": thinned | {"train_loss": _rounded(curve["train_loss"])}, "logged_every": every}


def _state_bytes(trainer: Trainer, seq_len: int) -> int | None:
    """Bytes of the decoding state of all layers after so many tokens of one sequence, in the dtype of the products.

    What is in it does not depend on the weights: it is known before training. None where a mechanism does not decode.
    """
    total = 0
    layers = [module for module in trainer.model.modules() if isinstance(module, MultiHead)]
    for layer in layers:
        # A copy: the weights that are trained keep their dtype.
        attention = copy.deepcopy(layer.attention).to(trainer.dtype).eval()
        shape = (1, attention.num_heads, seq_len, attention.head_dim)
        tokens = torch.zeros(shape, device=trainer.device, dtype=trainer.dtype)
        try:
            with torch.no_grad():
                total += attention.prefill(tokens, tokens, tokens)[1].num_bytes
        except UnsupportedError:
            return None
    return total if layers else None


def _rounded(values: Sequence[float | None], digits: int = 4) -> list[float | None]:
    """A few digits are enough to draw, and a third of a record's size."""
    return [None if value is None else float(f"{value:.{digits}g}") for value in values]


def _without_branches(trainer: Trainer) -> dict[str, Any]:
    """The test of a hybrid whose layers all lack a branch, `sketch` or `window`; also where it only leaves the sum."""
    layers = [module for module in trainer.model.modules() if isinstance(module, MultiHead)]
    hybrids = [layer.attention for layer in layers]
    found = {}
    for branch, keeps in product(branches(hybrids[0]) if hybrids else (), (False, True)):
        try:
            for layer, hybrid in zip(layers, hybrids, strict=True):
                # Called as an attention is, and nothing more.
                layer.attention = WithoutBranch(hybrid, branch, keeps_denominator=keeps)  # type: ignore[assignment]
            how = f", without {branch}{' in the sum' if keeps else ''}"
            test = _tested(trainer, trainer.model, trainer.task, trainer.settings.test_examples, how)
        finally:
            for layer, hybrid in zip(layers, hybrids, strict=True):
                layer.attention = hybrid
        found[f"{branch}_numerator" if keeps else branch] = test
    return found


def _at_other_lengths(context: CellContext, trainer: Trainer) -> dict[str, Any]:
    """The test of the same weights at `training.test_lengths`, on as many tokens as near as can be."""
    found = {}
    for length in trainer.settings.test_lengths or ():
        task, model = _open(context, trainer, length)
        examples = max(1, trainer.settings.test_examples * context.config["seq_len"] // length)
        found[str(length)] = _tested(trainer, model, task, examples, f", {length} tokens each")
    return found


def _open(context: CellContext, trainer: Trainer, length: int) -> tuple[tasks.Task, nn.Module]:
    """The task and the model, with its weights, at another length."""
    config = {**context.config, "seq_len": length}
    task = tasks.open_task(config, context.cache_dir, context.prepared)
    model = _model(config, task).to(trainer.device, next(trainer.model.parameters()).dtype)
    try:
        model.load_state_dict(trainer.model.state_dict())
    except RuntimeError:
        name, own = context.config["attention"]["name"], context.config["seq_len"]
        why = f"the weights of {name} are those of seq_len={own}, must be null"
        raise ConfigError(f"training.test_lengths=[{length}]: {why}") from None
    return task, model


def _tested(trainer: Trainer, model: nn.Module, task: tasks.Task, examples: int, how: str) -> dict[str, Any]:
    """The test of another model or task; its losses by position are drawn nowhere."""
    found = trainer.evaluated(model, task, "test", examples, how)
    del found["loss_by_position"]
    return found


def _by_unit(metric: str, found: Mapping[str, Any]) -> Iterator[Metric]:
    """A loss with that of each unit of replication; older records have none."""
    if "loss_by_unit" in found:
        raw = np.array(found["loss_by_unit"], dtype=float)
        yield Metric(f"{metric}_by_unit", found["loss"], "nats", raw=raw, shown=None)


def _newest(trainer: Trainer) -> dict[str, Point]:
    """The last point of each curve of `Train.curves`."""
    points = {name: Point(trainer.step, values[-1]) for name, values in trainer.curve.items() if values}
    for found in trainer.evaluations[-1:]:
        points |= {f"validation_{name}": Point(found["step"], found[name]) for name in VALIDATED}
    return points


def _sizes(task: tasks.Task) -> tuple[int, int | None, int]:
    """Of what a task reads and asks for: vocabulary, classes, documents of an example."""
    return task.vocabulary, task.classes, task.batch("test", [0]).tokens.dim() - 1


def _model(config: Mapping[str, Any], task: tasks.Task) -> nn.Module:
    return models.build(config, *_sizes(task))


def make_trainer(context: CellContext) -> Trainer:
    """The model of the cell on its device, its task, and how it is trained."""
    config, task = context.config, tasks.open_task(context.config, context.cache_dir, context.prepared)
    precision = torch.promote_types(context.dtype, torch.float32)
    model = _model(config, task).to(context.device, precision)
    settings = Training(**config["training"])
    world = join(context.keep.name if context.keep else config["label"], context.device)
    how: dict[str, Any] = {"seed": config["seed"], "batch_size": config["batch_size"], "dtype": context.dtype}
    if settings.pretrain_steps and world.size > 1:  # whose gradients would wait for those of the head
        allowed = f"0 in {world.size} processes (WORLD_SIZE); one alone may have any"
        raise ConfigError(f"training.pretrain_steps={settings.pretrain_steps}: must be {allowed}")
    return Trainer(model, task, settings, **how, world=world)
