"""The weights that models begin with."""

from __future__ import annotations

import torch
from torch import nn

from attention_zoo import Attention

LOGIT_STD = 0.2
"""Of an untrained model: its loss begins at the logarithm of the vocabulary."""


def initialise(module: nn.Module, generator: torch.Generator) -> None:
    """Draw the weights of a model; its mechanisms have drawn their own, and norms stay as they are.

    As in the official code (flax's Dense and Embed): linear layers are LeCun normal without bias, embeddings have
    standard deviation 1/sqrt(width). Smaller ones, such as GPT-2's 0.02, drown in the positions that are added: two
    layers of width 64 then needed more than 800 steps instead of 200 to 300 to learn induction heads.
    """
    if isinstance(module, Attention):
        return
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=module.in_features**-0.5, generator=generator)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5, generator=generator)
    for child in module.children():
        initialise(child, generator)


def before_logits(norm: nn.LayerNorm) -> nn.LayerNorm:
    """The norm whose output meets the embeddings, so scaled that logits begin with `LOGIT_STD`."""
    nn.init.constant_(norm.weight, LOGIT_STD)
    return norm
