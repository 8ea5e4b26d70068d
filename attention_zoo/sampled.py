"""The base class of mechanisms that sample indices: their noise follows from the seed."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attention_zoo.base import Attention
from attention_zoo.ops.draws import uniform

# Replaces 0, which has no Gaussian quantile; other uniform noise is a multiple of 2^-24.
LEAST_NOISE = 2.0**-25


@torch.library.custom_op("attention_zoo::uniform_noise", mutates_args=())
def uniform_noise(seed: int, shape: Sequence[int], device: torch.device) -> Tensor:
    """Uniform noise in [0, 1), float32, drawn on the CPU; an operator, because a graph cannot contain a generator."""
    return uniform(shape, torch.Generator("cpu").manual_seed(seed)).to(device)


@uniform_noise.register_fake
def _(seed: int, shape: Sequence[int], device: torch.device) -> Tensor:
    return torch.empty(shape, device=device)


class SampledAttention(Attention):
    """A mechanism whose paper samples new indices in every forward pass; here they follow from the seed.

    The noise is a function of the seed, not a buffer (its shape depends on the input), so the state_dict
    has the seed instead.
    """

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._draw()

    def _draw(self) -> None:
        self._cached_noise: Tensor | None = None

    def _noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Uniform noise in [0, 1), float32; the first dimension of `shape` is the position.

        The CPU generator fills row by row, so a position's noise does not depend on how many positions follow
        it: appending padding to a sequence changes no draw before it.
        """
        if torch.compiler.is_compiling():
            return uniform_noise(self.seed, shape, device)
        cached = self._cached_noise
        if cached is None or cached.shape != shape or cached.device != device:
            cached = self._cached_noise = uniform_noise(self.seed, shape, device)
        return cached

    def _normal_noise(self, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Standard normal noise, float32, from `_noise`."""
        return torch.special.ndtri(self._noise(shape, device).clamp_min(LEAST_NOISE))

    def get_extra_state(self) -> Tensor:
        """The seed, for the state_dict."""
        return torch.tensor(self.seed, device="cpu")

    def set_extra_state(self, state: Tensor) -> None:
        """Load the seed from a state_dict."""
        self.resample(int(state))
