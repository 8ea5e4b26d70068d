"""Tensors that are costly to make: made once, and left in a file that is named by all that determines them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bench.records.disk import require_file, write_atomically

NAMES = ("query", "key", "value")


def load(
    key: Mapping[str, Any], cache_dir: Path, make: Callable[[], tuple[Tensor, Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Read the tensors of `key` from `cache_dir`, or `make` them and leave them there.

    Raises:
        OSError: something else is in the place of their file, or it cannot be written.
    """
    import safetensors.torch

    text, path = _file(key, cache_dir)
    try:
        require_file(path)
        tensors = safetensors.torch.load_file(path)
    except (FileNotFoundError, safetensors.SafetensorError):
        # A file that cannot be read, cut short on its way here perhaps, is made again.
        tensors = {name: t.contiguous() for name, t in zip(NAMES, make(), strict=True)}
        write_atomically(path, safetensors.torch.save(tensors, metadata={"inputs": text}))
    return tensors["query"], tensors["key"], tensors["value"]


def shape(key: Mapping[str, Any], cache_dir: Path) -> tuple[int, ...] | None:
    """`(batch_size, num_heads, seq_len, head_dim)` of the tensors of `key`; None where they are not there."""
    import safetensors

    path = _file(key, cache_dir)[1]
    try:
        require_file(path)
        with safetensors.safe_open(path, "numpy") as file:
            return tuple(file.get_slice("query").get_shape())
    except (OSError, safetensors.SafetensorError):
        return None


def _file(key: Mapping[str, Any], cache_dir: Path) -> tuple[str, Path]:
    text = json.dumps(key, sort_keys=True)
    return text, Path(cache_dir) / f"{hashlib.sha256(text.encode()).hexdigest()}.safetensors"
