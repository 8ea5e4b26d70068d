"""Random tensors that depend on their generator alone, not on torch's defaults: float32, on the generator's device.

Among them are matrices for sketching tensor powers, and orthogonal random features.
"""

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
    """iid, uniform on 0, ..., below - 1, int64."""
    return torch.randint(below, shape, generator=generator, device=generator.device)


def hadamard(size: int) -> Tensor:
    """The +-1 Walsh-Hadamard matrix of order `size`, a power of two."""
    matrix = torch.ones(1, 1, dtype=torch.float32, device="cpu")
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def sampled_hadamard(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """`D H P`: D random signs, H Walsh-Hadamard, P samples `columns` columns with replacement; entries +-1."""
    signs = integers(2, (rows, 1), generator).to(torch.float32) * 2 - 1
    sampled = integers(rows, (columns,), generator)
    return signs * hadamard(rows)[:, sampled]


def orthogonal_features(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """`(rows, columns)`: blocks of `columns` orthogonal rows, each marginally N(0, I).

    The signs of the diagonal of R make Q Haar distributed; without them LAPACK's convention biases the features.
    """
    blocks = []
    for _ in range(-(-rows // columns)):
        q, r = torch.linalg.qr(normal((columns, columns), generator, torch.float64))
        blocks.append((q * r.diagonal().sign()).T)
    norms = normal((rows, columns), generator, torch.float64).norm(dim=1, keepdim=True)
    return (torch.cat(blocks)[:rows] * norms).float()
