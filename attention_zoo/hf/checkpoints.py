"""Mechanisms in `save_pretrained` and `from_pretrained`.

transformers makes a model from its config alone, and drops weights for which the model has no parameter. So a saved
config lists the mechanisms, under `attention_zoo`, and they are made again before the weights are loaded. Between these
two steps transformers has a hook for quantizers only, so its methods that save and load are wrapped.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from attention_zoo.hf.implementation import Mechanisms, floating_dtype, listed
from attention_zoo.info import UnsupportedError
from attention_zoo.registry import create

# The arguments that differ between layers; the other arguments of a mechanism are those of `register`.
OF_A_LAYER = ("head_dim", "num_heads", "causal", "max_seq_len", "seed")


@functools.cache
def install(register: Callable[..., None]) -> None:
    """Make transformers' models save and load their mechanisms.

    Args:
        register: called as `register(name, **settings)` for each name that a config lists.
    """
    save, load = PreTrainedModel.save_pretrained, PreTrainedModel._load_pretrained_model

    @functools.wraps(save)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _listed_in_configs(self):
            return save(self, *args, **kwargs)

    @functools.wraps(load)
    def load_pretrained_model(model: Any, *args: Any, **kwargs: Any) -> Any:
        names = {name for part in _parts(model).values() for layer in listed(part.config).values() for name in layer}
        made = _make(model, register)
        info, *others = load(model, *args, **kwargs)
        _check(info, made, names)
        return info, *others

    PreTrainedModel.save_pretrained = save_pretrained  # type: ignore[method-assign]
    PreTrainedModel._load_pretrained_model = staticmethod(load_pretrained_model)  # type: ignore[method-assign]


def _parts(model: nn.Module) -> dict[str, Any]:
    """The `PreTrainedModel`s in `model` by their paths: itself, and those inside it."""
    return {path: part for path, part in model.named_modules() if isinstance(part, PreTrainedModel)}


@contextmanager
def _listed_in_configs(model: nn.Module) -> Iterator[None]:
    """Inside, each config lists its mechanisms: those of a layer are in the config of the innermost model around it.

    A layer's name is the class of that model and the layer's path in it: both are the same under any head.
    """
    parts = _parts(model)
    lists: dict[int, dict[str, Any]] = {id(part.config): {} for part in parts.values()}
    for path, made in model.named_modules():
        if isinstance(made, Mechanisms) and made:
            around = path
            while around not in parts:
                around = around.rpartition(".")[0]
            inside = path.removeprefix(around).strip(".").removesuffix("attention_zoo").strip(".")
            layer = f"{type(parts[around]).__name__}.{inside}"
            lists[id(parts[around].config)][layer] = {
                name: {key: getattr(attention, key) for key in OF_A_LAYER} | {"settings": made.settings[name]}
                for name, attention in made.items()
            }
    before = [(part.config, listed(part.config)) for part in parts.values()]
    try:
        for config, _ in before:
            _write(config, lists[id(config)])
        yield
    finally:
        for config, layers in before:
            _write(config, layers)


def _write(config: Any, layers: Mapping[str, Any]) -> None:
    config.attention_zoo = layers
    if not layers:
        del config.attention_zoo


def _make(model: nn.Module, register: Callable[..., None]) -> tuple[str, ...]:
    """Make the mechanisms that the configs list, and remove them from there; returns the prefixes of their weights.

    Layers that this model does not have, such as the encoder's in a decoder, remain listed.
    """
    made = []
    for path, part in _parts(model).items():
        kinds, modules = {kind.__name__ for kind in type(part).__mro__}, dict(part.named_modules())
        remaining = {}
        for layer, mechanisms in listed(part.config).items():
            kind, _, inside = layer.partition(".")
            if kind not in kinds or inside not in modules:
                remaining[layer] = mechanisms
                continue
            modules[inside].attention_zoo = Mechanisms(is_loaded=True)
            for name, arguments in mechanisms.items():
                _add(modules[inside], name, dict(arguments), register)
            made.append(".".join(filter(None, (path, inside, "attention_zoo."))))
        _write(part.config, remaining)
    return tuple(made)


def _add(module: Any, name: str, arguments: dict[str, Any], register: Callable[..., None]) -> None:
    settings = arguments.pop("settings")
    try:
        register(name, **settings)
    except ValueError as error:
        raise ValueError(f"{name}: the model was saved with {settings}, register that first; {error}") from None
    of_all = {key: value for key, value in settings.items() if key not in arguments}
    attention = create(of_all.pop("attention"), **arguments, **of_all, dtype=floating_dtype(module))
    module.attention_zoo.settings[name] = settings
    module.attention_zoo[name] = attention


def _check(info: Any, made: tuple[str, ...], names: set[str]) -> None:
    """Refuse a checkpoint and a config if one has mechanisms that the other does not have."""
    for key in sorted({*info.missing_keys, *(key for key, *_ in info.mismatched_keys)}):
        if key.startswith(made):
            raise UnsupportedError(
                f"{key}: the checkpoint has no such weights, though its config lists them; "
                "if it has none of mechanisms at all, delete attention_zoo from config.json"
            )
    for key in sorted(info.unexpected_keys):
        match = re.search(r"(?:^|\.)attention_zoo\.(\w+)\.", key)
        if match and match[1] not in names:
            raise UnsupportedError(
                f"{key}: the config does not list {match[1]}; load with the config of save_pretrained, or make the "
                "model, attach and load_state_dict"
            )
