"""Which examples a step learns from: a function of the seed and the step, so that nothing of it need be saved."""

from __future__ import annotations

import functools
import hashlib

import torch


def number_of(*key: int | str) -> int:
    """A number of 63 bits that a key decides, and nothing near it."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def training_indices(seed: int, step: int, batch_size: int, size: int | None) -> list[int]:
    """The examples of a step: every epoch has each of `size` once, in an order of its own; None never repeats one."""
    positions = range(step * batch_size, (step + 1) * batch_size)
    if size is None:
        return list(positions)
    return [int(_permutation(seed, position // size, size)[position % size]) for position in positions]


@functools.lru_cache(maxsize=2)
def _permutation(seed: int, epoch: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number_of(seed, "order", epoch))
    return torch.randperm(size, generator=generator)
