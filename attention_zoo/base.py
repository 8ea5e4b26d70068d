"""The interface that every mechanism shares, and the registry that knows them all by name."""

from __future__ import annotations

import contextlib
import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from attention_zoo.checks import check_bool, check_choice, check_int, require
from attention_zoo.ops.decoding.states import KeyValueCache, State
from attention_zoo.ops.fused_softmax import refusal_of
from attention_zoo.ops.masking import visible_rows

IMPLEMENTATIONS = ("auto", "reference", "fused")
ALL = slice(None)
MAX_ENTRIES = 2**24  # of an attention matrix that `output_rows` holds at once


class UnsupportedError(Exception):
    """The mechanism cannot do what was asked of it; the message says why."""


class Executed(NamedTuple):
    """What a call ran: `impl` is `reference` or `fused`, `backend` the name of its kernel where it has one."""

    impl: str
    backend: str | None = None


# Powers, exponentials and sums over keys leave float16's range, of at most 65504.
WIDE_DTYPES = (torch.float64, torch.float32, torch.bfloat16)
# For weights between 0 and 1 of scores in range, and sums that are made in float32.
ALL_DTYPES = (*WIDE_DTYPES, torch.float16)


@dataclass(frozen=True)
class AttentionInfo:
    """What a mechanism is and what it can do.

    `approximates` names the exact function that its output estimates (`softmax`, `polynomial`), or is None for a
    function of its own. `exact`: it computes that very function, as a function of its own always does.
    `data_dependent`: which rows or columns are computed is decided by comparing numbers of the input, so that
    rounding may change whole rows. `cancels`: its weights are powers of sums that may vanish, so that where few
    keys are visible rounding may decide a row. `size` names the hyperparameter that a paper's "number of features
    d" means. `decode` says whether it has `init_state`, `prefill` and `step`. `approximately_causal`: with
    `causal=True` it attends to the past only, yet what it sees of the past depends on the future; `causal` is then
    False. `bidirectional`: it can be made with `causal=False` too. `package` is what an optional mechanism needs
    from the package index, `devices` where it runs.
    """

    name: str
    paper: str
    approximates: str | None
    causal: bool
    padding: bool
    cross: bool
    random: bool
    complexity: str
    exact: bool = False
    data_dependent: bool = False
    cancels: bool = False
    decode: bool = False
    approximately_causal: bool = False
    bidirectional: bool = True
    size: str | None = None
    package: str | None = None
    devices: tuple[str, ...] = ("cpu", "cuda")
    implementations: tuple[str, ...] = ("reference",)
    dtypes: tuple[torch.dtype, ...] = WIDE_DTYPES

    def __post_init__(self) -> None:
        if self.approximates is None:
            object.__setattr__(self, "exact", True)


class Attention(nn.Module):
    """Base class: `forward(query, key, value, key_padding_mask)` on `(batch, heads, seq_len, head_dim)` tensors.

    A subclass sets `info`, takes its hyperparameters as keyword-only arguments with defaults, passes the rest on
    as `**common`, and implements `_attend`, `_rows` (or `_matrix`) and `_flops`; for a fast path `_fused` and
    `_refusal`; to decode `_read`, and `_new_state` and `_absorb` where its state is no cache. Between two calls of
    `resample` an instance is a deterministic function of its inputs, random or not, but for dropout in training.

    Args:
        head_dim: h, the last dimension of query, key and value.
        num_heads: heads, the second dimension.
        causal: position i sees keys j <= i only.
        max_seq_len: the longest sequence it will be given; needed where parameters depend on it.
        seed: the only source of randomness, but for dropout, which follows torch's own (`DropsWeights`).
        impl: `reference` (readable ground truth), `fused` (the device's fast path) or `auto` (the fastest exact one):
            `fused` where it takes the input. `executed` says what the last forward, prefill or step ran.

    Raises:
        UnsupportedError: the mechanism cannot do what was asked (causal, implementation).
        ValueError: an argument is out of range; the message names it, its value and what is allowed.
    """

    info: ClassVar[AttentionInfo]
    # Asked for by the name of its kernel, `auto` refuses what that cannot take instead of running the reference.
    is_kernel: ClassVar[bool] = False

    def __init__(
        self,
        *,
        head_dim: int,
        num_heads: int,
        causal: bool = False,
        max_seq_len: int | None = None,
        seed: int = 0,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        self.head_dim = check_int("head_dim", head_dim)
        self.num_heads = check_int("num_heads", num_heads)
        self.causal = check_bool("causal", causal)
        self.max_seq_len = None if max_seq_len is None else check_int("max_seq_len", max_seq_len)
        self.seed = check_int("seed", seed, 0)
        self._placed = torch.empty(0)
        self._checked_step: object = None
        check_choice("impl", impl, IMPLEMENTATIONS)
        offered = self.info.implementations
        if impl != "auto" and impl not in offered:
            raise UnsupportedError(f"impl={impl}: {self.info.name} has {', '.join(offered)} only")
        self.impl = impl
        self.executed: Executed | None = None
        if causal and not (self.info.causal or self.info.approximately_causal):
            raise UnsupportedError(f"causal=true: {self.info.name} cannot hide the future from the past")
        if not (causal or self.info.bidirectional):
            raise UnsupportedError(f"causal=false: {self.info.name} sees the past only")

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            query: `(batch, heads, seq_len, head_dim)`; so are `key` and `value`, whose length may differ where
                `info.cross` says so.
            key_padding_mask: `(batch, seq_len of key)` bool, True at padding. A batch row of padding only gives
                zeros.

        Returns:
            A tensor shaped like `query`.

        Raises:
            UnsupportedError: `impl=fused` cannot take this input, or the mechanism cannot.
            ValueError: shapes, dtypes or devices do not fit.
        """
        self._check_inputs(query, key, value, key_padding_mask)
        return self._run(self._attend, self._fused, self._refusal, query, key, value, key_padding_mask)

    def _run(
        self,
        reference: Callable[..., Tensor],
        fused: Callable[..., tuple[Tensor, str]],
        refusal: Callable[..., str | None],
        *arguments: Any,
    ) -> Tensor:
        """Call the implementation that `impl` means for these arguments, and note which it was."""
        if self._chooses_fused(refusal, *arguments):
            out, backend = fused(*arguments)
            executed = Executed("fused", backend)
        else:
            out, executed = reference(*arguments), Executed("reference")
        if executed != self.executed:  # a module takes long to be written to
            self.executed = executed
        return out

    def _chooses_fused(self, refusal: Callable[..., str | None], *arguments: Any) -> bool:
        if self.impl == "reference" or "fused" not in self.info.implementations:
            return False
        reason = refusal(*arguments)
        if reason is not None and (self.impl == "fused" or self.is_kernel):
            raise UnsupportedError(f"impl={self.impl}: {reason}")
        return reason is None

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """`forward` by the reference."""
        raise NotImplementedError

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        """`forward` by the fast path of an input that `_refusal` lets pass, and the name of its kernel."""
        raise NotImplementedError

    def _refusal(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        """Why the fast path cannot take this input; None if it can. By default that is `ops.fused_softmax`."""
        return refusal_of(query)

    def _fuses_here(self, seq_len: int) -> bool:
        """Whether `forward` of such a sequence, unpadded, on the module's device and in its dtype, would run fused."""
        if self.impl != "auto" or self.is_kernel:
            return self.impl != "reference"
        probe = self._placed.new_empty(()).expand(1, self.num_heads, seq_len, self.head_dim)
        return self._chooses_fused(self._refusal, probe, probe, probe, None)

    # Inference tensors cannot be updated outside of inference mode: states are none, whatever the mode around.
    @torch.inference_mode(False)
    def init_state(
        self, batch_size: int, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> State:
        """The state of decoding before the first token, for queries, keys and values of this device and dtype.

        A state belongs to the instance that made it, and to its weights: `resample` makes it worthless.

        Raises:
            UnsupportedError: the mechanism has no recurrent form, or the instance is not causal.
        """
        self._check_decodes()
        # PyTorch's word for a device is not always that of its tensors: `cuda` is `cuda:0`.
        placed = torch.empty(0, device=device, dtype=dtype)
        return self._new_state(check_int("batch_size", batch_size), placed.device, dtype)

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """`forward` of a prompt, and the state after it; the state takes no part in autograd.

        The state remembers the padding: prompts of different lengths go together when padded on the left.

        Args:
            query: `(batch, heads, tokens, head_dim)`; so are `key` and `value`.
            key_padding_mask: bool `(batch, tokens)`, True at padding.
            state: of the tokens before, where the prompt goes on; it is updated in place and returned, and the output
                has no gradient.

        Raises:
            ValueError: shapes, dtypes or devices do not fit, also not those of the state, or the sequence is too long.
            UnsupportedError: as `init_state`.
        """
        self._check_decodes()
        if state is not None:
            self._check_inputs(query, key, value, key_padding_mask)
            self._check_fits(query, state)
            with torch.inference_mode(False), torch.no_grad():
                return self._extend(state, query, key, value, key_padding_mask), state
        out = self(query, key, value, key_padding_mask)
        with torch.inference_mode(False), torch.no_grad():
            state = self._new_state(len(key), key.device, key.dtype)
            self._absorb(state, key, value, key_padding_mask)
        return out, state

    def step(
        self, query: Tensor, key: Tensor, value: Tensor, state: State, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """One token in, one out: the row that the causal `forward` of the whole sequence would have added.

        Args:
            query: `(batch, heads, 1, head_dim)`; so are `key` and `value`.
            state: of the tokens before; it is updated in place and returned.
            key_padding_mask: bool `(batch, 1)`, True where the token is padding, whose output means nothing.

        Raises:
            ValueError: the token or the state has another shape, dtype or device, or the sequence is full.
            UnsupportedError: as `init_state`.
        """
        self._check_step(query, key, value, state)
        inference = torch.is_inference_mode_enabled()  # to leave it where it is not entered takes as long as a product
        with torch.inference_mode(False) if inference else contextlib.nullcontext(), torch.no_grad():
            if key_padding_mask is None:
                return self._next(state, query, key, value), state
            self._check_shapes(query, key, value, key_padding_mask)
            self._absorb(state, key, value, key_padding_mask)
            self.executed = Executed("reference")
            return self._read(state, query), state

    def _next(self, state: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Absorb a token, and the output that belongs to it."""
        self._absorb(state, key, value, None)
        return self._run(self._read, self._fused_read, self._read_refusal, state, query)

    def _extend(self, state: Any, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """Absorb several tokens, and the outputs that belong to them: here one token after the other."""
        outputs = []
        for i in range(query.shape[2]):
            token = slice(i, i + 1)
            own = None if padding is None else padding[:, token]
            outputs.append(self.step(query[:, :, token], key[:, :, token], value[:, :, token], state, own)[0])
        return torch.cat(outputs, 2)

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """An empty state; by default, and with `_absorb`, a cache of keys and values."""
        sizes = batch_size, self.num_heads, self.head_dim, self.head_dim
        return KeyValueCache(*sizes, device, dtype, max_len=self.max_seq_len)

    def _absorb(self, state: Any, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        """Add one or more tokens to the state."""
        state.append(key, value, padding)

    def _read(self, state: Any, query: Tensor) -> Tensor:
        """The output of the token that was absorbed last, by the reference."""
        raise NotImplementedError

    def _fused_read(self, state: Any, query: Tensor) -> tuple[Tensor, str]:
        """`_read` by the fast path, and the name of its kernel."""
        raise NotImplementedError

    def _read_refusal(self, state: Any, query: Tensor) -> str | None:
        """Why the fast path cannot read this state; None if it can."""
        return f"{self.info.name} has no kernel that decodes"

    def attention_matrix(
        self,
        query: Tensor,
        key: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        value: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> Tensor:
        """The dense matrix M with `forward(q, k, v) = M v`, without dropout: the oracle of tests, data for heat maps.

        Args:
            query: as in `forward`, but of any dtype and device; so are `key` and `key_padding_mask`.
            value: needed only where M depends on it (Skeinformer samples columns by the norms of their values).
            rows: positions of queries, 1-d int64; None is all of them. Where a row depends on its own query alone, m
                rows take the time and memory of an m x keys matrix.

        Returns:
            `(batch, heads, queries, keys)`, or `(batch, heads, len(rows), keys)`: the same as `[:, :, rows]` of it.

        Raises:
            UnsupportedError: the mechanism has no such matrix.
            ValueError: shapes do not fit, or `rows` are no positions of queries.
        """
        self._check_shapes(query, key, key if value is None else value, key_padding_mask)
        rows_or_all = ALL if rows is None else _check_indices("rows", rows, query.shape[2], query.device)
        return self._matrix(query, key, value, key_padding_mask, rows_or_all)

    def _matrix(
        self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Tensor | slice
    ) -> Tensor:
        """The `rows` of M; a mechanism whose rows depend on each other overrides it."""
        positions = torch.arange(query.shape[2], device=query.device)[rows]
        visible = visible_rows(positions, key.shape[2], self.causal, padding)
        return self._rows(query[:, :, rows], key, visible, positions)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """The rows of M of these queries, where row i depends on no query but the i-th.

        Args:
            query: `(batch, heads, rows, head_dim)`, the queries of the rows only.
            key: `(batch, heads, keys, head_dim)`.
            visible: bool, broadcastable to the result: the keys that are neither padding nor, if causal, the future.
            positions: `(rows,)`, where the queries stand in their sequence.
        """
        raise UnsupportedError(f"{self.info.name} has no attention matrix")

    def output_rows(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        positions: Tensor,
        items: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Some rows of the output of some items of a batch, from the attention matrix, without dropout.

        What another device, dtype or implementation is compared with: `forward` of the whole batch has these rows at
        `[items][:, :, positions]`. Memory is bounded; the rows are differentiable. Where there is no matrix they come
        from the reference.

        Args:
            query: of the items only, `(len(items), heads, seq_len, head_dim)`; so are `key` and `value`.
            positions: of the queries, 1-d int64.
            items: which ones of the batch these are, 1-d int64; None is all of it.
            batch_size: of the whole batch; needed with `items`.

        Returns:
            `(len(items), heads, len(positions), head_dim)`.

        Raises:
            ValueError: shapes do not fit, or `items` or `positions` are out of range.
        """
        self._check_shapes(query, key, value, None)
        whole = len(query) if batch_size is None else batch_size
        if items is None:
            items = torch.arange(len(query), device="cpu")
        items = _check_indices("items", items, whole, items.device)
        require("items", items.tolist(), len(items) == len(query), f"{len(query)} of them, one for each query")
        positions = _check_indices("positions", positions, query.shape[2], query.device)
        at_once = max(1, MAX_ENTRIES // (self.num_heads * key.shape[2]))
        rows = []
        for i, item in enumerate(items.tolist()):
            own = query[i : i + 1], key[i : i + 1], value[i : i + 1]
            pieces = [self._output_rows(*own, some, item, whole) for some in positions.split(at_once)]
            rows.append(torch.cat(pieces, 2))
        return torch.cat(rows)

    def _output_rows(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, item: int, batch_size: int
    ) -> Tensor:
        """The `rows` of one item; overridden where its draws depend on its place in a batch of `batch_size`."""
        try:
            return self._matrix(query, key, value, None, rows) @ value
        except UnsupportedError:
            return self._attend(query, key, value, None)[:, :, rows]

    @property
    def weight_degree(self) -> int:
        """The power of a score that a weight grows with: a rounded score is off by so many times its error."""
        return 1

    @property
    def telling_length(self) -> int:
        """The shortest sequence at which all parts of the mechanism are at work, so that each can be seen to fail.

        Longer than what is exact, whole or dense by size alone: for block algorithms several blocks and a part of one,
        with exact diagonal blocks or a sparse pattern enough of them that something is left out; more than twice the
        rows, columns or landmarks from which on an approximation is what it approximates. Here, of dense arithmetic,
        a vector or a tile and one number. It may be more than `max_seq_len`.
        """
        return 65

    def flops(self, batch: int, seq_len: int) -> int:
        """Analytic FLOPs of one forward pass over all heads; a multiply-add counts 2."""
        return batch * self.num_heads * self._flops(seq_len)

    def _flops(self, seq_len: int) -> int:
        """FLOPs of one head of one sequence."""
        raise NotImplementedError

    @torch.inference_mode(False)
    def resample(self, seed: int) -> None:
        """Redraw everything random (projections, samples, initial weights) from `seed`."""
        self.seed = check_int("seed", seed, 0)
        self._draw()

    def _draw(self) -> None:
        """Refill buffers and parameters that were drawn from `self.seed`."""

    def _generator(self) -> torch.Generator:
        """A generator of its own on the CPU, so that devices agree and global state stays untouched."""
        return torch.Generator("cpu").manual_seed(self.seed)

    @property
    def device(self) -> torch.device:
        """Where the module was moved to, whether it has parameters or not."""
        return self._placed.device

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any) -> Any:
        self._placed = fn(self._placed)
        return super()._apply(fn, *args)

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        self._check_shapes(query, key, value, padding)
        if query.device.type not in self.info.devices:
            runs_on = ", ".join(self.info.devices)
            raise UnsupportedError(f"{self.info.name} does not run on {query.device.type}; it runs on {runs_on}")
        if query.dtype not in self.info.dtypes:
            supported = ", ".join(str(dtype) for dtype in self.info.dtypes)
            raise UnsupportedError(f"{self.info.name} does not take {query.dtype}; it takes {supported}")

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        expected = f"(batch, {self.num_heads}, seq_len, {self.head_dim})"
        for name, tensor in (("query", query), ("key", key), ("value", value)):
            shape = tuple(tensor.shape)
            matches = len(shape) == 4 and shape[1] == self.num_heads and shape[3] == self.head_dim
            require(f"{name}.shape", shape, matches, expected)
            require(f"{name}.dtype", tensor.dtype, tensor.dtype == query.dtype, f"query's {query.dtype}")
            require(f"{name}.device", tensor.device, tensor.device == query.device, f"query's {query.device}")
        require("value.shape", tuple(value.shape), value.shape == key.shape, f"key's {tuple(key.shape)}")
        require("key.shape", tuple(key.shape), len(key) == len(query), f"of query's batch size {len(query)}")
        longest = max(query.shape[2], key.shape[2])
        limit = self.max_seq_len or longest
        require("seq_len", longest, 1 <= longest <= limit, f"between 1 and max_seq_len={limit}")
        if query.shape[2] != key.shape[2] and (self.causal or not self.info.cross):
            raise UnsupportedError(
                f"{self.info.name}{' (causal)' if self.causal else ''} needs as many keys as queries, "
                f"got {key.shape[2]} keys and {query.shape[2]} queries"
            )
        if padding is not None:
            if not self.info.padding:
                raise UnsupportedError(f"{self.info.name} does not support key_padding_mask")
            shape = (key.shape[0], key.shape[2])
            require("key_padding_mask.dtype", padding.dtype, padding.dtype == torch.bool, "torch.bool")
            require("key_padding_mask.shape", tuple(padding.shape), tuple(padding.shape) == shape, f"{shape}")

    def _check_decodes(self) -> None:
        if not self.info.decode:
            raise UnsupportedError(f"{self.info.name} cannot decode: it has no recurrent form")
        if not self.causal:
            raise UnsupportedError(f"causal=false: {self.info.name} decodes only with causal=true")

    def _check_step(self, query: Tensor, key: Tensor, value: Tensor, state: State) -> None:
        self._check_decodes()
        self._check_length(state.length + 1)
        tensors = ((x.shape, x.dtype, x.device) for x in (query, key, value))
        step = *tensors, state.batch_size, state.dtype, state.device
        if step != self._checked_step:  # a step is short: tokens of one kind are looked at once
            self._check_inputs(query, key, value, None)
            shape = tuple(query.shape)
            require("query.shape", shape, shape[2] == 1, f"one token, {(*shape[:2], 1, shape[3])}")
            self._check_fits(query, state)
            self._checked_step = step

    def _check_length(self, length: int) -> None:
        limit = self.max_seq_len
        require("seq_len", length, limit is None or length <= limit, f"between 1 and max_seq_len={limit}")

    def _check_fits(self, query: Tensor, state: State) -> None:
        shape = tuple(query.shape)
        self._check_length(state.length + shape[2])
        require("query.shape", shape, shape[0] == state.batch_size, f"of the state's batch size {state.batch_size}")
        require("query.dtype", query.dtype, query.dtype == state.dtype, f"the state's {state.dtype}")
        require("query.device", query.device, query.device == state.device, f"the state's {state.device}")


def blocks_and_a_part(block_size: int, blocks: int = 3) -> int:
    """The length of at least `blocks` blocks and an odd part of another, and of more than a vector."""
    return max(blocks, 64 // block_size) * block_size + (block_size // 2 | 1)


def _check_indices(name: str, indices: Tensor, length: int, device: torch.device) -> Tensor:
    require(f"{name}.dtype", indices.dtype, indices.dtype == torch.int64, "torch.int64")
    require(f"{name}.shape", tuple(indices.shape), indices.dim() == 1, "1-d")
    outside = [index for index in indices.tolist() if not 0 <= index < length]
    require(name, outside, not outside, f"between 0 and {length - 1}")
    return indices.to(device)


_REGISTRY: dict[str, type[Attention]] = {}
_COMMON = tuple(name for name in inspect.signature(Attention.__init__).parameters if name != "self")


def register(cls: type[Attention]) -> type[Attention]:
    """Class decorator: make a mechanism known by its `info.name`."""
    name = cls.info.name
    known = _REGISTRY.get(name, cls)
    if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"attention={name!r}: already registered by {known.__module__}.{known.__qualname__}")
    _REGISTRY[name] = cls
    return cls


def list_attentions() -> list[str]:
    """The names of all registered mechanisms, sorted."""
    return sorted(_REGISTRY)


def attention_class(name: str) -> type[Attention]:
    """The class behind `name`; raises `ValueError` that suggests near names."""
    if name not in _REGISTRY:
        near = difflib.get_close_matches(str(name), _REGISTRY, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(list_attentions())}"
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
    **hyperparameters_given: Any,
) -> Attention:
    """Make the mechanism `name`.

    For example `create("polysketch", head_dim=64, num_heads=12, causal=True, sketch_size=32)`.

    Args:
        name: of a mechanism; `list_attentions()` names them, `info(name)` says what each is and supports.
        head_dim: h, the last dimension of query, key and value.
        num_heads: heads, their second dimension.
        causal: position i sees keys j <= i only.
        max_seq_len: the longest sequence it will be given; needed where parameters depend on it (linformer).
        seed: the only source of randomness, for what a mechanism draws and for the parameters it begins with; dropout
            follows torch's own.
        impl: `reference`, the readable ground truth; `fused`, the device's fast path; `auto`, the fastest exact one.
        device: of its parameters and draws; None is where torch makes them.
        dtype: of its parameters; None is torch's default.
        **hyperparameters_given: of this mechanism alone; `hyperparameters(name)` gives them with their defaults.

    Returns:
        A module: `out = attention(query, key, value, key_padding_mask=None)`. Query, key, value and out are
        `(batch, num_heads, seq_len, head_dim)`, the mask `(batch, seq_len)` bool and True at padding. With
        `info(name).decode` it also has `prefill` and `step`, token by token.

    Raises:
        ValueError: unknown name or hyperparameter, or one out of range; the message says what is allowed.
        UnsupportedError: the mechanism cannot do what was asked (causal, implementation), with the reason.
    """
    cls = attention_class(name)
    known = hyperparameters(name)
    for key, given in hyperparameters_given.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            takes = ", ".join(known) or "none"
            raise ValueError(f"{key}={given!r}: unknown; {hint}{name} takes {takes}")
    # Whatever mode it is made in, its weights are to be trained.
    with torch.inference_mode(False), torch.device("cpu"):
        attention = cls(
            head_dim=head_dim,
            num_heads=num_heads,
            causal=causal,
            max_seq_len=max_seq_len,
            seed=seed,
            impl=impl,
            **hyperparameters_given,
        )
    with torch.inference_mode(False):
        return attention.to(device=torch.get_default_device() if device is None else device, dtype=dtype)
