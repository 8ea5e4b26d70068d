"""Draws that follow from their generator alone: in float32 on its device, whatever the process's defaults are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def normal(shape: Sequence[int], generator: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """iid N(0, 1)."""
    return torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)


def uniform(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """iid, in [0, 1)."""
    return torch.rand(shape, generator=generator, dtype=torch.float32, device=generator.device)


def integers(below: int, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """iid, from 0 on, int64."""
    return torch.randint(below, shape, generator=generator, device=generator.device)
