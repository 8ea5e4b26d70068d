"""The registry: mechanisms by name, and `create`, which makes one."""

import difflib
import inspect
import warnings
from typing import Any

import torch

from attention_zoo.base import Attention
from attention_zoo.checks import require
from attention_zoo.info import AttentionInfo

_REGISTRY: dict[str, type[Attention]] = {}
_COMMON = tuple(inspect.signature(Attention.__init__).parameters)


def register(cls: type[Attention]) -> type[Attention]:
    """Class decorator: make a mechanism known by its `info.name`."""
    name = cls.info.name
    known = _REGISTRY.get(name, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"attention={name!r}: already registered by {known.__module__}.{known.__qualname__}")
    exact = (None, "softmax", "polynomial")
    require("info.approximates", cls.info.approximates, cls.info.approximates in exact, "None, softmax or polynomial")
    _REGISTRY[name] = cls
    return cls


def list_attentions() -> list[str]:
    """The names of all registered mechanisms, sorted."""
    return sorted(_REGISTRY)


def attention_class(name: str) -> type[Attention]:
    """The class registered as `name`; an unknown name raises a `ValueError` that suggests similar names."""
    if name not in _REGISTRY:
        near = difflib.get_close_matches(str(name), _REGISTRY, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(list_attentions())}"
        if any(str(name).startswith(f"{known}_") for known in _REGISTRY):
            hint += "; longer names are presets of the benchmark, docs/zoo.md has their hyperparameters"
        raise ValueError(f"attention={name!r}: unknown; {hint}")
    return _REGISTRY[name]


def info(name: str) -> AttentionInfo:
    """What the mechanism `name` is and can do."""
    return attention_class(name).info


def hyperparameters(name: str) -> dict[str, Any]:
    """The hyperparameters of the mechanism `name` with their defaults."""
    parameters = inspect.signature(attention_class(name).__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in _COMMON}


def create(
    name: str,
    *,
    head_dim: int,
    num_heads: int,
    causal: bool = False,
    max_seq_len: int | None = None,
    seed: int = 0,
    impl: str = "auto",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **settings: Any,
) -> Attention:
    """Make the mechanism `name`.

    For example `create("polysketch", head_dim=64, num_heads=12, causal=True, sketch_size=32)`.

    Args:
        name: of a mechanism; `list_attentions()` names them, `info(name)` says what each is and supports.
        head_dim: h, the last dimension of query, key and value.
        num_heads: heads, their second dimension.
        causal: position i sees keys j <= i only. Where that holds only nearly (`info(name).approximately_causal`, for
            example of reformer), a warning says so: what comes later still changes which of them it sees.
        max_seq_len: the longest sequence it will be given; needed where parameters depend on it (linformer).
        seed: the only source of randomness, for what a mechanism draws and for the parameters it begins with; dropout
            follows torch's own.
        impl: `reference`, the readable ground truth; `fused`, the device's fast path; `auto`, the fastest exact one.
        device: of its parameters and draws; None is where torch makes them.
        dtype: of its parameters; None is torch's default dtype.
        **settings: hyperparameters of this mechanism; `hyperparameters(name)` gives them with their defaults.

    Returns:
        A module: `out = attention(query, key, value, key_padding_mask=None)`. Query, key, value and out are
        `(batch, num_heads, seq_len, head_dim)`, the mask `(batch, seq_len)` bool and True at padding. With
        `info(name).decode` it also has `prefill` and `step`, token by token.

    Raises:
        ValueError: unknown name or hyperparameter, or one out of range; the message says what is allowed.
        UnsupportedError: the mechanism cannot do what was asked (causal, implementation), with the reason.
    """
    cls, known = attention_class(name), hyperparameters(name)
    require("dtype", dtype, dtype is None or isinstance(dtype, torch.dtype), "a torch.dtype, such as torch.bfloat16")
    for key, value in settings.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ValueError(f"{key}={value!r}: unknown; {hint}{name} takes {', '.join(known) or 'none'}")
    if causal and not cls.info.causal and cls.info.approximately_causal:
        warnings.warn(f"{name}: nearly causal only, later tokens change earlier outputs: losses leak", stacklevel=2)
    common: dict[str, Any] = {"head_dim": head_dim, "num_heads": num_heads, "causal": causal}
    common |= {"max_seq_len": max_seq_len, "seed": seed, "impl": impl}
    # Outside inference mode, so that the weights can be trained.
    with torch.inference_mode(False):
        with torch.device("cpu"):
            attention = cls(**common, **settings)
        attention.settings = known | settings
        return attention.to(device=torch.get_default_device() if device is None else device, dtype=dtype)
