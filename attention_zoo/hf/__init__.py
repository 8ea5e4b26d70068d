"""Mechanisms in existing models, through the attention interface of transformers (tested with 5.23).

Call `register()`, then set `attn_implementation="polysketch"`; or call `attach(model, "polysketch")`, which also makes
the mechanisms of all layers at once and checks that the model calls them. If a model asks for something that a
mechanism cannot do, that is refused. Only `attach` sees that layers do not say that they are causal (Pegasus-X), which
then see later tokens. After `register`, `save_pretrained` and `from_pretrained` include the mechanisms.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

try:
    from transformers import AttentionInterface, AttentionMaskInterface
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "attention_zoo.hf: transformers is missing; pip install 'transformers>=5.23,<6'"
    ) from None

from attention_zoo.base import Attention
from attention_zoo.checks import check_int, check_seed, require
from attention_zoo.hf import cache, checkpoints
from attention_zoo.hf.implementation import _REGISTERED, Implementation
from attention_zoo.hf.masks import key_mask
from attention_zoo.info import UnsupportedError
from attention_zoo.registry import hyperparameters, info, list_attentions

__all__ = ["attach", "register"]

# transformers loads its own implementation for every name that contains one of these.
RESERVED = ("eager", "flash", "flex_attention", "paged", "sdpa")
PROBE = "attention_zoo_probe"


def register(
    name: str | None = None,
    *,
    attention: str | None = None,
    seed: int = 0,
    max_seq_len: int | None = None,
    **settings: Any,
) -> None:
    """Register a mechanism in transformers as `attn_implementation=name`; without a name, all of them by their names.

    `flash` is called `fused` there: transformers takes any name that contains "flash" for a FlashAttention package.
    The query is multiplied by `scaling sqrt(head_dim)`, so that a mechanism that divides its scores by sqrt(head_dim)
    has the model's scaling (the factor is 1 in most models; the layer norms of polynomial and polysketch undo it).

    A layer then makes its mechanism in its first forward pass. An optimizer that already exists would miss the
    mechanism's parameters, so if it has any, a first pass in training mode is refused: use `attach`.

    Args:
        name: an identifier; a variant with other hyperparameters needs another name. None registers all mechanisms
            that are not registered yet.
        attention: the mechanism; None is the one called `name`.
        seed: layer i draws from `seed + i`.
        max_seq_len: the longest sequence; None is the `max_position_embeddings` of the model's config.
        **settings: hyperparameters, except those that the model decides: `dropout`, and `scale` of a softmax.

    Raises:
        ValueError: the name is taken, or the mechanism or a hyperparameter is unknown.
    """
    checkpoints.install(_register_saved)
    cache.install()
    if name is None:
        alone = attention is None and not settings
        require("name", name, alone, "given where an attention or its hyperparameters are")
        for each in set(map(_interface_name, list_attentions())) - set(_REGISTERED):
            register(each, seed=seed, max_seq_len=max_seq_len)
        return
    name = name if attention else _interface_name(name)
    usable = name.isidentifier() and not any(word in name for word in RESERVED)
    require("name", name, usable, f"an identifier without {', '.join(RESERVED)}, which transformers keeps for its own")
    attention = attention or next((each for each in list_attentions() if _interface_name(each) == name), name)
    _check_hyperparameters(attention, settings)
    # A saved config returns tuples as lists.
    settings = {k: tuple(x) if isinstance(x, list) else x for k, x in settings.items()}
    wanted = Implementation(name, attention, check_seed(seed), max_seq_len, settings)
    if name not in _REGISTERED:
        require("name", name, name not in AttentionInterface(), "new: transformers has it already")
        _REGISTERED[name] = wanted
    known = _REGISTERED[name]
    meaning = f"{known.attention} {known.hyperparameters}, seed {known.seed}"
    variant = f"a variant has attention={known.attention!r} and a name of its own"
    require("name", name, known == wanted, f"new: it is {meaning}; {variant}")
    AttentionInterface.register(name, known)
    # Without a mask function of the same name, models silently drop their padding masks.
    AttentionMaskInterface.register(name, key_mask)


def attach(
    model: Any,
    name: str,
    *,
    layers: Sequence[int] | None = None,
    example: Mapping[str, Tensor] | None = None,
    **settings: Any,
) -> list[Attention]:
    """Replace the attention of all or some layers, and make the mechanisms before an optimizer collects parameters.

    One forward pass makes them and shows that they are called: a model without transformers' attention interface
    (GPT-Neo, BLOOM) only warns in `set_attn_implementation`, and keeps its attention. The mechanisms are submodules of
    the attention modules and part of the state_dict: attach before `load_state_dict`. A model from `from_pretrained`
    already has the mechanisms that were saved with it, and keeps them.

    Args:
        model: a `PreTrainedModel`, or a part of one. Only one with a head gets a config of its own.
        name: as in `register`, which is called with `settings` unless there are none and the name is known.
        layers: the attention modules, numbered from 0 in the order of their calls; the others keep their attention (for
            example a sliding window), also when the model's implementation is set again. None is all of them.
        example: arguments of the forward pass; None is a few tokens.
        **settings: further arguments of `register`.

    Returns:
        The mechanisms in the order of their calls; mechanism i draws from `seed + i`.

    Raises:
        UnsupportedError: the model does not call its attention through the interface, needs what the mechanism cannot
            do (for example a causal Linformer), hides the future from layers that do not say that they are causal, or
            comes from a checkpoint whose weights of `name` were not loaded.
    """
    name = name if settings.get("attention") else _interface_name(name)
    if settings or name not in _REGISTERED:
        register(name, **settings)
    implementation, called, inputs = _REGISTERED[name], dict[nn.Module, Attention](), example or _few_tokens(model)
    if getattr(model, "base_model", model) is not model:
        _with_its_own_config(model)
    modules: Sequence[Any] = () if layers is None else _chosen(model, layers, inputs)
    before = model.config._attn_implementation, [module.config for module in modules]
    implementation.called = called
    try:
        if layers is None:
            model.set_attn_implementation(name)
        for module in modules:
            module.config = copy.copy(module.config)
            module.config._attn_implementation = name
        _call(model, inputs)
        _require_called(model, called)
        with implementation.comparing():
            _call(model, inputs)
    except BaseException:
        model.set_attn_implementation(before[0])
        for module, config in zip(modules, before[1], strict=True):
            module.config = config
        raise
    finally:
        implementation.called = None
    for module, made in called.items():
        made.train(module.training)
    return list(called.values())


def _require_called(model: Any, called: Mapping[nn.Module, Attention]) -> None:
    if not called:
        kind = type(model).__name__
        raise UnsupportedError(f"{kind} does not call its attention through transformers' AttentionInterface")


def _with_its_own_config(model: Any) -> None:
    """Copy the config, which other models may have been made from: the name of the attention is written into it."""
    copies: dict[int, Any] = {}
    for part in model.modules():
        if hasattr(part, "config"):
            part.config = copy.deepcopy(part.config, copies)


def _chosen(model: Any, layers: Sequence[int], inputs: Mapping[str, Tensor]) -> list[nn.Module]:
    """The attention modules with these numbers, in the order of their calls."""
    called = dict[nn.Module, None]()
    configs = {id(part.config): part.config for part in model.modules() if hasattr(part, "config")}.values()
    before = [config._attn_implementation for config in configs]

    def note(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
        called[module] = None
        return AttentionInterface()["sdpa"](module, *arguments, **keywords)

    AttentionInterface.register(PROBE, note)
    AttentionMaskInterface.register(PROBE, AttentionMaskInterface()["sdpa"])
    try:
        for config in configs:
            config._attn_implementation = PROBE
        _call(model, inputs)
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation
    modules = list(called)
    known = len(set(layers)) == len(layers) > 0 and all(0 <= check_int("layers", i, 0) < len(modules) for i in layers)
    require("layers", list(layers), known, f"different numbers of attention modules, 0 to {len(modules) - 1}")
    return [modules[i] for i in sorted(layers)]


@torch.no_grad()
def _call(model: Any, inputs: Mapping[str, Tensor]) -> None:
    """A forward pass in evaluation mode; the modes of all modules are restored."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()(**inputs)
    finally:
        for module, mode in modes:
            module.training = mode


def _register_saved(name: str, *, seed: int, max_seq_len: int | None, **settings: Any) -> None:
    """Register a mechanism of a checkpoint; its layers have their own seeds and lengths, so these may differ here."""
    if name in _REGISTERED:
        seed, max_seq_len = _REGISTERED[name].seed, _REGISTERED[name].max_seq_len
    register(name, seed=seed, max_seq_len=max_seq_len, **settings)


def _interface_name(attention: str) -> str:
    """The name of a mechanism there, and any other name as it is."""
    return attention.replace("flash", "fused") if attention in list_attentions() else attention


def _check_hyperparameters(attention: str, settings: Mapping[str, Any]) -> None:
    known = hyperparameters(attention)
    unknown = sorted(settings.keys() - known.keys() - {"impl"})
    require("hyperparameters", unknown, not unknown, f"among {', '.join(known) or 'none'}")
    for key in ("dropout", "scale") if info(attention).approximates == "softmax" else ("dropout",):
        require(key, settings.get(key), key not in settings, "left out: the model decides it")


def _few_tokens(model: Any) -> dict[str, Tensor]:
    kind = type(model).__name__
    require("example", None, model.main_input_name == "input_ids", f"given: {kind} takes {model.main_input_name}")
    tokens = model.dummy_inputs["input_ids"].to(model.device)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return inputs | ({"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {})
