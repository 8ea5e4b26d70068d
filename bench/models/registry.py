"""Which models there are, their settings, and what fits together. A closed registry; nothing here needs torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from bench.common.errors import ConfigError
from bench.common.schema import checked, setting


@dataclass
class TransformerSettings:
    """`model=transformer_...`: Transformer++, the decoder of PolySketchFormer."""

    is_causal: ClassVar[bool] = True

    layers: int = setting(12, minimum=1, maximum=1000)
    dropout: float = setting(0.0, minimum=0, maximum=1)  # of the outputs of attention and feed-forward layers
    activation_checkpointing: bool = False  # computes each block again in the backward pass instead of keeping it


@dataclass
class EncoderSettings:
    """`model=encoder`: the post-LN encoder of the thesis."""

    is_causal: ClassVar[bool] = False

    layers: int = setting(1, minimum=1, maximum=1000)


MODELS: dict[str, type[TransformerSettings] | type[EncoderSettings]] = {
    "transformer": TransformerSettings,
    "encoder": EncoderSettings,
}


def settings(values: Mapping[str, Any]) -> TransformerSettings | EncoderSettings:
    """The checked settings of the model that `values["name"]` names.

    Raises:
        ConfigError: an unknown name or key, or a value that is not allowed.
    """
    name = values.get("name")
    if not isinstance(name, str) or name not in MODELS:
        raise ConfigError(f"model.name={name!r}: must be one of {', '.join(MODELS)}")
    return checked(MODELS[name], {key: value for key, value in values.items() if key != "name"}, "model.")


def check(values: Mapping[str, Any]) -> dict[str, Any]:
    """The `model` settings of a configuration with their defaults, `name` among them.

    Raises:
        ConfigError: as `settings`.
    """
    return {"name": values.get("name"), **dataclasses.asdict(settings(values))}


def require_fits(config: Mapping[str, Any]) -> None:
    """Refuse a resolved configuration whose sizes, mask or mechanism's settings are none of its model.

    Raises:
        ConfigError: naming the key, its value and what is allowed.
    """
    name, given = config["model"]["name"], settings(config["model"])
    heads, head_dim = config["num_heads"], config["head_dim"]
    if config["causal"] != given.is_causal:
        raise ConfigError(f"causal={_word(config['causal'])}: must be {_word(given.is_causal)} with model.name={name}")
    if isinstance(given, TransformerSettings):
        _require_of_a_decoder(config, given)
    if heads * head_dim % 2:
        raise ConfigError(f"num_heads={heads}: num_heads * head_dim={heads * head_dim} must be even, sines and cosines")


def _require_of_a_decoder(config: Mapping[str, Any], given: TransformerSettings) -> None:
    heads, head_dim, redraw = config["num_heads"], config["head_dim"], config["attention"].get("redraw_interval")
    if head_dim % 2:
        raise ConfigError(f"head_dim={head_dim}: must be even, rotary positions turn pairs of coordinates")
    if heads * head_dim < 4:
        raise ConfigError(f"num_heads={heads}: num_heads * head_dim={heads * head_dim} must be at least 4")
    if given.activation_checkpointing and redraw is not None:
        raise ConfigError(
            f"model.activation_checkpointing=true: must be false with attention.redraw_interval={redraw}, "
            "which would count what is computed again as another forward pass"
        )


def _word(flag: bool) -> str:
    return "true" if flag else "false"
