"""The interface of a source of query, key and value, and functions that several sources need."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from attention_zoo import Attention
from attention_zoo.checks import require
from bench.common.errors import package
from bench.common.schema import setting
from bench.records.disk import require_file, write_atomically

Inputs = tuple[Tensor, Tensor, Tensor]
NAMES = ("query", "key", "value")
INSTALL = "-e '.[pretrained]'"


class Source:
    """The settings `inputs.*` of a cell, as a frozen dataclass of `setting`s, and how to load them.

    Methods raise `ValueError` if the model or text does not fit, `ModuleNotFoundError` (with the pip command) if a
    package is missing, and `ConnectionError` if the hub cannot be read.
    """

    name: ClassVar[str]

    is_read: ClassVar[bool] = False
    """Whether it reads files or a hub, so that something may be missing or not fit."""

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> Inputs:
        """Query, key and value of a cell: the same for every mechanism in a comparison.

        Args:
            config: a cell's resolved config; uses `seq_len`, `batch_size`, `num_heads`, `head_dim` and `seed`.
            cache_dir: a cache for inputs that take long to make; its parent folder exists.

        Returns:
            Three float32 CPU tensors `(batch_size, num_heads, seq_len, head_dim)`.
        """
        raise NotImplementedError

    def check(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Raise the errors that `load` would raise, as far as known without making the tensors; writes nothing."""

    def identity(self) -> dict[str, Any]:
        """What identifies the data that is read, such as file hashes, if the settings alone do not."""
        return {}

    def mechanisms(self) -> frozenset[str]:
        """The names of the mechanisms that compute these tensors."""
        return frozenset()

    def mechanism(self, config: Mapping[str, Any], **changes: Any) -> Attention | None:
        """The trained mechanism that the tensors belong to, on the CPU; None if it is not the one of `config`.

        Args:
            config: a cell's resolved config; uses `attention` and what `bench.common.mechanism.build_attention` uses.
            **changes: as in `build_attention`.
        """
        return None


@dataclass(frozen=True)
class ModelSource(Source):
    """Query, key and value of a layer of a model.

    Attributes:
        model: the model's name.
        weights: `pretrained`, or `initialised` from the cell's seed.
        layer: the layer whose query, key and value are used.
    """

    is_read: ClassVar[bool] = True

    model: str = setting("minilm", "model: minilm, a directory, or a repository on the Hugging Face hub")
    weights: str = setting(
        "pretrained", "trained weights, or new ones from the seed", choices=("pretrained", "initialised")
    )
    layer: int = setting(0, "layer whose query, key and value are used", minimum=0)

    def seed(self, config: Mapping[str, Any]) -> int | None:
        """The seed for new weights; None for trained ones."""
        return inputs_seed(config["seed"]) if self.weights == "initialised" else None

    def require_sizes(self, config: Mapping[str, Any], num_heads: int, head_dim: int) -> None:
        """Raise `ValueError` unless the cell has as many heads as the model, of the same size."""
        for name, size in (("num_heads", num_heads), ("head_dim", head_dim)):
            require(name, config[name], config[name] == size, f"{size}, as in inputs.model={self.model}")

    def require_layer(self, layers: int) -> None:
        """Raise `ValueError` unless `layer` exists in a model with this many layers."""
        allowed = f"between 0 and {layers - 1}: {self.model} has {layers} layers"
        require("inputs.layer", self.layer, self.layer < layers, allowed)


def inputs_seed(seed: int, use: str = "inputs") -> int:
    """A 63-bit seed derived from a cell's `seed`, another for each `use`.

    A mechanism draws its projections from `seed` itself. With the same seed here, the first random features would
    equal the first queries, instead of being independent of them.
    """
    return int.from_bytes(hashlib.sha256(f"{use}:{seed}".encode()).digest()[:8]) >> 1


def cached_tensors(key: Mapping[str, Any], cache_dir: Path, make: Callable[[], Inputs]) -> Inputs:
    """Read tensors from `cache_dir`, or `make` and store them. `key` contains all that determines them.

    Raises:
        OSError: something else than a file has the cached file's name, or it cannot be written.
    """
    safetensors, of_torch = (package(name, "inputs", INSTALL) for name in ("safetensors", "safetensors.torch"))
    text, path = _cache_file(key, cache_dir)
    try:
        require_file(path)
        tensors = of_torch.load_file(path)
    except (FileNotFoundError, safetensors.SafetensorError):
        # A file that cannot be read, a truncated copy say, is made again.
        tensors = {name: t.contiguous() for name, t in zip(NAMES, make(), strict=True)}
        write_atomically(path, of_torch.save(tensors, metadata={"inputs": text}))
    return tensors["query"], tensors["key"], tensors["value"]


def cached_shape(key: Mapping[str, Any], cache_dir: Path) -> tuple[int, ...] | None:
    """`(batch_size, num_heads, seq_len, head_dim)` of the cached tensors of `key`; None if they are not cached."""
    safetensors = package("safetensors", "inputs", INSTALL)
    path = _cache_file(key, cache_dir)[1]
    try:
        require_file(path)
        with safetensors.safe_open(path, "numpy") as file:
            return tuple(file.get_slice("query").get_shape())
    except (OSError, safetensors.SafetensorError):
        return None


def _cache_file(key: Mapping[str, Any], cache_dir: Path) -> tuple[str, Path]:
    text = json.dumps(key, sort_keys=True)
    return text, Path(cache_dir) / f"{hashlib.sha256(text.encode()).hexdigest()}.safetensors"
