"""transformers' masks as a mechanism takes them: a key padding mask and a causal flag."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

from attention_zoo.base import Attention
from attention_zoo.info import UnsupportedError
from attention_zoo.ops.masking import visible_keys
from attention_zoo.softmax import Softmax

# The attribute of keys that names their cache layer: a model passes the keys to its attention, but not the cache.
MARK = "attention_zoo_layer"


def key_mask(
    *,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    mask_function: Any,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **common: Any,
) -> Tensor | None:
    """The mask function that transformers calls (`AttentionMaskInterface`), without the n x n mask if possible.

    Returns:
        None if there are as many keys as queries, and all are tokens; else `(batch, keys)` bool, True at tokens,
        without the empty places of a static cache; or, if there may be more than padding and causality,
        `(batch, 1, queries, keys)` bool, True where visible.

    Raises:
        UnsupportedError: a sliding window or a chunk is shorter than the sequence.
    """
    local_size = local_size or None  # a model without windows may ask for a mask of 0 that no layer uses
    if local_size is not None and kv_length > local_size:
        raise UnsupportedError(
            f"sliding_window={local_size}: is shorter than the {kv_length} keys, all of which are seen"
        )
    # If transformers insists on the whole mask, it may differ from the causal flag: `key_padding` compares them.
    # If it does not insist, a window as long as the sequence is the same as no window.
    causal = mask_function is causal_mask_function and (allow_is_causal_skip or q_length == 1)
    causal = causal or (local_size is not None and allow_is_causal_skip)
    bidirectional = mask_function is bidirectional_mask_function or local_size is not None
    bidirectional = bidirectional and allow_is_bidirectional_skip
    if common.get("kv_offset") or not (causal or bidirectional):
        given = {"q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "attention_mask": attention_mask}
        return sdpa_mask(**given, mask_function=mask_function, allow_is_causal_skip=False, **common)
    seen = int(q_offset) + q_length if causal else kv_length
    is_cached = causal and not q_length == seen == kv_length
    if attention_mask is None:
        return torch.ones(common["batch_size"], seen, dtype=torch.bool, device=common["device"]) if is_cached else None
    tokens = F.pad(attention_mask, (0, seen - attention_mask.shape[1]))
    # Compiled code cannot look at the values of a mask to see whether it is needed.
    return tokens if is_cached or torch.compiler.is_compiling() or not tokens.all() else None


def whole_mask(**given: Any) -> Tensor | None:
    """The mask function of `attach`, which compares what a model hides with the causal flags of its layers.

    Raises:
        UnsupportedError: a causal mask of one token, which hides nothing.
    """
    if given["q_length"] == given["kv_length"] == 1 and given["mask_function"] is not bidirectional_mask_function:
        raise UnsupportedError("example: has one token where a mask is causal; must have two, to see what it hides")
    may_skip = given["q_length"] != given["kv_length"]
    return key_mask(**given | {"allow_is_causal_skip": may_skip, "allow_is_bidirectional_skip": may_skip})


def attend(attention: Attention, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attend, `(batch, heads, seq_len, head_dim)`, with a mask from `key_mask`.

    Raises:
        UnsupportedError: the mask is more than padding; or the keys come from a cache, and this is not softmax.
    """
    queries, keys = query.shape[2], key.shape[2]
    if mask is not None:
        mask = visible_of(mask)
        mask = mask if mask.ndim == 2 else mask.expand(len(query), 1, queries, keys)
    if not attention.causal or queries == keys:
        return attention(query, key, value, key_padding(mask, attention.causal))
    numbers = f"{keys} keys for {queries} queries"
    if not isinstance(attention, Softmax):
        raise UnsupportedError(f"{numbers}: {attention.info.name} cannot go on from cached keys; pass use_cache=False")
    if mask is None:
        if queries > 1:
            raise UnsupportedError(f"{numbers}: without a mask it is open which keys each of them sees")
        mask = torch.ones(len(query), keys, dtype=torch.bool, device=query.device)
    visible = mask[:, 0] if mask.ndim == 4 else mask[:, None] & mask.new_ones(queries, keys).tril(keys - queries)
    if queries > 1:
        return attention.attend_visible(query, key, value, visible[:, None])
    # One query that does not see a key is as if that were padding.
    single = copy.copy(attention)
    single.causal = False
    return single(query, key, value, None if visible.all() else ~visible[:, 0])


def key_padding(mask: Tensor | None, causal: bool) -> Tensor | None:
    """The `(batch, keys)` padding, True at padding, that with the causal flag is equivalent to `mask`.

    Raises:
        UnsupportedError: there is none, for example because sequences are packed, or blocks see each other.
        RuntimeError: the same in compiled code, which finds out while it runs.
    """
    if mask is None or mask.ndim == 2:
        return None if mask is None else ~mask
    padding = ~mask.any(2)[:, 0]
    queries, keys = mask.shape[2:]
    same = visible_keys(queries, keys, causal, padding, mask.device) == mask
    refuse_unless(same.all(), f"attention_mask: is more than padding of keys with is_causal={causal}")
    return padding if torch.compiler.is_compiling() or padding.any() else None


def visible_of(mask: Tensor) -> Tensor:
    """A mask as bool, True where visible; a float mask of four dimensions is a bias that is added to the scores.

    Raises:
        UnsupportedError: it differs between heads, or does more than hide keys.
        RuntimeError: it does more than hide keys, in compiled code.
    """
    if mask.ndim == 2:
        return mask.bool()
    if mask.shape[1] != 1:
        raise UnsupportedError("attention_mask: differs between heads")
    if mask.dtype == torch.bool:
        return mask
    hides = (mask == 0) | (mask <= torch.finfo(mask.dtype).min / 2)
    refuse_unless(hides.all(), "attention_mask: adds numbers to the scores")
    return mask == 0


def refuse_unless(holds: Tensor, message: str) -> None:
    """Refuse if `holds` is false; a compiled graph cannot branch on its value, but can assert it."""
    if torch.compiler.is_compiling():
        torch._assert_async(holds, message)
    elif not holds:
        raise UnsupportedError(message)
