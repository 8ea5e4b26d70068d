"""Seeds for inputs that share no random stream with the mechanisms."""

from __future__ import annotations

import hashlib


def inputs_seed(seed: int) -> int:
    """A 63-bit seed derived from a cell's `seed`.

    A mechanism draws its projections from `seed` itself. Drawn from the same seed, the first random features
    would be equal to the first queries, and no longer independent of them.
    """
    return int.from_bytes(hashlib.sha256(f"inputs:{seed}".encode()).digest()[:8]) >> 1
