"""The models that mechanisms are trained in. Torch is imported only where one is built: planning needs none."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bench.models.registry import MODELS, EncoderSettings, TransformerSettings, check, require_fits, settings

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "EncoderSettings", "TransformerSettings", "build", "check", "require_fits", "settings"]


def build(config: Mapping[str, Any], vocabulary: int) -> nn.Module:
    """The model of a resolved configuration, on the CPU in float32 (or on torch's default device: `meta` to count).

    Called with tokens `(batch, n)` int64, n at most `seq_len`, it gives logits `(batch, n, vocabulary)`; called with
    a mask `(batch, n)` bool too, it gives those where it is true, `(asked, vocabulary)`. Every layer has a mechanism of
    its own, the i-th with seed `config["seed"] + i`. Weights are a function of the seed alone.

    Raises:
        ConfigError: as `require_fits`.
        UnsupportedError: the mechanism cannot be part of such a model.
    """
    import torch

    from attention_zoo import UnsupportedError
    from bench.common.mechanism import build_attention
    from bench.models.encoder import Encoder
    from bench.models.initial import initialise
    from bench.models.transformer import Transformer

    require_fits(config)
    given = settings(config["model"])
    # What torch's own layers fill themselves with is drawn from the global generator, and then replaced.
    with torch.random.fork_rng(devices=[]):
        attentions = [build_attention(dict(config), seed=config["seed"] + layer) for layer in range(given.layers)]
        if given.is_causal and not attentions[0].info.causal:
            what = "which keys of the past it sees depends on the future"
            raise UnsupportedError(f"attention={attentions[0].info.name}: {what}, no decoder may know it")
        model: nn.Module
        if isinstance(given, TransformerSettings):
            model = Transformer(given, attentions, vocabulary=vocabulary, seq_len=config["seq_len"])
        else:
            model = Encoder(attentions, vocabulary=vocabulary, seq_len=config["seq_len"])
    initialise(model, torch.Generator("cpu").manual_seed(_weights_seed(config["seed"])))
    return model


def _weights_seed(seed: int) -> int:
    """63 bits of their own: weights must not be the numbers that a mechanism draws from the same seed."""
    return int.from_bytes(hashlib.sha256(f"weights:{seed}".encode()).digest()[:8]) >> 1
