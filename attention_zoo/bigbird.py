"""Big Bird's block-sparse attention: Zaheer et al. 2020, Big Bird: Transformers for Longer Sequences, appendix D."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attention_zoo.checks import check_int
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.fused_softmax import MOST_HEADS, attend, hidden_by
from attention_zoo.ops.masking import masked_softmax, visible_keys
from attention_zoo.registry import register
from attention_zoo.sampled import SampledAttention

FIXED_BLOCKS = 5  # the first, the last, and the window of three
GATHERED = 2**19  # elements of keys that are copied together on a CPU


@register
class BigBird(SampledAttention):
    """Softmax over the first and last block of keys, the query's own block and its two neighbours, and random blocks.

    Queries of the first and last block see all keys (the paper's internal transformer construction), so there is no
    causal form. The random blocks are drawn for each head and block of queries, uniformly and without replacement from
    the blocks that it does not see anyway; all of these if they are fewer. They follow from the seed and the number of
    blocks, in training and evaluation alike. Up to four blocks this is softmax attention. The last block may be short.

    The released codes draw random blocks from the first 1024 (or (2 r + 5) w) tokens only, and some rows may draw a
    block of their window, whose keys then count twice. In evaluation transformers replaces all random blocks by the
    first block, whose keys then count 1 + r times.

    Args:
        block_size: w, the tokens of a block.
        num_random_blocks: r, random blocks for each block of queries; may be 0.
    """

    info = AttentionInfo(
        name="bigbird",
        paper="Zaheer et al. 2020, section 2 and appendix D",
        approximates="softmax",
        padding=True,
        random=True,
        complexity="O(n w (5 + r) h)",
        implementations=("reference", "fused"),
    )

    def __init__(self, *, block_size: int = 64, num_random_blocks: int = 3, **common: Any) -> None:
        super().__init__(**common)
        self.block_size = check_int("block_size", block_size)
        self.num_random_blocks = check_int("num_random_blocks", num_random_blocks, 0)

    def _draw(self) -> None:
        super()._draw()
        self._cached_blocks: Tensor | None = None

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        n, w = query.shape[2], self.block_size
        query = query * self.head_dim**-0.5
        visible = visible_keys(n, n, False, padding, key.device)
        # Query blocks between the first and the last are whole; with one block or two there are none.
        last = max(self._num_blocks(n) - 1, 1) * w
        edges = torch.cat([query[:, :, :w], query[:, :, last:]], dim=2)
        edges = masked_softmax(edges @ key.mT, visible) @ value
        middle = self._attend_middle(query[:, :, w:last].unflatten(2, (-1, w)), key, value, padding)
        return torch.cat([edges[:, :, :w], middle.flatten(2, 3), edges[:, :, w:]], dim=2)

    def _attend_middle(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """Attention of the blocks `(batch, heads, blocks - 2, w, h)` of scaled queries to their key blocks."""
        seen = self.key_blocks(self._num_blocks(key.shape[2]), key.device)
        heads = torch.arange(self.num_heads, device=key.device)[:, None, None]
        gathered = (self._by_block(x)[:, heads, seen].unflatten(4, (self.block_size, -1)) for x in (key, value))
        keys, values = (x.flatten(3, 4) for x in gathered)
        visible = ~self._hidden(seen, key.shape[2], padding)[:, :, :, None]
        return masked_softmax(query @ keys.mT, visible) @ values

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        n, w, scale = query.shape[2], self.block_size, self.head_dim**-0.5
        last = max(self._num_blocks(n) - 1, 1) * w
        edges = torch.cat([query[:, :, :w], query[:, :, last:]], dim=2)
        out, _, backend = attend(edges, key, value, scale=scale, hidden=hidden_by(padding))
        if last == w:
            return out, backend
        middle = self._fused_middle(query[:, :, w:last], key, value, padding)
        return torch.cat([out[:, :, :w], middle, out[:, :, w:]], 2), backend

    def _fused_middle(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """Attention of the queries of the middle blocks, with each block as a head."""
        batch, h = len(query), self.head_dim
        seen = self.key_blocks(self._num_blocks(key.shape[2]), key.device)
        hidden = self._hidden(seen, key.shape[2], padding).flatten(1, 2)[:, :, None]
        queries = query.reshape(batch, -1, self.block_size, h)
        keys, values = (self._by_block(x).flatten(1, 2) for x in (key, value))
        first = torch.arange(self.num_heads, device=key.device)[:, None, None] * self._num_blocks(key.shape[2])
        seen = (first + seen).flatten(0, 1)
        # As many blocks at a time as stay in the cache, because the keys that they see are copied together.
        copied = batch * seen.shape[1] * self.block_size * h
        size = max(1, GATHERED // copied) if key.device.type == "cpu" else MOST_HEADS
        outs = []
        for start in range(0, len(seen), size):
            some = slice(start, start + size)
            near = [
                x.index_select(1, seen[some].flatten()).view(batch, -1, seen.shape[1] * self.block_size, h)
                for x in (keys, values)
            ]
            outs.append(attend(queries[:, some], *near, scale=h**-0.5, hidden=hidden[:, some]).out)
        return torch.cat(outs, 1).view_as(query)

    def _by_block(self, x: Tensor) -> Tensor:
        """`(batch, heads, n, h)` to one block per row, `(batch, heads, blocks, w h)`, the last padded with zeros."""
        w = self.block_size
        return functional.pad(x, (0, 0, 0, -x.shape[2] % w)).unflatten(2, (-1, w)).flatten(3)

    def _hidden(self, seen: Tensor, n: int, padding: Tensor | None) -> Tensor:
        """Which keys of the blocks `seen` are hidden or repeated, `(batch or 1, heads, blocks - 2, (5 + r) w)`."""
        w = self.block_size
        positions = (seen[..., None] * w + torch.arange(w, device=seen.device)).flatten(2)
        repeated = seen == 0
        repeated[..., 0] = False
        hidden = (repeated.repeat_interleave(w, dim=2) | (positions >= n))[None]
        return hidden if padding is None else hidden | padding[:, positions.clamp_max(n - 1)]

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """Softmax over the keys of the blocks that a query sees."""
        blocks, device = self._num_blocks(key.shape[2]), key.device
        row = torch.arange(blocks, device=device)
        is_edge = (row == 0) | (row == blocks - 1)
        seen = ((row[:, None] - row).abs() <= 1) | is_edge | is_edge[:, None]
        seen = seen.repeat(self.num_heads, 1, 1)
        # A missing random block is 0, the first block, which every row sees anyway.
        seen[:, 1:-1].scatter_(2, self.key_blocks(blocks, device)[..., FIXED_BLOCKS:], True)
        block = torch.arange(key.shape[2], device=device) // self.block_size
        scores = (query * self.head_dim**-0.5) @ key.mT
        return masked_softmax(scores, visible & seen[:, block[positions]][:, :, block])

    def key_blocks(self, num_blocks: int, device: torch.device | None = None) -> Tensor:
        """The key blocks that the query blocks 1 to `num_blocks - 2` see, `(heads, num_blocks - 2, 5 + r)`.

        The order is: the first, the last, the previous, its own, the next, r random ones. A block that would be
        repeated is 0, and so is a random block that does not exist.
        """
        rows = max(num_blocks - 2, 0)
        device = device or torch.device("cpu")
        cached = self._cached_blocks
        if cached is None or cached.shape[1] != rows or cached.device != device:
            with torch.inference_mode(False):  # a tensor made in inference mode cannot be used in training
                cached = self._cached_blocks = self._drawn_key_blocks(rows).to(device)
        return cached

    def _drawn_key_blocks(self, rows: int) -> Tensor:
        row = torch.arange(1, rows + 1, device="cpu")[:, None]
        last = torch.full_like(row, rows + 1)
        following = (row + 1).masked_fill(row == rows, 0)
        fixed = torch.cat([torch.zeros_like(row), last, row - 1, row, following], dim=1)
        noise = self._noise((rows, self.num_heads, self.num_random_blocks), torch.device("cpu"))
        # The candidates, in order, are the blocks 1 to row - 2, `before` in number, and the blocks from row + 2 on.
        before = (row - 2).clamp_min(0)
        rank = draw_distinct(before + (rows - 1 - row).clamp_min(0), noise.transpose(0, 1))
        candidate = torch.where(rank < before, 1 + rank, row + 2 + rank - before)
        return torch.cat([fixed.expand(self.num_heads, -1, -1), candidate.masked_fill(rank < 0, 0)], dim=2)

    def _num_blocks(self, seq_len: int) -> int:
        return -(-seq_len // self.block_size)

    def _test_blocks(self) -> tuple[int, int]:
        return self.block_size, FIXED_BLOCKS + self.num_random_blocks + 2

    def _flops(self, seq_len: int) -> int:
        """Scores and weighted values: all keys for the first and last block, (5 + r) w for each other query."""
        w, blocks = self.block_size, self._num_blocks(seq_len)
        middle = max(blocks - 2, 0) * w
        entries = (seq_len - middle) * seq_len + middle * (FIXED_BLOCKS + self.num_random_blocks) * w
        return 4 * entries * self.head_dim


def draw_distinct(total: Tensor, noise: Tensor) -> Tensor:
    """Draw r distinct integers below `total`, uniformly; if `total` is less than r, the surplus ones are -1.

    Floyd's algorithm (Bentley and Floyd 1987, A sample of brilliance): linear in r; a permutation is linear in `total`.

    Args:
        total: integers, `(..., 1)`.
        noise: `(..., r)`, uniform in [0, 1).

    Returns:
        Shaped like `noise`.
    """
    r = noise.shape[-1]
    drawn = torch.full(noise.shape, -1, device=noise.device)
    for i in range(r):
        highest = total[..., 0] - r + i
        pick = (noise[..., i] * (highest + 1)).long()
        is_taken = (drawn == pick[..., None]).any(-1)
        drawn[..., i] = torch.where(is_taken, highest, pick).masked_fill(highest < 0, -1)
    return drawn
