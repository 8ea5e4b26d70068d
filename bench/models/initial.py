"""The weights that models begin with."""

from __future__ import annotations

import torch
from torch import nn

from attention_zoo import Attention

EMBEDDING_STD = 0.02


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of a model; its mechanisms have drawn their own, and norms begin as the identity.

    Linear layers: LeCun normal and no bias, as the official code's (flax's Dense). Embeddings: N(0, 0.02^2), GPT-2's,
    so that logits begin small: flax's 1/sqrt(width) would begin half a nat above the logarithm of the vocabulary.
    """
    if isinstance(module, Attention):
        return
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=EMBEDDING_STD, generator=generator)
    for child in module.children():
        initialise(child, generator)
