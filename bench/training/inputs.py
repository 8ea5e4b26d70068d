"""Query, key and value from a model that `bench=train` trained, reading examples of its own task."""

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
from attention_zoo import UnsupportedError
from attention_zoo.checks import require
from bench import models, tasks
from bench.common.errors import one_line
from bench.common.mechanism import SEEDS, build_attention
from bench.inputs import models as names
from bench.inputs.base import Inputs, ModelSource, cached_tensors
from bench.inputs.pretrained import ReachedLayer
from bench.models.layers import MultiHead
from bench.training import saved

FORMAT = 1
"""Part of the cache key: increase it if the same settings come to mean other numbers."""
TRIED = 64
"""Test examples that are looked at for each one without padding."""


@dataclass(frozen=True)
class Trained(ModelSource):
    """The batch is the first `seq_len` tokens of the first `batch_size` test examples that have no padding there.

    `model` is a folder that `bench=train` left in `results_dir/training`. If the model has rotary positions, queries
    and keys are rotated.
    """

    name: ClassVar[str] = "trained"

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> Inputs:
        """Run the model up to the layer, or read its earlier result from `cache_dir`."""
        saved_model = self._fitting(config)
        tokens = self._tokens(saved_model, config, cache_dir)
        seed = self.seed(config)
        key = {
            "format": FORMAT,
            **self.identity(),
            "seed": seed,
            "layer": self.layer,
            "tokens": hashlib.sha256(tokens.numpy().tobytes()).hexdigest(),
            "shape": list(tokens.shape),
        }
        return cached_tensors(
            key, cache_dir, lambda: attention_inputs(self._build(saved_model, seed), tokens, self.layer)
        )

    def check(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Check that the folder has a complete model, and that layer, heads and lengths fit; the task is not opened."""
        self._fitting(config)
        _require_whole(self, json.dumps(self.identity()))

    def identity(self) -> dict[str, Any]:
        """The hashes of the model's files."""
        return {"model": names.identity(self.model)}

    def mechanisms(self) -> frozenset[str]:
        """The name of the mechanism that the model was trained with."""
        name = self._read().cell["attention"]["name"]
        with self._named():
            return frozenset({attention_zoo.info(name).name})

    def mechanism(self, config: Mapping[str, Any], **changes: Any) -> attention_zoo.Attention | None:
        """The layer's own mechanism with its trained weights and draws, made for the model's longest sequence or more.

        None if the cell's mechanism has another name or hyperparameter, if it has neither weights nor draws, or if the
        model is untrained.

        Raises:
            UnsupportedError: the weights are for the model's longest sequence, and the cell needs a longer one.
        """
        saved_model = self._read()
        if self.weights != "pretrained" or _complete(config["attention"]) != _complete(saved_model.cell["attention"]):
            return None
        longest = saved_model.cell["seq_len"]
        of_layer = {"max_seq_len": max(longest, changes.get("max_seq_len") or 0)}
        of_layer["seed"] = (saved_model.cell["seed"] + self.layer) % SEEDS
        attention = build_attention(dict(config), **{**changes, **of_layer})
        if not [*attention.parameters(), *attention.buffers()]:
            return None
        weights = _attention(self._build(saved_model, None), self.layer).state_dict()
        if any(weights[name].shape != own.shape for name, own in attention.state_dict().items()):
            raise UnsupportedError(f"{attention.info.name} was trained for {longest} tokens, and takes no more")
        attention.load_state_dict(weights)
        return attention

    def _read(self) -> saved.Saved:
        names.is_directory(self.model)
        with self._named():
            return saved.read(self.model)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Name the model in every error."""
        try:
            yield
        except Exception as error:  # a configuration written by hand may cause any error
            raise ValueError(f"inputs.model={self.model!r}: {one_line(error)}") from error

    def _fitting(self, config: Mapping[str, Any]) -> saved.Saved:
        """Read the folder; raises `ValueError` unless its model fits this cell."""
        saved_model = self._read()
        with self._named():
            tasks.settings(saved_model.cell["task"]).require_fits(saved_model.cell)
            tasks.require_unchanged(saved_model.cell)  # other tokens would be read under the model's name
            model = models.settings(saved_model.cell["model"])
            if not model.has_attention:
                raise ValueError(f"model.name={model.name}: has no attention")
        self.require_sizes(config, saved_model.cell["num_heads"], saved_model.cell["head_dim"])
        longest, length = saved_model.cell["seq_len"], config["seq_len"]
        require("seq_len", length, length <= longest, f"at most {longest}, as in inputs.model={self.model}")
        self.require_layer(model.layers)
        return saved_model

    def _build(self, saved_model: saved.Saved, seed: int | None) -> nn.Module:
        """The trained model, or, given a seed, an untrained one whose layers use the seeds from `seed` on."""
        if seed is not None:
            return models.build({**saved_model.cell, "seed": seed}, *saved_model[1:]).eval()
        with self._named():
            model = models.build(*saved_model)
            weights = saved.load_weights(self.model)
            for name, value in model.state_dict().items():
                if isinstance(value, Tensor) and (name not in weights or weights[name].shape != value.shape):
                    has = list(weights[name].shape) if name in weights else "missing"
                    must = f"must be {list(value.shape)} as config.json has it"
                    raise ValueError(f"model.safetensors: {name} is {has}, {must}")
            model.load_state_dict(weights)
        return model.eval()

    def _tokens(self, saved_model: saved.Saved, config: Mapping[str, Any], cache_dir: Path) -> Tensor:
        with self._named():
            task = tasks.open_task(saved_model.cell, cache_dir)
        batch_size, size = config["batch_size"], task.size("test")
        allowed = f"at most {size}, as many examples as {self.model} is tested on"
        require("batch_size", batch_size, size is None or batch_size <= size, allowed)
        length, whole = config["seq_len"], []
        tried = range(batch_size * (1 if task.padding is None else TRIED))[:size]
        for index in tried:
            tokens = task.batch("test", [index]).tokens
            beginning = tokens.view(-1, tokens.shape[-1])[:1, :length]  # of a pair the first document
            # The model does not see padding, but a mechanism that is measured would take it for keys.
            if task.padding is None or bool((beginning != task.padding).all()):
                whole.append(beginning)
            if len(whole) == batch_size:
                return torch.cat(whole)
        allowed = f"shorter: only {len(whole)} of {len(tried)} examples of {self.model} are so long without padding"
        raise ValueError(f"seq_len={length}: must be {allowed}")


def attention_inputs(model: nn.Module, tokens: Tensor, layer: int) -> Inputs:
    """The inputs of a layer's mechanism for tokens `(batch, n)`: three tensors `(batch, heads, n, head_dim)`."""

    def capture(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        raise ReachedLayer(*arguments)

    hook = _attention(model, layer).register_forward_pre_hook(capture)
    try:
        with torch.no_grad():
            model(tokens)
    except ReachedLayer as reached:
        query, key, value = (x.clone(memory_format=torch.contiguous_format) for x in reached.args)
        return query, key, value
    finally:
        hook.remove()
    raise AssertionError("every model calls the mechanisms of its layers")


def _attention(model: nn.Module, layer: int) -> attention_zoo.Attention:
    """The mechanism of a layer."""
    return [module.attention for module in model.modules() if isinstance(module, MultiHead)][layer]


@functools.lru_cache
def _require_whole(source: Trained, identity: str) -> None:
    """Build the model once, to check it; cached for all seeds and lengths."""
    source._build(source._read(), None)


def _complete(attention: Mapping[str, Any]) -> Any:
    """A mechanism's settings with defaults, in one spelling: an older checkpoint may have fewer settings."""
    complete = {**attention_zoo.hyperparameters(attention["name"]), **attention}
    return json.loads(json.dumps(complete, sort_keys=True, default=str))
