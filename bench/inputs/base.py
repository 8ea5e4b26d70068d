"""What a source of query, key and value is, and what several of them need."""

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
    """The settings `inputs.*` of a cell, a frozen dataclass of `setting`s, and what they describe.

    Methods raise `ValueError` for what does not fit the model or the text, `ModuleNotFoundError`, whose message gives
    the pip command, where a package is missing, and `ConnectionError` where the hub cannot be read.
    """

    name: ClassVar[str]

    is_read: ClassVar[bool] = False
    """Whether it comes from somewhere, and may be missing or not fit."""

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> Inputs:
        """Query, key and value of a cell: the same for every mechanism in a comparison.

        Args:
            config: a cell's resolved config; `seq_len`, `batch_size`, `num_heads`, `head_dim` and `seed` are read.
            cache_dir: where inputs that are costly to make are kept; the folder above it is there.

        Returns:
            Three float32 CPU tensors `(batch_size, num_heads, seq_len, head_dim)`.
        """
        raise NotImplementedError

    def check(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Raise what `load` would raise, as far as that can be known without making the tensors; writes nothing."""

    def identity(self) -> dict[str, Any]:
        """What pins down what is read, where the settings alone do not."""
        return {}

    def mechanisms(self) -> frozenset[str]:
        """The names of mechanisms of the zoo that the tensors come through."""
        return frozenset()

    def mechanism(self, config: Mapping[str, Any], **changes: Any) -> Attention | None:
        """The trained mechanism that the tensors were made for, on the CPU; None where it is not the one of `config`.

        Args:
            config: a cell's resolved config; `attention` and what `bench.common.mechanism.build_attention` reads.
            **changes: as there.
        """
        return None


@dataclass(frozen=True)
class ModelSource(Source):
    """A layer of a model, which is given query, key and value.

    Attributes:
        model: which one.
        weights: `pretrained`, or `initialised` afresh from the cell's seed.
        layer: the layer whose query, key and value are taken.
    """

    is_read: ClassVar[bool] = True

    model: str = setting("minilm", "model that is read: minilm, a directory, or a repository of the hub")
    weights: str = setting(
        "pretrained", "trained weights, or fresh ones from the seed", choices=("pretrained", "initialised")
    )
    layer: int = setting(0, "layer whose query, key and value are taken", minimum=0)

    def seed(self, config: Mapping[str, Any]) -> int | None:
        """Of fresh weights; None for trained ones."""
        return inputs_seed(config["seed"]) if self.weights == "initialised" else None

    def require_sizes(self, config: Mapping[str, Any], num_heads: int, head_dim: int) -> None:
        """Raise `ValueError` unless the cell has the heads of the model."""
        for name, size in (("num_heads", num_heads), ("head_dim", head_dim)):
            require(name, config[name], config[name] == size, f"{size}, as in inputs.model={self.model}")

    def require_layer(self, layers: int) -> None:
        """Raise `ValueError` unless a model of so many layers has this one."""
        allowed = f"between 0 and {layers - 1}: {self.model} has {layers} layers"
        require("inputs.layer", self.layer, self.layer < layers, allowed)


def inputs_seed(seed: int) -> int:
    """A 63-bit seed derived from a cell's `seed`.

    A mechanism draws its projections from `seed` itself. Drawn from the same seed, the first random features
    would be equal to the first queries, and no longer independent of them.
    """
    return int.from_bytes(hashlib.sha256(f"inputs:{seed}".encode()).digest()[:8]) >> 1


def cached_tensors(key: Mapping[str, Any], cache_dir: Path, make: Callable[[], Inputs]) -> Inputs:
    """Read the tensors of `key`, which says all that determines them, from `cache_dir`, or `make` and leave them there.

    Raises:
        OSError: something else is in the place of their file, or it cannot be written.
    """
    safetensors, of_torch = (package(name, "inputs", INSTALL) for name in ("safetensors", "safetensors.torch"))
    text, path = _cache_file(key, cache_dir)
    try:
        require_file(path)
        tensors = of_torch.load_file(path)
    except (FileNotFoundError, safetensors.SafetensorError):
        # A file that cannot be read, cut short on its way here perhaps, is made again.
        tensors = {name: t.contiguous() for name, t in zip(NAMES, make(), strict=True)}
        write_atomically(path, of_torch.save(tensors, metadata={"inputs": text}))
    return tensors["query"], tensors["key"], tensors["value"]


def cached_shape(key: Mapping[str, Any], cache_dir: Path) -> tuple[int, ...] | None:
    """`(batch_size, num_heads, seq_len, head_dim)` of the tensors of `key`; None where they are not there."""
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
