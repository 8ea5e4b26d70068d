"""The interface that every mechanism shares."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attention_zoo.checks import check_bool, check_indices, check_int, check_seed, require
from attention_zoo.choice import ImplementationChoice
from attention_zoo.info import Executed, UnsupportedError
from attention_zoo.input_checks import InputChecks
from attention_zoo.ops.decoding.states import KeyValueCache, State
from attention_zoo.ops.fused_softmax import why_unsupported
from attention_zoo.ops.masking import visible_rows
from attention_zoo.ops.operators import product_dtype

ALL = slice(None)
Rows = Tensor | slice  # positions of rows of an attention matrix
MAX_ENTRIES = 2**24  # entries of an attention matrix that `output_rows` has in memory at once


class Attention(InputChecks, ImplementationChoice):
    """Base class: `forward(query, key, value, key_padding_mask)` on `(batch, heads, seq_len, head_dim)` tensors.

    A subclass sets `info`, takes its hyperparameters as keyword-only arguments with defaults, passes the rest on as
    `**common`, and implements `_attend`, `_rows` (or `_matrix`) and `_flops`. A fast path needs `_fused` and
    `_why_not_fused`; decoding needs `_read`, and `_new_state` and `_append` if its state is not a cache. Between two
    calls of `resample` an instance is a deterministic function of its inputs, except for dropout, and for draws that
    a hyperparameter asks for anew, in training.

    Args:
        head_dim: h, the last dimension of query, key and value.
        num_heads: heads, the second dimension.
        causal: position i sees keys j <= i only.
        max_seq_len: the longest sequence it will be given; needed where parameters depend on it.
        seed: the only source of randomness, except for dropout, which follows torch's own (`AttentionDropout`).
        impl: as in `create`; `executed` says which one the last forward, prefill or step ran.

    Raises:
        UnsupportedError: the mechanism cannot do what was asked (causal, implementation).
        ValueError: an argument is out of range; the message names it, its value and what is allowed.
    """

    settings: Mapping[str, Any] | None = None  # its hyperparameters, where `create` made it

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
        super().__init__(impl)
        self.head_dim = check_int("head_dim", head_dim)
        self.num_heads = check_int("num_heads", num_heads)
        self.causal = check_bool("causal", causal)
        self.max_seq_len = None if max_seq_len is None else check_int("max_seq_len", max_seq_len)
        self.seed = check_seed(seed)
        self._checked_step: object = None
        if causal and not (self.info.causal or self.info.approximately_causal):
            raise UnsupportedError(f"causal=true: {self.info.name} cannot hide the future from the past")
        if not (causal or self.info.bidirectional):
            raise UnsupportedError(f"causal=false: {self.info.name} sees the past only")

    def extra_repr(self) -> str:
        """The arguments it was created with, for `print(model)`."""
        common = {key: getattr(self, key) for key in ("head_dim", "num_heads", "causal", "seed", "impl")}
        common |= {} if self.max_seq_len is None else {"max_seq_len": self.max_seq_len}
        return ", ".join(f"{key}={value!r}" for key, value in {**common, **(self.settings or {})}.items())

    def forward(self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Attend; the output is shaped like `query`.

        Args:
            query: `(batch, heads, seq_len, head_dim)`; so are `key` and `value`, whose length may differ where
                `info.cross` says so.
            key_padding_mask: `(batch, seq_len of key)` bool, True at padding. A sequence of padding only gives zeros,
                as does one without keys.

        Raises:
            UnsupportedError: `impl=fused` cannot take this input, or the mechanism cannot.
            ValueError: shapes, dtypes or devices do not fit.
        """
        self._check_inputs(query, key, value, key_padding_mask)
        if query.numel() == 0 or key.numel() == 0:  # many ways of computing divide by sizes
            self.executed = Executed("reference")
            zeros = query.masked_fill(torch.ones_like(query, dtype=torch.bool), 0)
            return zeros + 0 * (key.sum() + value.sum())
        return self._run(self._attend, self._fused, self._why_not_fused, query, key, value, key_padding_mask)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """`forward` by the reference."""
        raise NotImplementedError

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        """`forward` by the fast path, and the name of its kernel."""
        raise NotImplementedError

    def _why_not_fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        """Why the fast path cannot take this input; None if it can. By default the fast path is `ops.fused_softmax`."""
        return why_unsupported(query)

    def _fuses_here(self, seq_len: int) -> bool:
        """Whether `forward` would run fused for this length without padding, on the module's device, in its dtype."""
        if self.impl != "auto" or self.is_kernel:
            return self.impl != "reference"
        probe = self._placed.new_empty(()).expand(1, self.num_heads, seq_len, self.head_dim)
        return self._chooses_fused(self._why_not_fused, probe, probe, probe, None)

    # Tensors made in inference mode cannot be updated outside of it, so states are made outside.
    @torch.inference_mode(False)
    def init_state(
        self, batch_size: int, *, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> State:
        """The state of decoding before the first token, for queries, keys and values of this device and dtype.

        Only the instance that made a state can use it, until its weights change or `resample` is called.

        Raises:
            UnsupportedError: the mechanism has no recurrent form, or the instance is not causal.
        """
        self._check_decodes()
        # A tensor's device may differ from the name given: `cuda` becomes `cuda:0`.
        placed = torch.empty(0, device=device, dtype=dtype)
        return self._begin(check_int("batch_size", batch_size), placed.device, dtype)

    def _begin(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        state = self._new_state(batch_size, device, dtype)
        state.made_by = self.info.name, self.seed
        return state

    def prefill(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """`forward` of a prompt, and the state after it; the state takes no part in autograd.

        The state remembers the padding: prompts of different lengths go together when padded on the left. What has
        blocks (`local` unless it slides, `polysketch` with `local`) counts them from the first position, padding
        included, so that padding on the left moves a prompt's tokens to other blocks.

        Args:
            query: `(batch, heads, tokens, head_dim)`; so are `key` and `value`.
            key_padding_mask: bool `(batch, tokens)`, True at padding.
            state: of the tokens before, if any. It is updated in place and returned; the output then has no gradient.

        Raises:
            ValueError: shapes, dtypes or devices do not fit each other or the state, the sequence is too long, or the
                state is of another mechanism or seed.
            UnsupportedError: as `init_state`.
        """
        self._check_decodes()
        if state is not None:
            self._check_inputs(query, key, value, key_padding_mask)
            self._check_fits(query, state)
            with torch.inference_mode(False), torch.no_grad():
                return self._continue(state, query, key, value, key_padding_mask), state
        out = self(query, key, value, key_padding_mask)
        with torch.inference_mode(False), torch.no_grad():
            state = self._begin(len(key), key.device, key.dtype)
            self._append(state, key, value, key_padding_mask)
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
            ValueError: the token or the state has another shape, dtype or device, the state is of another mechanism or
                seed, or the sequence is full.
            UnsupportedError: as `init_state`.
        """
        self._check_step(query, key, value, state)
        if key_padding_mask is not None:
            self._check_shapes(query, key, value, key_padding_mask)
        # To leave inference mode without being in it takes as long as a matrix product.
        leave = torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()
        with leave, torch.no_grad():
            return self._decode_step(state, query, key, value, key_padding_mask), state

    def _decode_step(self, state: Any, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """Append a token to the state, and compute its output."""
        kept = vars(state).copy()
        self._append(state, key, value, padding)
        try:
            return self._run(self._read, self._fused_read, self._why_no_fused_read, state, query)
        except UnsupportedError:  # what is refused is not in the state
            vars(state).update(kept)
            raise

    def _continue(self, state: Any, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """Append several tokens to the state, and compute their outputs; by default one token after the other."""
        outputs = []
        for i in range(query.shape[2]):
            token = slice(i, i + 1)
            mask = None if padding is None else padding[:, token]
            outputs.append(self.step(query[:, :, token], key[:, :, token], value[:, :, token], state, mask)[0])
        return torch.cat(outputs, 2)

    def _new_state(self, batch_size: int, device: torch.device, dtype: torch.dtype) -> State:
        """An empty state; by default a cache of keys and values, which `_append` fills."""
        sizes = batch_size, self.num_heads, self.head_dim, self.head_dim
        return KeyValueCache(*sizes, device, dtype, max_len=self.max_seq_len)

    def _append(self, state: Any, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        """Append one or more tokens to the state."""
        state.append(key, value, padding)

    def _read(self, state: Any, query: Tensor) -> Tensor:
        """The output of the token that was appended last, by the reference."""
        raise NotImplementedError

    def _fused_read(self, state: Any, query: Tensor) -> tuple[Tensor, str]:
        """`_read` by the fast path, and the name of its kernel."""
        raise NotImplementedError

    def _why_no_fused_read(self, state: Any, query: Tensor) -> str | None:
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
            rows: positions of queries, 1-d int64; None is all of them. If a row depends only on its own query, m rows
                take the time and memory of an m x keys matrix.

        Returns:
            `(batch, heads, queries, keys)`, or `(batch, heads, len(rows), keys)`: the same as `[:, :, rows]` of it.

        Raises:
            UnsupportedError: the mechanism has no such matrix.
            ValueError: shapes do not fit, or `rows` are not positions of queries.
        """
        self._check_shapes(query, key, key if value is None else value, key_padding_mask)
        rows_or_all = ALL if rows is None else check_indices("rows", rows, query.shape[2], query.device)
        return self._matrix(query, key, value, key_padding_mask, rows_or_all)

    def _matrix(self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Rows) -> Tensor:
        """The `rows` of M; a mechanism whose rows depend on each other overrides it."""
        positions = torch.arange(query.shape[2], device=query.device)[rows]
        visible = visible_rows(positions, key.shape[2], self.causal, padding)
        return self._rows(query[:, :, rows], key, visible, positions)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """The rows of M for these queries; for mechanisms whose row i depends on no query but the i-th.

        Args:
            query: `(batch, heads, rows, head_dim)`, the queries of the rows only.
            key: `(batch, heads, keys, head_dim)`.
            visible: bool, broadcastable to the result: keys that are neither padding nor, if causal, in the future.
            positions: `(rows,)`, the positions of the queries in their sequence.
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

        Other devices, dtypes and implementations are compared with them: `forward` of the whole batch has these rows
        at `[items][:, :, positions]`. Memory is bounded; the rows are differentiable. A mechanism without a matrix
        computes them by its reference.

        Args:
            query: of these items only, `(len(items), heads, seq_len, head_dim)`; so are `key` and `value`.
            positions: of the queries, 1-d int64.
            items: the indices of the items in the batch, 1-d int64; None is the whole batch.
            batch_size: of the whole batch; needed with `items`.

        Returns:
            `(len(items), heads, len(positions), head_dim)`.

        Raises:
            ValueError: shapes do not fit, or `items` or `positions` are out of range.
        """
        self._check_shapes(query, key, value, None)
        whole = len(query) if batch_size is None else batch_size
        items = torch.arange(len(query), device="cpu") if items is None else items
        items = check_indices("items", items, whole, items.device)
        require("items", items.tolist(), len(items) == len(query), f"{len(query)} of them, one for each query")
        positions = check_indices("positions", positions, query.shape[2], query.device)
        if not len(query):
            return query[:, :, positions]
        at_once = max(1, MAX_ENTRIES // max(1, self.num_heads * key.shape[2]))
        rows = []
        for i, item in enumerate(items.tolist()):
            own = query[i : i + 1], key[i : i + 1], value[i : i + 1]
            pieces = [self._output_rows(*own, some, item, whole) for some in positions.split(at_once)]
            rows.append(torch.cat(pieces, 2))
        return torch.cat(rows)

    def _output_rows(self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, item: int, batch: int) -> Tensor:
        """The `rows` of one item; overridden where its draws depend on its index in a batch of that size."""
        try:
            return self._matrix(query, key, value, None, rows) @ value
        except UnsupportedError:
            return self._attend(query, key, value, None)[:, :, rows]

    @property
    def weight_degree(self) -> int:
        """The power p of a score that a weight grows with: a score's relative error is p times as large in a weight."""
        return 1

    @property
    def min_test_length(self) -> int:
        """The shortest sequence that uses all parts of the mechanism, so that a test can see each of them fail.

        Shorter sequences may be exact or dense only because they are short. This one has several blocks and a part of
        one, and more than twice as many tokens as exact rows, columns or landmarks. It is odd, and longer than a
        vector. It may be longer than `max_seq_len`.
        """
        block_size, blocks = self._test_blocks()
        return max(blocks, 64 // block_size) * block_size + (block_size // 2 | 1)

    def _test_blocks(self) -> tuple[int, int]:
        """The block size of the mechanism, and how many blocks a test needs at least."""
        size = self.info.size
        return (1, 64) if size is None else (getattr(self, size), 2)

    def flops(self, batch: int, seq_len: int) -> int:
        """Analytic FLOPs of one forward pass over all heads; a multiply-add counts 2."""
        return check_int("batch", batch, 0) * self.num_heads * self._flops(check_int("seq_len", seq_len))

    def _flops(self, seq_len: int) -> int:
        """FLOPs of one head of one sequence."""
        raise NotImplementedError

    @torch.inference_mode(False)
    def resample(self, seed: int) -> None:
        """Redraw everything random (projections, samples, initial weights) from `seed`."""
        self.seed = check_seed(seed)
        self._draw()

    def _draw(self) -> None:
        """Redraw random buffers and parameters from `self.seed`, as `reset_parameters` does in PyTorch's modules."""

    def _generator(self) -> torch.Generator:
        """A new generator on the CPU, so that devices agree and torch's global state is neither read nor changed."""
        return torch.Generator("cpu").manual_seed(self.seed)

    def _check_decodes(self) -> None:
        if not self.info.decode:
            raise UnsupportedError(f"{self.info.name} cannot decode: it has no recurrent form")
        if not self.causal:
            raise UnsupportedError(f"causal=false: {self.info.name} decodes only with causal=true")

    def _check_step(self, query: Tensor, key: Tensor, value: Tensor, state: State) -> None:
        self._check_decodes()
        require("state", state, isinstance(state, State), "from prefill or init_state")
        self._check_length(state.length + 1)
        tensors = ((x.shape, x.dtype, x.device) for x in (query, key, value))
        step = *tensors, product_dtype(query), state.batch_size, state.dtype, state.device, state.made_by, self.seed
        if step != self._checked_step:  # a step is short, so tokens of one kind are checked only once
            self._check_inputs(query, key, value, None)
            shape = tuple(query.shape)
            require("query.shape", shape, shape[2] == 1, f"one token, {(*shape[:2], 1, shape[3])}")
            self._check_fits(query, state)
            self._checked_step = step

    def _check_fits(self, query: Tensor, state: State) -> None:
        self._check_length(state.length + query.shape[2])
        batch_size, shape = state.batch_size, tuple(query.shape)
        require("query.shape", shape, shape[0] == batch_size, f"of the state's batch size {batch_size}")
        require("query.dtype", query.dtype, query.dtype == state.dtype, f"the state's {state.dtype}")
        require("query.device", query.device, query.device == state.device, f"the state's {state.device}")
        own = self.info.name, self.seed
        require("state.made_by", state.made_by, state.made_by == own, f"this instance's mechanism and seed, {own}")
