"""Random matrices for sketching tensor powers, and orthogonal random features. All draws are float32, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor


def gaussian_matrix(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """iid N(0, 1), `(rows, columns)`."""
    return torch.randn(rows, columns, generator=generator)


def hadamard(size: int) -> Tensor:
    """The +-1 Walsh-Hadamard matrix of order `size`, a power of two."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


def sampled_hadamard(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """`D H P`: random signs D, Walsh-Hadamard H, P samples `columns` columns with replacement; entries +-1."""
    signs = torch.randint(0, 2, (rows, 1), generator=generator) * 2.0 - 1
    sampled = torch.randint(0, rows, (columns,), generator=generator)
    return signs * hadamard(rows)[:, sampled]


def orthogonal_features(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """`(rows, columns)`: blocks of `columns` orthogonal rows, each marginally N(0, I).

    The signs of R make Q Haar distributed; without them LAPACK's convention biases the features.
    """
    blocks = []
    for _ in range(-(-rows // columns)):
        q, r = torch.linalg.qr(torch.randn(columns, columns, generator=generator, dtype=torch.float64))
        blocks.append((q * r.diagonal().sign()).T)
    norms = torch.randn(rows, columns, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    return (torch.cat(blocks)[:rows] * norms).float()
