"""The models that mechanisms are trained in. A closed registry: a config can name a model, never import one."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from attention_zoo import UnsupportedError
from bench.common.mechanism import build_attention
from bench.common.schema import named
from bench.models.encoder import Encoder, EncoderSettings
from bench.models.layers import Model, Settings, initialise
from bench.models.transformer import Transformer, TransformerSettings

_OF_SETTINGS: dict[type[Settings], Callable[..., Model]] = {TransformerSettings: Transformer, EncoderSettings: Encoder}
MODELS = {kind.name: kind for kind in _OF_SETTINGS}


def settings(values: Mapping[str, Any]) -> Settings:
    """The checked settings of the model that `values["name"]` names.

    Raises:
        ConfigError: an unknown name or key, or a value that is not allowed.
    """
    return named(MODELS, values, "model")


def build(config: Mapping[str, Any], vocabulary: int) -> Model:
    """The model of a resolved configuration, on the CPU in float32 (or on torch's default device: `meta` to count).

    Called with tokens `(batch, n)` int64, n at most `seq_len`, it gives logits `(batch, n, vocabulary)`; called with
    a mask `(batch, n)` bool too, it gives those where it is true, `(asked, vocabulary)`. Every layer has a mechanism of
    its own, the i-th with seed `config["seed"] + i`. Weights are a function of the seed alone.

    Raises:
        ConfigError: as `Settings.require_fits`.
        UnsupportedError: the mechanism cannot be part of such a model.
    """
    chosen = settings(config["model"])
    chosen.require_fits(config)
    # What torch's own layers fill themselves with is drawn from the global generator, and then replaced.
    with torch.random.fork_rng(devices=[]):
        attentions = [build_attention(dict(config), seed=config["seed"] + layer) for layer in range(chosen.layers)]
        if chosen.is_causal and not attentions[0].info.causal:
            what = "which keys of the past it sees depends on the future"
            raise UnsupportedError(f"attention={attentions[0].info.name}: {what}, no decoder may know it")
        model = _OF_SETTINGS[type(chosen)](chosen, attentions, vocabulary=vocabulary, seq_len=config["seq_len"])
    # Of 63 bits of their own: weights must not be the numbers that a mechanism draws from the same seed.
    seed = int.from_bytes(hashlib.sha256(f"weights:{config['seed']}".encode()).digest()[:8]) >> 1
    initialise(model, torch.Generator("cpu").manual_seed(seed))
    return model
