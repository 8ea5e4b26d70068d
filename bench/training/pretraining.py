"""Self-pretraining: a classifier first predicts masked tokens of its own training examples.

Amos, Berant and Gupta 2023, Never Train from Scratch (arXiv 2310.02980), section 3: this removes much of the
difference between mechanisms on Long Range Arena.
"""

import torch

from bench.tasks import IGNORED, Batch

SHARE = 0.15
"""Share of the tokens that are masked, as in BERT (Devlin et al. 2019, section 3.1)."""


def mask_tokens(batch: Batch, seed: int) -> Batch:
    """Turn a batch with classes into masked-token prediction: the seed decides which tokens, never padding."""
    drawn = torch.rand(batch.tokens.shape, generator=torch.Generator().manual_seed(seed)) < SHARE
    is_asked = drawn if batch.mask is None else drawn & batch.mask
    return Batch(batch.tokens, batch.tokens.where(is_asked, IGNORED), batch.mask)
