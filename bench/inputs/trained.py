"""Query, key and value of a model that was trained here, which reads examples of its own task."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import attention_zoo
from attention_zoo.checks import check_choice, check_int, require
from bench import models, tasks
from bench.errors import one_line
from bench.inputs import kept
from bench.inputs import models as names
from bench.inputs.base import Source
from bench.inputs.seeds import inputs_seed
from bench.mechanism import build_attention
from bench.models.multihead import MultiHead
from bench.training import checkpoints as saved

FORMAT = 1
"""Part of the cache key: raise it when the same fields come to mean other numbers."""


@dataclass(frozen=True)
class Trained(Source):
    """The batch is the beginning, `seq_len` tokens, of the first `batch_size` examples of the task's test split.

    Attributes:
        model: a folder that `bench=train` left in `results_dir/training`.
        weights: `pretrained`, or `initialised` afresh from the cell's seed.
        layer: the layer whose query (turned by its position, where the model does that), key and value are taken.
    """

    name: ClassVar[str] = "trained"
    is_read: ClassVar[bool] = True

    model: str
    weights: str = "pretrained"
    layer: int = 0

    def __post_init__(self) -> None:
        require("inputs.model", self.model, isinstance(self.model, str) and self.model != "", "a folder")
        check_choice("inputs.weights", self.weights, ("pretrained", "initialised"))
        check_int("inputs.layer", self.layer, 0)

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> tuple[Tensor, Tensor, Tensor]:
        """Let the model read as far as the layer; what it gave before is read from `cache_dir`."""
        found = self._fitting(config)
        tokens = self._tokens(found, config, cache_dir)
        seed = inputs_seed(config["seed"]) if self.weights == "initialised" else None
        key = {
            "format": FORMAT,
            **self.identity(),
            "seed": seed,
            "layer": self.layer,
            "tokens": hashlib.sha256(tokens.numpy().tobytes()).hexdigest(),
            "shape": list(tokens.shape),
        }
        return kept.load(key, cache_dir, lambda: attention_inputs(self._build(found, seed), tokens, self.layer))

    def check(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """See that the folder holds a whole model, and that layer, heads and lengths fit; the task is not opened."""
        self._fitting(config)
        _require_whole(self, json.dumps(self.identity()))

    def identity(self) -> dict[str, Any]:
        """The hashes of its files."""
        return {"model": names.identity(self.model)}

    def mechanisms(self) -> frozenset[str]:
        """The one that the model was trained with."""
        name = self._read().cell["attention"]["name"]
        with self._named():
            return frozenset({attention_zoo.info(name).name})

    def mechanism(self, config: Mapping[str, Any], **changes: Any) -> attention_zoo.Attention | None:
        """The layer's own mechanism, its weights and draws as they were trained; made for the model's longest sequence.

        None where the cell's has another name or hyperparameter, where it has neither weights nor draws, and beside a
        model that was not trained.
        """
        found = self._read()
        if self.weights != "pretrained" or _complete(config["attention"]) != _complete(found.cell["attention"]):
            return None
        of_layer = {"max_seq_len": found.cell["seq_len"], "seed": found.cell["seed"] + self.layer}
        attention = build_attention(dict(config), **{**changes, **of_layer})
        if not [*attention.parameters(), *attention.buffers()]:
            return None
        model = self._build(found, None)
        attention.load_state_dict(_attention(model, self.layer).state_dict())
        return attention

    def _read(self) -> saved.Saved:
        names.is_directory(self.model)
        with self._named():
            return saved.read(self.model)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Says of which model a refusal is."""
        try:
            yield
        except Exception as error:  # whatever a configuration leads to that was written by hand
            raise ValueError(f"inputs.model={self.model!r}: {one_line(error)}") from error

    def _fitting(self, config: Mapping[str, Any]) -> saved.Saved:
        """What the folder says; raises `ValueError` unless it is of a model that fits this cell."""
        found = self._read()
        with self._named():
            tasks.require_fits(found.cell)
            layers = models.settings(found.cell["model"]).layers
        for name in ("num_heads", "head_dim"):
            has = found.cell[name]
            require(name, config[name], config[name] == has, f"{has}, as in inputs.model={self.model}")
        longest, length = found.cell["seq_len"], config["seq_len"]
        require("seq_len", length, length <= longest, f"at most {longest}, as in inputs.model={self.model}")
        allowed = f"between 0 and {layers - 1}: {self.model} has {layers} layers"
        require("inputs.layer", self.layer, self.layer < layers, allowed)
        return found

    def _build(self, found: saved.Saved, seed: int | None) -> nn.Module:
        """The trained model, or one that is as new with its layers' seeds from `seed` on."""
        if seed is not None:
            return models.build({**found.cell, "seed": seed}, found.vocabulary).eval()
        with self._named():
            model = models.build(found.cell, found.vocabulary)
            _require_shapes(model, saved.shapes(self.model))
            model.load_state_dict(saved.load_weights(self.model))
        return model.eval()

    def _tokens(self, found: saved.Saved, config: Mapping[str, Any], cache_dir: Path) -> Tensor:
        with self._named():
            task = tasks.open_task(found.cell, cache_dir)
        batch_size, size = config["batch_size"], task.size("test")
        allowed = f"at most {size}, as many examples as {self.model} is tested on"
        require("batch_size", batch_size, size is None or batch_size <= size, allowed)
        return task.batch("test", range(batch_size)).tokens[:, : config["seq_len"]].contiguous()


class _Reached(Exception):
    """Ends a forward pass once there is nothing left to learn from it."""


def attention_inputs(model: nn.Module, tokens: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """What the mechanism of a layer is given for tokens `(batch, n)`: three tensors `(batch, heads, n, head_dim)`."""
    given: list[Tensor] = []

    def keep(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        given.extend(arguments)
        raise _Reached

    hook = _attention(model, layer).register_forward_pre_hook(keep)
    try:
        with torch.no_grad():
            model(tokens)
    except _Reached:
        pass
    finally:
        hook.remove()
    query, key, value = (x.clone(memory_format=torch.contiguous_format) for x in given)
    return query, key, value


def _attention(model: nn.Module, layer: int) -> attention_zoo.Attention:
    """The mechanism of a layer."""
    return [module.attention for module in model.modules() if isinstance(module, MultiHead)][layer]


@functools.lru_cache
def _require_whole(source: Trained, identity: str) -> None:
    """One look at a folder of this identity does for all seeds and lengths."""
    with source._named():
        found = saved.read(source.model)
        _require_shapes(models.build(found.cell, found.vocabulary), saved.shapes(source.model))


def _require_shapes(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, value in model.state_dict().items():
        if isinstance(value, Tensor) and shapes.get(name) != tuple(value.shape):
            has = list(shapes[name]) if name in shapes else "missing"
            raise ValueError(f"model.safetensors: {name} is {has}, must be {list(value.shape)} as config.json has it")


def _complete(attention: Mapping[str, Any]) -> Any:
    """A mechanism's settings with their defaults, alike in whatever spelling: a checkpoint may know fewer."""
    complete = {**attention_zoo.hyperparameters(attention["name"]), **attention}
    return json.loads(json.dumps(complete, sort_keys=True, default=str))
