"""States for decoding token by token: a cache of keys and values, a window, and sums over keys of constant size."""

import copy
import functools
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.decoding.tiles import rows_of_part
from attention_zoo.ops.feature_product.reference import divide_by_last, slices
from attention_zoo.ops.masking import power_, visible_rows

# Tokens of a prompt whose tensored features are in memory together.
ROWS = 128
# Feature vectors that are tensored at once: the indices of their pairs are kept, and would grow with the batch.
VECTORS = 256


class State:
    """What decoding remembers of a batch of sequences; methods update it in place, `copy.deepcopy` forks it.

    `length` counts the tokens so far, padding included; `dtype` is the dtype of the tokens; `made_by` is the mechanism
    and the seed of the instance that began it.
    """

    made_by: tuple[str, int] | None = None

    def __init__(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.batch_size, self.device, self.dtype = batch_size, device, dtype
        self.length = 0

    @torch.inference_mode(False)
    @torch.no_grad()
    def select(self, items: Tensor) -> None:
        """Keep these sequences of the batch, in this order; one may be kept several times: 1-d int64."""
        for name, part in vars(self).items():
            if isinstance(part, State):
                part.select(items)
            elif isinstance(part, Tensor):  # its first dimension is batch, or batch * heads
                of_item = len(part) // max(1, self.batch_size)
                by_item = part.unflatten(0, (self.batch_size, of_item)).index_select(0, items.to(part.device))
                setattr(self, name, by_item.flatten(0, 1))
        self.batch_size = len(items)

    @torch.inference_mode(False)
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Outside inference mode, as `step` writes into the tensors.
        made = self.__class__.__new__(self.__class__)
        memo[id(self)] = made
        vars(made).update(copy.deepcopy(vars(self), memo))
        return made

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors of the state, with their spare capacity."""
        parts = vars(self).values()
        return sum(x.nbytes if isinstance(x, Tensor) else x.num_bytes for x in parts if isinstance(x, Tensor | State))


class KeyValueCache(State):
    """All keys and values, and which of them are padding; `has_padding` says whether a padding mask was ever given.

    They have the dtype of the keys: `forward` multiplies in it, so wider copies would cost memory and add no accuracy.
    The capacity doubles when it is exhausted, up to `max_len` if given, so that a token costs one copy on average.
    """

    def __init__(
        self,
        batch_size: int,
        heads: int,
        key_dim: int,
        value_dim: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        capacity: int = 0,
        max_len: int | None = None,
    ) -> None:
        super().__init__(batch_size, device, dtype)
        self.max_len = max_len
        self.has_padding = False
        self._keys = torch.zeros(batch_size, heads, capacity, key_dim, device=device, dtype=dtype)
        self._values = torch.zeros(batch_size, heads, capacity, value_dim, device=device, dtype=dtype)
        self._padding = torch.zeros(batch_size, capacity, device=device, dtype=torch.bool)

    @property
    def keys(self) -> Tensor:
        """`(batch, heads, length, key_dim)`."""
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """`(batch, heads, length, value_dim)`."""
        return self._values[:, :, : self.length]

    @property
    def visible(self) -> Tensor:
        """`(batch, 1, 1, length)` bool, False at padding."""
        return ~self._padding[:, None, None, : self.length]

    def visible_to(self, queries: int) -> Tensor:
        """Which keys the last `queries` tokens may see: bool, broadcastable to `(batch, 1, queries, length)`."""
        if queries == 1:
            return self.visible
        positions = torch.arange(self.length - queries, self.length, device=self.device)
        return visible_rows(positions, self.length, True, self._padding[:, : self.length])

    def append(self, key: Tensor, value: Tensor, padding: Tensor | None = None) -> None:
        """Add tokens: `(batch, heads, tokens, dim)` keys and values, `(batch, tokens)` padding."""
        new = slice(self.length, self.length + key.shape[2])
        self._reserve(new.stop)
        self._keys[:, :, new], self._values[:, :, new] = key, value
        self.has_padding = self.has_padding or padding is not None
        if self.has_padding:  # nothing else was ever written there
            self._padding[:, new] = False if padding is None else padding
        self.length = new.stop

    def _reserve(self, needed: int) -> None:
        capacity = self._keys.shape[2]
        if needed <= capacity:
            return
        doubled = max(needed, 2 * capacity)
        spare = (doubled if self.max_len is None else min(doubled, self.max_len)) - capacity
        self._keys, self._values = (F.pad(x, (0, 0, 0, spare)) for x in (self._keys, self._values))
        self._padding = F.pad(self._padding, (0, spare))


class Window(State):
    """The keys and values that the next token may see, of its block or of a sliding window: at most `block_size`.

    Token i is in row `i % block_size`. In a sliding window it replaces the token that leaves the window; where the
    window is the token's own block, a new block begins with nothing visible.
    """

    def __init__(
        self,
        batch_size: int,
        heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        block_size: int,
        sliding: bool,
    ) -> None:
        super().__init__(batch_size, device, dtype)
        self.block_size, self.sliding = block_size, sliding
        self.keys = torch.zeros(batch_size, heads, block_size, head_dim, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.visible = torch.zeros(batch_size, block_size, device=device, dtype=torch.bool)

    @property
    def positions(self) -> Tensor:
        """The positions of the rows' tokens in the sequence, `(block_size,)`; negative for a row without a token."""
        rows = torch.arange(self.block_size, device=self.device)
        return self.length - 1 - (self.length - 1 - rows) % self.block_size

    def append(self, key: Tensor, value: Tensor, padding: Tensor | None = None) -> None:
        """Add tokens: `(batch, heads, tokens, head_dim)` keys and values, `(batch, tokens)` padding."""
        end = self.length + key.shape[2]
        first = end - self.block_size if self.sliding else (end - 1) // self.block_size * self.block_size
        if not self.sliding and first >= self.length:
            self.visible.fill_(False)
        kept = slice(max(first - self.length, 0), None)
        rows = torch.arange(self.length, end, device=self.device)[kept] % self.block_size
        self.keys[:, :, rows], self.values[:, :, rows] = key[:, :, kept], value[:, :, kept]
        self.visible[:, rows] = True if padding is None else ~padding[:, kept]
        self.length = end


class FeatureSums(State):
    """`sum_j [v_j, 1] phi(k_j)^{tensor degree}^T` in at least float32, `(batch * heads, head_dim + 1, width)`.

    The width is the number of features; in degree 2 the number of their pairs: of the equal products `phi_a phi_b` and
    `phi_b phi_a` one is kept, times sqrt(2). In 16 bits a long sum would stop growing. With `scaled` each key has a log
    scale t_j and the sums are `sum_j exp(t_j - T) ...`, relative to the largest so far, T, so that nothing overflows; T
    cancels in a ratio. With `split`, on a GPU, the values are in parts of `rows` dimensions, each followed by a row for
    its own normaliser (and each with its own T), so that a kernel's program needs one part only.
    """

    def __init__(
        self,
        batch_size: int,
        heads: int,
        features: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
        *,
        degree: int = 1,
        scaled: bool = False,
        split: bool = False,
    ) -> None:
        super().__init__(batch_size, device, dtype)
        precision = torch.promote_types(dtype, torch.float32)
        self._heads, self._features, self.degree = heads, features, degree
        width = features if degree == 1 else features * (features + 1) // 2
        is_split = split and launching.on_gpu(torch.empty(0, device=device))
        self.rows = rows_of_part(head_dim, width) if is_split else head_dim
        self.parts = head_dim // self.rows
        self.sums = torch.zeros(batch_size * heads, head_dim + self.parts, width, device=device, dtype=precision)
        largest = torch.full((batch_size, heads, self.parts), -torch.inf, device=device, dtype=precision)
        self.log_scale = largest if scaled else None

    def add(self, features: Tensor, value: Tensor, log_scale: Tensor | None = None) -> None:
        """Add tokens: `(batch, heads, tokens, features)`, zero at padding, and `(batch, heads, tokens, head_dim)`.

        `log_scale` is `(batch, heads, tokens)`; it must be given if the sums are `scaled`, and only then.
        """
        self.length += features.shape[2]
        features, value = features.to(self.sums.dtype), self._with_ones(value)
        if log_scale is not None:
            features = features * self._rescale(log_scale)[..., None]
        for some, their_values in zip(features.split(ROWS, 2), value.split(ROWS, 2), strict=True):
            self.sums.baddbmm_(their_values.flatten(0, 1).mT, self._expanded(some))

    def _with_ones(self, value: Tensor) -> Tensor:
        """The values, each part followed by a one: `(batch, heads, tokens, head_dim + parts)`."""
        parts = value.to(self.sums.dtype).unflatten(-1, (-1, self.rows))
        return F.pad(parts, (0, 1), value=1.0).flatten(-2)

    def _expanded(self, features: Tensor) -> Tensor:
        """The tensored features, `(batch * heads, tokens, width)`."""
        if self.degree == 1:
            return features.flatten(0, 1)
        indices = _pairs if type(features) is Tensor else _pairs.__wrapped__  # a compiler's tensors are not kept
        vectors = min(features.shape[:3].numel(), VECTORS)
        first, second, roots = indices(self._features, vectors, features.device, features.dtype)
        products = []
        for numbers in features.reshape(-1).split(vectors * self._features):
            if (count := len(numbers) // self._features * len(roots)) < len(first):
                first, second = first[:count], second[:count]
            products.append(numbers.index_select(0, first).mul_(numbers.index_select(0, second)))
        expanded = torch.cat(products) if products[1:] else products[0]
        return expanded.view(len(self.sums), features.shape[2], len(roots)).mul_(roots)

    def _rescale(self, log_scale: Tensor) -> Tensor:
        """Make the sums relative to the new largest scale; returns the new keys' scales relative to it."""
        assert self.log_scale is not None
        largest = torch.maximum(self.log_scale, log_scale.amax(-1, keepdim=True))
        self.sums *= (self.log_scale - largest).exp()[..., :1].reshape(-1, 1, 1)
        self.log_scale = largest
        return (log_scale - largest[..., :1]).exp()

    def extend(
        self,
        query_features: Tensor,
        key_features: Tensor,
        value: Tensor,
        log_scale: Tensor | None = None,
        bias: float = 0.0,
    ) -> Tensor:
        """`add` tokens; each gets `sum_j w_j v_j / (bias + sum_j w_j)` over j up to itself, zeros for 0 / 0."""
        outputs = []
        for rows in slices(value.shape[2], ROWS):
            queries, keys, values = (x[:, :, rows] for x in (query_features, key_features, value))
            scales = None if log_scale is None else log_scale[:, :, rows]
            outputs.append(self._divided(self._causal_product(queries, keys, values, scales), bias))
            self.add(keys, values, scales)
        return torch.cat(outputs, 2)

    def _causal_product(self, queries: Tensor, keys: Tensor, value: Tensor, log_scale: Tensor | None) -> Tensor:
        """`product` of each query with the sums, and with the new keys up to its own; relative to their scale."""
        queries, keys = queries.to(self.sums.dtype), keys.to(self.sums.dtype)
        summed = self.product(queries)
        weights = power_(queries @ keys.mT, self.degree)
        if log_scale is not None:
            assert self.log_scale is not None
            before = self.log_scale[..., :1]
            largest = torch.maximum(before, log_scale.cummax(-1).values)
            summed = summed * (before - largest).exp()[..., None, None]
            # Exponents of later keys may be positive, and would overflow before the causal mask hides them.
            weights = weights * (log_scale[..., None, :] - largest[..., None]).clamp(max=0).exp()
        return summed + (weights.tril() @ self._with_ones(value)).unflatten(-1, (self.parts, -1))

    def next(self, both: Tensor, value: Tensor, log_scale: Tensor | None = None, bias: float = 0.0) -> Tensor:
        """`extend` by one token.

        The features of its query and its key are `(batch, heads, 2, features)`, side by side.
        """
        self.length += 1
        expanded = self._expanded(both.to(self.sums.dtype))
        key, parts = expanded[:, 1:], value.reshape(len(self.sums) * self.parts, self.rows, 1).to(expanded.dtype)
        if log_scale is not None:
            key = key * self._rescale(log_scale).view(-1, 1, 1)
        column = F.pad(parts, (0, 0, 0, 1), value=1.0)
        self.sums.addcmul_(column.view(*self.sums.shape[:2], 1), key)
        return self._divided(self._of_queries(expanded[:, :1]), bias)

    def _divided(self, summed: Tensor, bias: float) -> Tensor:
        # Weights are never negative: with a bias the denominator is never zero.
        if bias == 0:
            divided = divide_by_last(summed, bias)
        else:
            values, total = summed.split((self.rows, 1), -1)
            divided = values / total.add_(bias)
        return divided.flatten(-2).to(self.dtype)

    def _of_queries(self, expanded: Tensor) -> Tensor:
        queries = expanded.shape[1]
        return torch.bmm(expanded, self.sums.mT).view(self.batch_size, self._heads, queries, self.parts, self.rows + 1)

    def product(self, features: Tensor) -> Tensor:
        """`sum_j <features, phi(k_j)>^degree [v_j, 1]`, `(batch, heads, queries, parts, rows + 1)`."""
        return self._of_queries(self._expanded(features.to(self.sums.dtype)))


@functools.lru_cache(maxsize=16)
def _pairs(features: int, vectors: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The indices of the first and second feature of each pair, vector by vector; the pairs' factors, 1 or sqrt(2)."""
    # Pair w is a feature and the one w // features after it, cyclically: a kernel needs no table.
    index = torch.arange(features * (features + 1) // 2, device=device)
    pairs = torch.stack([index, index + index // features]) % features
    first, second = (pairs[:, None] + features * torch.arange(vectors, device=device)[:, None]).flatten(1)
    return first, second, (2 - (pairs[0] == pairs[1]).to(dtype)).sqrt()


class BlockState(State):
    """Feature sums of the full blocks, and a cache of the current block for the exact weights inside it.

    The sums are not split, because no step both updates and reads them. The cache has room for a whole block from the
    start, so the size does not depend on the number of tokens.
    """

    def __init__(self, sums: FeatureSums, block: KeyValueCache, block_size: int) -> None:
        super().__init__(sums.batch_size, sums.device, sums.dtype)
        self.sums, self.block, self.block_size = sums, block, block_size

    def add(self, key: Tensor, features: Tensor, value: Tensor) -> None:
        """Add tokens: keys and features `(batch, heads, tokens, ...)`, both zero at padding."""
        both, done = torch.cat([key, features], -1), 0
        while done < key.shape[2]:
            # A full block stays in the cache until the next token: its last query needs the exact weights.
            if self.block.length == self.block_size:
                self.sums.add(self.block.keys[..., key.shape[-1] :], self.block.values)
                self.block.length = 0
            rows = slice(done, done + self.block_size - self.block.length)
            self.block.append(both[:, :, rows], value[:, :, rows])
            done = min(rows.stop, key.shape[2])
        self.length += key.shape[2]

    def extend(
        self,
        query: Tensor,
        key: Tensor,
        query_features: Tensor,
        key_features: Tensor,
        value: Tensor,
        degree: int,
        bias: float,
    ) -> Tensor:
        """`add` tokens, and `read` for each of them; the arguments are those of these two methods."""
        outputs, done, tokens = [], 0, key.shape[2]
        while done < tokens:
            # Up to the end of the block of the next token.
            rows = slice(done, min(tokens, done + self.block_size - self.length % self.block_size))
            self.add(key[:, :, rows], key_features[:, :, rows], value[:, :, rows])
            outputs.append(self.read(query[:, :, rows], query_features[:, :, rows], degree, bias))
            done = rows.stop
        return torch.cat(outputs, 2)

    def read(self, query: Tensor, features: Tensor, degree: int, bias: float) -> Tensor:
        """The outputs of the last tokens, all in the current block: exact weights inside it, features before it.

        Their query is `(batch, heads, tokens, head_dim)`, the features are `(batch, heads, tokens, features)`.
        """
        summed = self.sums.product(features).squeeze(-2)
        precision = summed.dtype
        keys = self.block.keys[..., : query.shape[-1]].to(precision)
        weights = ((query.to(precision) @ keys.mT) ** degree).tril(self.block.length - query.shape[2])
        summed = summed + weights @ F.pad(self.block.values.to(precision), (0, 1), value=1.0)
        return divide_by_last(summed, bias).to(self.dtype)
