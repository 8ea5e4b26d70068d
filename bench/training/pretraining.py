"""Self-pretraining: a classifier first names hidden tokens of its own training examples.

Amos, Berant and Gupta 2023, Never Train from Scratch (arXiv 2310.02980), section 3: so much of what sets mechanisms
apart on Long Range Arena goes away.
"""

import torch

from bench.tasks import IGNORED, Batch

SHARE = 0.15
"""Of the tokens that are hidden, as in BERT (Devlin et al. 2019, section 3.1)."""


def hidden(batch: Batch, seed: int) -> Batch:
    """A batch of classes, where tokens that are drawn from the seed are asked for instead; padding never is."""
    drawn = torch.rand(batch.tokens.shape, generator=torch.Generator().manual_seed(seed)) < SHARE
    is_asked = drawn if batch.mask is None else drawn & batch.mask
    return Batch(batch.tokens, batch.tokens.where(is_asked, IGNORED), batch.mask)
