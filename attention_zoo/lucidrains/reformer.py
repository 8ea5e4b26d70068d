"""LSH attention by the package reformer-pytorch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from attention_zoo.base import AttentionInfo, blocks_and_a_part, register
from attention_zoo.checks import check_int
from attention_zoo.lucidrains.peer import Peer, filled_up
from attention_zoo.ops.masking import masked_softmax, zero_padding
from attention_zoo.sampled import SampledAttention


class Drawn(TorchFunctionMode):
    """Within it `torch.randn` answers these draws."""

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.draws = draws

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Any other function as it is."""
        return self.draws if func is torch.randn else func(*args, **(kwargs or {}))


@register
class LucidrainsReformer(Peer, SampledAttention):
    """LSH attention by reformer-pytorch: `reformer` with half of its hash buckets, nearly the same work.

    Queries and keys are shared: `key` is not read. Scores are divided by sqrt(h), where ours and the paper's are not.
    There are n / m buckets for chunks of m, where ours, as the paper, has twice as many, so that hashing is half the
    work. All rounds make one circle of chunks: the first of a round looks at the last of the one before. The rotations,
    which the package draws in every forward pass, are shared by the heads. As its `Autopadder` does, the sequence is
    filled up with hidden zeros to a multiple of 2m; these, and padding, take places in the chunks, where ours leaves
    padding out. With `causal=True` a change of the future moves past outputs, as in ours.

    Args:
        num_hashes: rounds of hashing.
        bucket_size: m, the length of a chunk.
    """

    info = AttentionInfo(
        name="lucidrains_reformer",
        paper="Kitaev et al. 2020, section 2 and appendix A",
        approximates=None,
        causal=False,
        padding=True,
        cross=False,
        random=True,
        data_dependent=True,
        complexity="O(n r (m + n / m) h), r rounds",
        approximately_causal=True,
        package="reformer-pytorch",
        implementations=("reference", "fused"),
        # Rotated in bfloat16 vectors tie, and are in other buckets.
        dtypes=(torch.float64, torch.float32),
    )
    source = "reformer_pytorch.LSHAttention"

    def __init__(self, *, num_hashes: int = 2, bucket_size: int = 64, **common: Any) -> None:
        super().__init__(**common)
        self.num_hashes = check_int("num_hashes", num_hashes)
        self.bucket_size = check_int("bucket_size", bucket_size)
        self.layer = self._make_layer(bucket_size=bucket_size, n_hashes=num_hashes, causal=self.causal)

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        end, real = filled_up(query, padding, 2 * self.bucket_size)
        query, value = (F.pad(zero_padding(x, padding), (0, 0, 0, end)).flatten(0, 1) for x in (query, value))
        mask = None if real is None else real.repeat_interleave(self.num_heads, 0)
        with Drawn(self._rotations(query)):
            out = self.layer(query, value, input_mask=mask)[0]
        return out.unflatten(0, (-1, self.num_heads))[:, :, : out.shape[1] - end]

    def _rotations(self, x: Tensor) -> Tensor:
        """As the package draws them, `(1, h, rounds, half the buckets)`, for `(..., n, h)`."""
        columns, h = x.shape[-2] // (2 * self.bucket_size), self.head_dim
        normal = self._normal_noise((columns, self.num_hashes * h), x.device)
        return normal.view(1, columns, self.num_hashes, h).permute(0, 3, 2, 1).to(x.dtype)

    def _matrix(
        self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Tensor | slice
    ) -> Tensor:
        """`c_ij exp(s_ij)`, normalised, c_ij how often i meets j; who meets nobody has its own value."""
        query = zero_padding(query, padding)
        positions = torch.arange(query.shape[2], device=query.device)
        itself = positions[rows, None] == positions
        hidden = itself | (positions[rows, None] < positions) if self.causal else itself
        if padding is not None:
            hidden = hidden | padding[:, None, None] | padding[:, None, rows, None]
        times = self._meetings(query, rows).masked_fill(hidden, 0)
        scores = query[:, :, rows] @ F.normalize(query, dim=-1).mT * self.head_dim**-0.5
        weights = masked_softmax(scores + times.clamp_min(1).log(), times > 0)
        alone = itself & (times == 0).all(-1, keepdim=True)
        return weights + (alone if padding is None else alone & ~padding[:, None, None])

    @torch.no_grad()
    def _meetings(self, query: Tensor, rows: Tensor | slice) -> Tensor:
        """How often each key is in the chunk of a query or in the one before, `(batch, heads, rows, n)`."""
        n, m = query.shape[2], self.bucket_size
        query = F.pad(query, (0, 0, 0, -n % (2 * m)))
        rotated = torch.einsum("bhnd,drc->bhrnc", query, self._rotations(query)[0])
        order = torch.cat([rotated, -rotated], -1).argmax(-1).argsort(dim=-1, stable=True)
        chunks = order.unflatten(3, (-1, m)).flatten(2, 3)
        seen = torch.cat([chunks, chunks.roll(1, 2)], -1)
        before = torch.arange(self.num_hashes, device=query.device)[:, None] * (order.shape[3] // m)
        chunk = (before + order.argsort(-1) // m)[..., :n][..., rows]
        met = seen.take_along_dim(chunk.flatten(2)[..., None], 2).unflatten(2, (self.num_hashes, -1))
        met = met.transpose(2, 3).flatten(3)
        count = query.new_zeros(*met.shape[:3], query.shape[2])
        return count.scatter_add(3, met, count.new_ones(()).expand_as(met))[..., :n]

    @property
    def telling_length(self) -> int:
        """Several chunks and a part of one."""
        return blocks_and_a_part(self.bucket_size)

    def _flops(self, seq_len: int) -> int:
        """Rotations, and both products of every chunk with two chunks of keys."""
        m = self.bucket_size
        n = seq_len + -seq_len % (2 * m)
        return self.num_hashes * 2 * (n * n // (2 * m) + 2 * n * 2 * m) * self.head_dim
