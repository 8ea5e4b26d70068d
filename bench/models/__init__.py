"""The models that mechanisms are trained in. A closed registry: a config can name a model, never import one."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from attention_zoo import UnsupportedError
from bench.common.mechanism import SEEDS, build_attention
from bench.common.schema import named
from bench.models.classifier import BagOfTokensSettings, Classifier, ClassifierSettings, ConvolutionSettings
from bench.models.encoder import Encoder, EncoderSettings
from bench.models.layers import Settings, initialise
from bench.models.transformer import Transformer, TransformerSettings

_OF_SETTINGS: dict[type[Settings], Callable[..., nn.Module]] = {
    TransformerSettings: Transformer,
    EncoderSettings: Encoder,
    **dict.fromkeys((ClassifierSettings, BagOfTokensSettings, ConvolutionSettings), Classifier),
}
MODELS = {kind.name: kind for kind in _OF_SETTINGS}


def settings(values: Mapping[str, Any]) -> Settings:
    """The checked settings of the model `values["name"]`.

    Raises:
        ConfigError: an unknown name or key, or a value that is not allowed.
    """
    return named(MODELS, values, "model")


def build(config: Mapping[str, Any], vocabulary: int, classes: int | None = None, documents: int = 1) -> nn.Module:
    """The model of a resolved configuration, on the CPU in float32 (or on torch's default device, such as `meta`).

    Called with tokens `(batch, n)` int64, n at most `seq_len`, it returns logits `(batch, n, vocabulary)`; with a bool
    mask `(batch, n)` as well, only those where it is true, `(asked, vocabulary)`. With `classes`, and one or two
    `documents` per example, it is a `bench.models.classifier.Classifier`. Every layer has its own mechanism, the i-th
    with seed `config["seed"] + i`. The weights depend only on the seed.

    Raises:
        ConfigError: as in `Settings.require_fits` and `Settings.require_answers`.
        UnsupportedError: the mechanism cannot be part of this model.
    """
    chosen = settings(config["model"])
    chosen.require_fits(config)
    chosen.require_answers(classes)
    sizes: dict[str, Any] = {"vocabulary": vocabulary, "seq_len": config["seq_len"]}
    if chosen.classifies:
        sizes |= {"width": config["num_heads"] * config["head_dim"], "classes": classes, "documents": documents}
    # torch's layers initialise their weights from the global generator; these weights are replaced below.
    mechanisms = chosen.layers if chosen.has_attention else 0
    with torch.random.fork_rng(devices=[]):
        seeds = [(config["seed"] + layer) % SEEDS for layer in range(mechanisms)]
        attentions = [build_attention(dict(config), seed=seed) for seed in seeds]
        if chosen.is_causal and not attentions[0].info.causal:
            what = "which keys of the past it sees depends on the future"
            raise UnsupportedError(f"attention={attentions[0].info.name}: {what}, no decoder may know it")
        model = _OF_SETTINGS[type(chosen)](chosen, attentions, **sizes)
    # A derived 63-bit seed: weights must differ from the numbers that a mechanism draws with the same seed.
    seed = int.from_bytes(hashlib.sha256(f"weights:{config['seed']}".encode()).digest()[:8]) >> 1
    initialise(model, torch.Generator("cpu").manual_seed(seed))
    return model
