"""The attention function that a transformers model calls instead of its own."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionMaskInterface

from attention_zoo.base import Attention
from attention_zoo.dense import AttentionDropout
from attention_zoo.hf.masks import MARK, attend, key_mask, whole_mask
from attention_zoo.info import UnsupportedError
from attention_zoo.registry import attention_class, create, info
from attention_zoo.softmax import Softmax

# Arguments that add to the scores or choose keys: none of them may be ignored silently.
REFUSED = ("position_bias", "softcap", "s_aux", "sinks", "cache", "indices", "block_indices", "cu_seq_lens_q")


class Mechanisms(nn.ModuleDict):
    """The mechanisms of an attention module by name, and the settings that each name was registered with.

    `is_loaded`: they come from a checkpoint.
    """

    def __init__(self, is_loaded: bool = False) -> None:
        super().__init__()
        self.settings: dict[str, dict[str, Any]] = {}
        self.is_loaded = is_loaded


@dataclass
class Implementation:
    """A mechanism with its hyperparameters; its instances are in the model, submodules of the attention modules.

    During `attach`, `called` collects the model's attention modules in the order of their calls, and while
    `is_comparing`, whole masks are compared with the causal flags that the mechanisms were made with.
    """

    name: str
    attention: str
    seed: int
    max_seq_len: int | None
    hyperparameters: dict[str, Any]
    called: dict[nn.Module, Attention] | None = field(default=None, compare=False)
    is_comparing: bool = field(default=False, compare=False)

    @contextlib.contextmanager
    def comparing(self) -> Iterator[None]:
        """A layer may not say that it is causal, where a whole mask hides the future from it."""
        self.is_comparing = True
        AttentionMaskInterface.register(self.name, whole_mask)
        try:
            yield
        finally:
            AttentionMaskInterface.register(self.name, key_mask)
            self.is_comparing = False

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        is_causal: bool | None = None,
        sliding_window: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """Attend for the layer `module`.

        Args:
            module: the calling attention module.
            query: `(batch, heads, queries, head_dim)`.
            key: `(batch, groups, keys, head_dim)`; each group of query heads shares one head of keys and values.
            value: shaped like `key`.
            attention_mask: as `key_mask` made it, or as the user gave it.
            dropout: of the attention weights; 0 unless the module is training.
            scaling: factor of the scores; None is 1/sqrt(head_dim).
            is_causal: None takes it from the module.
            sliding_window: how many keys a query sees; refused if there are more keys.
            **kwargs: other arguments of the model; some are refused, none is used.

        Returns:
            The output, `(batch, queries, heads, head_dim)`, and no weights.
        """
        layer = getattr(key, MARK, None)
        keys = key.shape[2] + (layer.get_seq_length() if layer else 0)
        self._refuse(module, keys, sliding_window, kwargs)
        if value.shape[-1] != key.shape[-1]:
            raise UnsupportedError(f"head_dim: values have {value.shape[-1]}, keys {key.shape[-1]}; must be the same")
        if attention_mask is not None and attention_mask.ndim == 2:
            # A static cache returns keys for tokens to come, too.
            key, value = (tensor[:, :, : attention_mask.shape[1]] for tensor in (key, value))
        # Under autocast rotary embeddings make queries and keys float32, but not values.
        query, key = query.to(value.dtype), key.to(value.dtype)
        causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        if causal is None:
            raise UnsupportedError(f"is_causal: {type(module).__name__} does not say whether it is")
        attention = self._mechanism(module, query, bool(causal))
        self._set_dropout(attention, dropout)
        ratio = 1.0 if scaling is None else scaling * query.shape[-1] ** 0.5
        query = query if math.isclose(ratio, 1) else query * ratio
        groups = query.shape[1] // key.shape[1]
        key, value = (tensor.repeat_interleave(groups, 1) if groups > 1 else tensor for tensor in (key, value))
        out = (layer.attend if layer else attend)(attention, query, key, value, attention_mask)
        return out.transpose(1, 2).contiguous(), None

    def _refuse(self, module: nn.Module, keys: int, sliding_window: int | None, kwargs: dict[str, Any]) -> None:
        for name in REFUSED:
            if kwargs.get(name) is not None:
                raise UnsupportedError(f"{name}: {type(module).__name__} needs it, {self.attention} has no such thing")
        if sliding_window is not None and keys > sliding_window:
            raise UnsupportedError(f"sliding_window={sliding_window}: {self.attention} sees all {keys} keys")

    def _mechanism(self, module: nn.Module, query: Tensor, causal: bool) -> Attention:
        """The mechanism of the layer `module`, made at the first call."""
        made = getattr(module, "attention_zoo", None)
        if made is None:
            made = module.attention_zoo = Mechanisms()
        assert isinstance(made, Mechanisms)
        if self.name not in made:
            made[self.name] = self._create(module, query, causal)
            made.settings[self.name] = self.settings
        attention = made[self.name]
        assert isinstance(attention, Attention)
        # Some layers are causal where there is no mask: a whole one alone hides the future from them.
        if attention.causal != causal and not self.is_comparing:
            raise UnsupportedError(f"is_causal={causal}: {self.name} was made with {attention.causal} in this layer")
        if self.called is not None:
            self.called[module] = attention
        return attention

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `register` for this name."""
        common = {"attention": self.attention, "seed": self.seed, "max_seq_len": self.max_seq_len}
        return common | self.hyperparameters

    def _create(self, module: nn.Module, query: Tensor, causal: bool) -> Attention:
        index = getattr(module, "layer_idx", None) if self.called is None else len(self.called)
        index = None if index is not None and index < 0 else index  # as layers that share weights have
        if index is None and info(self.attention).random:
            kind, use = type(module).__name__, "use attention_zoo.hf.attach"
            raise UnsupportedError(f"layer_idx: {kind} has none, layers would share a seed; {use}")
        positions = getattr(getattr(module, "config", None), "max_position_embeddings", None)
        attention = create(
            self.attention,
            head_dim=query.shape[-1],
            num_heads=query.shape[1],
            causal=causal,
            max_seq_len=self.max_seq_len or positions,
            seed=self.seed + (index or 0),
            device=query.device,
            dtype=floating_dtype(module) or query.dtype,
            **self.hyperparameters,
        ).train(module.training)
        self._refuse_untrained(module, attention)
        return attention

    def _refuse_untrained(self, module: nn.Module, attention: Attention) -> None:
        """Refuse a new mechanism if the checkpoint's is expected, or if an existing optimizer would miss it."""
        made = module.attention_zoo
        assert isinstance(made, Mechanisms)
        is_listed = any(self.name in layer for layer in listed(getattr(module, "config", None)).values())
        if is_listed and attention.state_dict():
            raise UnsupportedError(
                f"{self.name}: the checkpoint's weights of it were not loaded; call attention_zoo.hf.register before "
                "from_pretrained, or delete config.attention_zoo for new weights"
            )
        if self.called is not None:
            return
        has_weights = any(weight.requires_grad for weight in attention.parameters())
        # A variant of a loaded mechanism may have no weights, but its own random buffers.
        is_variant = self.attention in (settings["attention"] for settings in made.settings.values())
        if made.is_loaded and (has_weights or (is_variant and attention.state_dict())):
            raise UnsupportedError(
                f"{self.name}: the checkpoint has {', '.join(made)}; use attention_zoo.hf.attach for another mechanism"
            )
        if module.training and has_weights:
            raise UnsupportedError(
                f"{self.attention} has parameters that an optimizer made before would miss; use attention_zoo.hf.attach"
            )

    def _set_dropout(self, attention: Attention, dropout: float) -> None:
        if isinstance(attention, AttentionDropout):
            attention.dropout = dropout
        elif dropout > 0:
            raise UnsupportedError(
                f"dropout={dropout}: {self.attention} drops no attention weights; set the model's to 0 "
                "(attention_probs_dropout_prob, attention_dropout or attn_pdrop in its config)"
            )


def floating_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype of a module's weights, ignoring quantized ones; None if it has no others."""
    return next((weight.dtype for weight in module.parameters() if weight.is_floating_point()), None)


def listed(config: Any) -> dict[str, dict[str, Any]]:
    """The mechanisms that a config lists and its model does not have (yet): by layer, then by name."""
    return getattr(config, "attention_zoo", None) or {}


_REGISTERED: dict[str, Implementation] = {}


def decodes_from_state(name: str | None) -> bool:
    """Whether layers with this `attn_implementation` decode from a state; softmax uses the keys of any cache."""
    if name not in _REGISTERED:
        return False
    attention = _REGISTERED[name].attention
    return info(attention).decode and not issubclass(attention_class(attention), Softmax)
