"""Decoding in models: a transformers cache that stores the state of each layer's mechanism instead of keys and values.

`generate` makes it automatically; your own loop passes `past_key_values=StateCache(model)`.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.generation import GenerationMixin

from attention_zoo.base import Attention
from attention_zoo.hf.implementation import decodes_from_state
from attention_zoo.hf.masks import MARK, key_padding, refuse_unless, visible_of
from attention_zoo.info import UnsupportedError
from attention_zoo.ops.decoding.states import State

# The names of the cache in `generate`: transformers 5.24 renamed it.
NAMES = ("cache", "past_key_values")
KEYS_AND_VALUES = (DynamicLayer, DynamicSlidingWindowLayer)
# The attribute of a mask that a layer has looked at: all layers of a model get the same one.
LOOKED_AT = "attention_zoo_looked_at"


class StateLayer(CacheLayerMixin):
    """The state of one layer; its size does not grow if the mechanism has a state of constant size."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.state: State | None = None
        self._is_new = False  # whether there are keys that no attention has added to the state
        self._padding: Tensor | None = None  # of the first tokens of the state, True at padding; of all others none is

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the mechanism makes the state."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return only the new keys and values, and mark the keys with this layer; `attend` adds them to the state."""
        if self._is_new:
            raise UnsupportedError("the model attends to other keys than it caches: generate with use_cache=False")
        self.is_initialized = self._is_new = True
        setattr(key_states, MARK, self)
        return key_states, value_states

    def attend(self, attention: Attention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Add the new tokens to the state, and return their outputs, `(batch, heads, tokens, head_dim)`.

        Args:
            attention: the layer's mechanism, one that decodes.
            query: of the new tokens, `(batch, heads, tokens, head_dim)`; so are `key` and `value`.
            mask: `(batch, seen)`, True at tokens, or `(batch, 1, tokens, seen)`, True where visible; None sees all.

        Raises:
            UnsupportedError: the mask is more than padding, or hides tokens that are in the state, or the keys are in
                the state already.
        """
        if not self._is_new:
            raise UnsupportedError("the model attends to the same keys twice: generate with use_cache=False")
        self._is_new = False
        tokens, seen = query.shape[2], self.get_seq_length()
        visible = None if mask is None else visible_of(mask)
        if visible is not None and self.state is not None:
            self._require_kept(visible[..., :-tokens], mask)
        padding = key_padding(None if visible is None else visible[..., -tokens:], causal=True)
        if self.state is not None and tokens == 1:
            # A step without a padding mask is faster.
            padding = None if padding is None or not padding.any() else padding
            out = attention.step(query, key, value, self.state, padding)[0]
        else:
            out, self.state = attention.prefill(query, key, value, padding, self.state)
        if padding is not None:
            self._padding = torch.cat([self._padding_of(seen, padding), padding], 1)
        return out

    def _padding_of(self, length: int, like: Tensor) -> Tensor:
        """What was padding when it was added to the state, `(batch, length)`."""
        known = like.new_zeros(len(like), 0) if self._padding is None else self._padding
        return F.pad(known, (0, length - known.shape[1]))

    def _require_kept(self, visible: Tensor, mask: Tensor | None) -> None:
        """Refuse to hide tokens that are in the state, which cannot forget them; a mask is looked at once."""
        if getattr(mask, LOOKED_AT, False):
            return
        hidden = ~visible if visible.dim() == 2 else ~visible.all(2)[:, 0]
        kept = hidden & ~self._padding_of(hidden.shape[1], hidden)
        refuse_unless(~kept.any(), "attention_mask: hides tokens that are in the state")
        if not torch.compiler.is_compiling():
            setattr(mask, LOOKED_AT, True)

    def get_seq_length(self) -> int:
        """The number of tokens seen, padding included."""
        return 0 if self.state is None else self.state.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """A mask covers all tokens seen, and starts at 0."""
        return self.get_seq_length() + query_length, 0

    def crop(self, max_length: int) -> None:
        """Refuse to forget the last tokens, as assisted generation asks."""
        raise UnsupportedError(
            "crop: a state cannot forget tokens; generate with use_cache=False, or without assistant_model and"
            " prompt_lookup_num_tokens"
        )

    def get_max_length(self) -> int:
        """-1: no limit."""
        return -1

    def reset(self) -> None:
        """Forget all tokens."""
        self.state, self._padding, self._is_new = None, None, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Choose sequences, as a beam search does."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these sequences, in this order."""
        if self.state is not None:
            self.state.select(indices)
        if self._padding is not None:
            self._padding = self._padding[indices.to(self._padding.device)]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sequence `repeats` times."""
        if self.state is not None:
            self.batch_select_indices(torch.arange(self.state.batch_size).repeat_interleave(repeats))


class StateCache(Cache):
    """A cache with a state for each layer whose mechanism decodes from one, and keys and values for other layers.

    Args:
        model: a model whose layers use mechanisms of the zoo.
    """

    def __init__(self, model: nn.Module) -> None:
        others = DynamicCache(config=model.config).layers  # type: ignore[arg-type]
        from_state = dict(_layers(model))
        length = max([len(others), *(index + 1 for index in from_state)], default=0)
        others += [DynamicLayer() for _ in range(length - len(others))]
        # Layers of another kind, such as Mamba's, have caches of their own.
        replaced = [from_state.get(i) and type(one) in KEYS_AND_VALUES for i, one in enumerate(others)]
        super().__init__([StateLayer() if is_state else one for is_state, one in zip(replaced, others, strict=True)])


def _layers(model: nn.Module) -> Iterator[tuple[int, bool]]:
    """The layer index of each attention module, and whether its mechanism decodes from a state."""
    for module in model.modules():
        index, config = getattr(module, "layer_idx", None), getattr(module, "config", None)
        if isinstance(index, int) and config is not None:
            yield index, decodes_from_state(getattr(config, "_attn_implementation", None))


@functools.cache
def install() -> None:
    """Make `generate` use a `StateCache` instead of its default cache if any layer decodes from a state."""
    prepare: Callable[..., Any] = GenerationMixin._prepare_cache_for_generation

    @functools.wraps(prepare)
    def prepare_states(
        self: Any, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        has_cache = any(model_kwargs.get(name) is not None for name in NAMES)
        prepared = prepare(self, generation_config, model_kwargs, *args, **kwargs)
        made = next((name for name in NAMES if type(model_kwargs.get(name)) is DynamicCache), None)
        wanted = not has_cache and not generation_config.is_assistant
        if made and wanted and any(from_state for _, from_state in _layers(self)):
            model_kwargs[made] = StateCache(self)
        return prepared

    GenerationMixin._prepare_cache_for_generation = prepare_states  # type: ignore[method-assign]
