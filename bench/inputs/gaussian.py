"""Independent normal query, key and value."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from bench.common.schema import setting
from bench.inputs.base import Source, inputs_seed


@dataclass(frozen=True)
class Gaussian(Source):
    """Value is N(0, 1); query and key are normal, scaled so that scores have standard deviation `score_scale`.

    Attributes:
        score_scale: standard deviation of the scores `q.k / sqrt(head_dim)`. Trained models have several times
            wider ones, and structure, which these inputs lack: errors on them say little of a trained model.
    """

    name: ClassVar[str] = "gaussian"

    score_scale: float = setting(
        1.0, "standard deviation of the scores q.k / sqrt(head_dim); several times 1 in trained models", above=0
    )

    def load(self, config: Mapping[str, Any], cache_dir: Path) -> tuple[Tensor, Tensor, Tensor]:
        """Draw `(batch_size, num_heads, seq_len, head_dim)` tensors on the CPU; nothing is cached."""
        shape = [config[key] for key in ("batch_size", "num_heads", "seq_len", "head_dim")]
        generator = torch.Generator("cpu").manual_seed(inputs_seed(config["seed"]))
        query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
        return query * self.score_scale**0.5, key * self.score_scale**0.5, value
