"""Peers from the package index: performer-pytorch, linformer, nystrom-attention, reformer-pytorch, local-attention.

All are by Phil Wang (lucidrains). `fused` is the package's own arithmetic on query, key and value: a layer's
projections of the hidden state do no work, and what a package draws is drawn from our seed. Function and work are those
of the zoo's mechanism of the same name; where they are not, the docstring says so. `reference` is the dense matrix of
the package's function.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention_zoo.base import ALL, Attention, AttentionInfo, blocks_and_a_part, register
from attention_zoo.checks import check_int
from attention_zoo.ops.masking import masked_softmax, zero_padding
from attention_zoo.ops.sketches import orthogonal_features
from attention_zoo.packages import require_package
from attention_zoo.sampled import SampledAttention

# Constants of performer-pytorch that its layer takes no argument for.
FEATURE_EPS, CAUSAL_EPS, CAUSAL_CHUNKS = 1e-4, 1e-6, 128
# The uniform noise is a multiple of 2^-24, and 0 has no Gaussian quantile.
LEAST_NOISE = 2.0**-25


class Peer(Attention):
    """A mechanism of a package: `auto` is the package itself, whatever the input.

    Raises:
        UnsupportedError: the package is not installed.
    """

    is_kernel = True
    source: ClassVar[str]  # of the layer: module and name

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        require_package(self.info, self.source.partition(".")[0])

    def _make_layer(self, **settings: Any) -> Any:
        """The package's layer; its own draws, which are replaced, leave the process's generator alone."""
        module, _, name = self.source.rpartition(".")
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # one reads versions by distutils, and prints that it has no CUDA code
            return getattr(importlib.import_module(module), name)(**settings)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self._matrix(query, key, value, padding, ALL) @ value

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        return self._run_layer(query, key, value, padding), self.source

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        """The package's output."""
        raise NotImplementedError

    def _refusal(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> str | None:
        return None


class Handed(NamedTuple):
    """Query, key and value `(batch, n, h)` in the place of the hidden state of which a layer would make them."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of the queries."""
        return self.query.shape

    def chunk(self, chunks: int, dim: int) -> Handed:
        """What a layer cuts its joint projection into."""
        return self


class Take(nn.Module):
    """In the place of a projection: what was handed over under this name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, handed: Handed) -> Tensor:
        """`(batch, n, h)`."""
        return getattr(handed, self.name)


@register
class LucidrainsPerformer(Peer):
    """FAVOR+ by performer-pytorch: `performer` with the same projection for the same seed, and the same work.

    It adds 1e-4 to every feature, relative to the largest of its query or of all keys, where ours adds 1e-6 relative to
    the largest of its own query or key; the largest is a constant for gradients. Causal, this largest key lets the
    future move past outputs, and without its CUDA code it keeps an m x h sum for each position of a chunk, of which
    there are 128: as many multiplications as without blocks, and more memory traffic. It takes no mask.

    Args:
        num_features: m.
    """

    info = AttentionInfo(
        name="lucidrains_performer",
        paper="Choromanski et al. 2021 (Performer), sections 2.3 and 2.4",
        approximates="softmax",
        causal=False,
        approximately_causal=True,
        padding=False,
        cross=True,
        random=True,
        complexity="O(n m h)",
        size="num_features",
        package="performer-pytorch",
        implementations=("reference", "fused"),
    )
    source = "performer_pytorch.FastAttention"

    def __init__(self, *, num_features: int = 256, **common: Any) -> None:
        super().__init__(**common)
        self.num_features = check_int("num_features", num_features)
        self.layer = self._make_layer(dim_heads=self.head_dim, nb_features=num_features, causal=self.causal)
        self._draw()

    def _draw(self) -> None:
        projection = orthogonal_features(self.num_features, self.head_dim, self._generator())
        self.layer.projection_matrix.copy_(projection)

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        return self.layer(query, key, value)

    def _features(self, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        """`exp(w x - |x|^2 / 2 - largest) + eps` over sqrt(m), of x over h^(1/4); the largest w x over `dims`."""
        x = x * self.head_dim**-0.25
        exponents = x @ self.layer.projection_matrix.to(x.dtype).T
        largest = exponents.detach().amax(dims, keepdim=True)
        positive = (exponents - x.square().sum(-1, keepdim=True) / 2 - largest).exp()
        return (positive + FEATURE_EPS) * self.num_features**-0.5

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        query_features, key_features = self._features(query, (-1,)), self._features(key, (-2, -1))
        weights = query_features @ key_features.mT * visible
        total = weights.sum(-1, keepdim=True)
        if self.causal:
            total = total + CAUSAL_EPS * query_features.sum(-1, keepdim=True)
        return weights / total

    @property
    def telling_length(self) -> int:
        """Several positions in each of its chunks."""
        return 3 * CAUSAL_CHUNKS + 1

    def _flops(self, seq_len: int) -> int:
        """Features of queries and keys, the products with the state, the normaliser."""
        m, h = self.num_features, self.head_dim
        return 8 * seq_len * m * h + 2 * seq_len * m


@register
class LucidrainsLinformer(Peer):
    """`softmax(Q (E K)^T / sqrt(h)) (F V)` by linformer: `linformer`, the same numbers for a seed and the same work.

    E and F start as ours do, not uniform as in the package. Heads are given to it as batch items, which takes no copies
    and is faster than heads beside each other. It takes no mask.

    Args:
        projection_dim: rows of E and F.

    Raises:
        ValueError: `max_seq_len` is None.
    """

    info = AttentionInfo(
        name="lucidrains_linformer",
        paper="Wang et al. 2020, section 4, equation 7",
        approximates="softmax",
        causal=False,
        padding=False,
        cross=True,
        random=True,
        complexity="O(n k h)",
        size="projection_dim",
        package="linformer",
        implementations=("reference", "fused"),
    )
    source = "linformer.LinformerSelfAttention"

    def __init__(self, *, projection_dim: int = 256, **common: Any) -> None:
        super().__init__(**common)
        n, h = self.max_seq_len, self.head_dim
        if n is None:
            raise ValueError("max_seq_len=None: must be an integer of at least 1, the columns of linformer's E")
        self.projection_dim = check_int("projection_dim", projection_dim)
        self.layer = self._make_layer(dim=h, seq_len=n, k=projection_dim, heads=1)
        self.layer.to_q, self.layer.to_k, self.layer.to_v = Take("query"), Take("key"), Take("value")
        self.layer.to_out = nn.Identity()
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        generator, k = self._generator(), self.projection_dim
        for projection in (self.layer.proj_k, self.layer.proj_v):
            projection.copy_(torch.randn(projection.mT.shape, generator=generator).mT * k**-0.5)

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        queries, keys, values = (x.flatten(0, 1) for x in (query, key, value))
        return self.layer(Handed(queries, keys, values), context=Handed(keys, keys, values)).view_as(query)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        n = key.shape[2]
        scores = query @ (self.layer.proj_k[:n].mT @ key).mT * self.head_dim**-0.5
        return scores.softmax(-1) @ self.layer.proj_v[:n].mT

    @property
    def telling_length(self) -> int:
        """Twice the projected keys, and more."""
        return blocks_and_a_part(self.projection_dim, 2)

    def _flops(self, seq_len: int) -> int:
        """`E K`, `F V`, scores and weighted values."""
        return 8 * seq_len * self.projection_dim * self.head_dim


@register
class LucidrainsNystromformer(Peer):
    """`(F Z) (B V)` by nystrom-attention: `nystromformer` without its convolution.

    It multiplies `F Z` first, 2 n m^2 FLOPs that ours does not need, and starts the iteration for Z from the largest
    column sum of all heads (of all batch items too, were they not given to it one by one). Where m does not divide the
    length it puts zeros in front, and the mask that hides them; ours has segments of two sizes. A padded position is
    part of its segment, so that means are over fewer tokens, where ours cuts what is left into equal segments; a
    landmark of padding only weighs as much as any other as a row of the matrix that is inverted.

    Args:
        num_landmarks: m.
        iterations: steps towards the pseudo-inverse.
    """

    info = AttentionInfo(
        name="lucidrains_nystromformer",
        paper="Xiong et al. 2021, algorithm 1",
        approximates="softmax",
        causal=False,
        padding=True,
        cross=False,
        random=False,
        complexity="O(n m h + n m^2 + m^3)",
        size="num_landmarks",
        package="nystrom-attention",
        implementations=("reference", "fused"),
        # Its identity matrix and its masked means are float32, which bfloat16 cannot be multiplied with.
        dtypes=(torch.float64, torch.float32),
    )
    source = "nystrom_attention.NystromAttention"

    def __init__(self, *, num_landmarks: int = 256, iterations: int = 6, **common: Any) -> None:
        super().__init__(**common)
        self.num_landmarks = check_int("num_landmarks", num_landmarks)
        self.iterations = check_int("iterations", iterations)
        sizes = {"dim": self.head_dim, "dim_head": self.head_dim, "heads": 1, "num_landmarks": num_landmarks}
        self.layer = self._make_layer(**sizes, pinv_iterations=iterations, residual=False)
        self.layer.to_qkv, self.layer.to_out = nn.Identity(), nn.Identity()

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        front, real = self._real(query, padding)
        query, key, value = (F.pad(x, (0, 0, front, 0)) if front else x for x in (query, key, value))
        masks = [None] * len(query) if real is None else real.expand(-1, self.num_heads, -1)
        items = zip(query, key, value, masks, strict=True)
        outs = [self.layer(Handed(*item), mask=mask)[:, front:] for *item, mask in items]
        return torch.stack(outs)

    def _real(self, query: Tensor, padding: Tensor | None) -> tuple[int, Tensor | None]:
        """The zeros in front, and which positions are none and no padding, `(batch, 1, n)`; None where all are."""
        front = -query.shape[2] % self.num_landmarks
        if padding is None and not front:
            return front, None
        hidden = query.new_zeros(len(query), query.shape[2], dtype=torch.bool) if padding is None else padding
        return front, F.pad(~hidden, (front, 0))[:, None]

    def _matrix(
        self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Tensor | slice
    ) -> Tensor:
        """`F Z B`; entries may be negative."""
        front, real = self._real(query, padding)
        query, key = (F.pad(x, (0, 0, front, 0)) for x in (query, key))
        real = query.new_ones(len(query), 1, query.shape[2], dtype=torch.bool) if real is None else real
        query, key = (x * real[..., None] for x in (query * self.head_dim**-0.5, key))
        count = real.unflatten(2, (self.num_landmarks, -1)).sum(3)
        landmarks = [
            x.unflatten(2, (self.num_landmarks, -1)).sum(3) / count.clamp_min(1)[..., None] for x in (query, key)
        ]
        exists = count > 0
        from_landmarks = _blindly_uniform(query @ landmarks[1].mT, real, exists)
        kernel = _blindly_uniform(landmarks[0] @ landmarks[1].mT, exists, exists)
        to_landmarks = _blindly_uniform(landmarks[0] @ key.mT, exists, real)
        to_tokens = self._pseudo_inverse(kernel) @ to_landmarks * real[:, :, None]
        return (from_landmarks[:, :, front:][:, :, rows] @ to_tokens)[..., front:]

    def _pseudo_inverse(self, kernel: Tensor) -> Tensor:
        """`pseudo_inverse` of `nystromformer`, but from the largest column and row sum of all heads."""
        largest = kernel.sum(-2).amax((-2, -1)) * kernel.sum(-1).amax((-2, -1))
        inverse = kernel.mT / largest[:, None, None, None]
        identity = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
        for _ in range(self.iterations):
            product = kernel @ inverse
            inner = 15 * identity - product @ (7 * identity - product)
            inverse = inverse @ (13 * identity - product @ inner) / 4
        return inverse

    @property
    def telling_length(self) -> int:
        """Twice the landmarks, and more."""
        return blocks_and_a_part(self.num_landmarks, 2)

    def _flops(self, seq_len: int) -> int:
        """The three score matrices, Z, `F Z`, `B V` and their product."""
        m, h = self.num_landmarks, self.head_dim
        n = seq_len + -seq_len % m
        return 2 * h * (4 * n * m + m * m) + self.iterations * 4 * 2 * m**3 + 2 * n * m * m


def _blindly_uniform(scores: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Softmax of the scores `(batch, heads, i, j)` of those that are there; of a row without any, uniform."""
    visible = left[..., :, None] & right[..., None, :]
    return scores.masked_fill(~visible, -torch.finfo(scores.dtype).max).softmax(-1)


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
        end, real = self._real(query, padding)
        query, value = (F.pad(zero_padding(x, padding), (0, 0, 0, end)).flatten(0, 1) for x in (query, value))
        mask = None if real is None else real.repeat_interleave(self.num_heads, 0)
        with Drawn(self._rotations(query)):
            out = self.layer(query, value, input_mask=mask)[0]
        return out.unflatten(0, (-1, self.num_heads))[:, :, : out.shape[1] - end]

    def _real(self, query: Tensor, padding: Tensor | None) -> tuple[int, Tensor | None]:
        """The zeros at the end, and which positions are none and no padding, `(batch, n)`; None where all are."""
        end = -query.shape[2] % (2 * self.bucket_size)
        if padding is None and not end:
            return end, None
        hidden = query.new_zeros(len(query), query.shape[2], dtype=torch.bool) if padding is None else padding
        return end, F.pad(~hidden, (0, end))

    def _rotations(self, x: Tensor) -> Tensor:
        """As the package draws them, `(1, h, rounds, half the buckets)`, for `(..., n, h)`."""
        columns, h = x.shape[-2] // (2 * self.bucket_size), self.head_dim
        noise = self._noise((columns, self.num_hashes * h), x.device).clamp_min(LEAST_NOISE)
        return torch.special.ndtri(noise).view(1, columns, self.num_hashes, h).permute(0, 3, 2, 1).to(x.dtype)

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


@register
class LucidrainsLocal(Peer):
    """Softmax over the query's own block of keys and its neighbours, by local-attention, without rotary embeddings.

    The zoo has no mechanism of its own like it. The nearest is `bigbird` without random blocks: its queries see five
    blocks, the first and the last among them, as many as here with `neighbours=2`; those of its first and last block
    see everything besides.

    Args:
        block_size: w, the package's `window_size`. A last block that is shorter is filled up with hidden zeros.
        neighbours: blocks seen on each side of the own, before it only if causal: `look_backward`, `look_forward`.
    """

    info = AttentionInfo(
        name="lucidrains_local",
        paper="Beltagy et al. 2020 (Longformer), section 3.1, as blocks",
        approximates="softmax",
        causal=True,
        padding=True,
        cross=False,
        random=False,
        complexity="O(n w h)",
        package="local-attention",
        implementations=("reference", "fused"),
    )
    source = "local_attention.LocalAttention"

    def __init__(self, *, block_size: int = 64, neighbours: int = 1, **common: Any) -> None:
        super().__init__(**common)
        self.block_size = check_int("block_size", block_size)
        self.neighbours = check_int("neighbours", neighbours)
        after = 0 if self.causal else neighbours
        self.layer = self._make_layer(
            window_size=block_size, causal=self.causal, look_backward=neighbours, look_forward=after, autopad=True
        )

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        if padding is None and query.shape[2] % self.block_size == 0:
            return self.layer(query, key, value)
        hidden = query.new_zeros(len(query), query.shape[2], dtype=torch.bool) if padding is None else padding
        out = self.layer(query, key, value, mask=~hidden)
        # A row that sees no key is the mean of everything, the future included.
        return out if padding is None else out.masked_fill(self._sees_padding_only(padding)[:, None, :, None], 0)

    def _sees_padding_only(self, padding: Tensor) -> Tensor:
        """`(batch, n)`."""
        n, w = padding.shape[1], self.block_size
        position = torch.arange(n, device=padding.device)
        first = (position // w - self.neighbours).clamp_min(0) * w
        end = position + 1 if self.causal else ((position // w + self.neighbours + 1) * w).clamp_max(n)
        before = F.pad((~padding).cumsum(1), (1, 0))
        return before[:, first] == before[:, end]

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        block = torch.arange(key.shape[2], device=key.device) // self.block_size
        near = (block[positions, None] - block).abs() <= self.neighbours
        return masked_softmax(query @ key.mT * self.head_dim**-0.5, visible & near)

    @property
    def telling_length(self) -> int:
        """Two blocks more than a query sees."""
        return blocks_and_a_part(self.block_size, 2 * self.neighbours + 3)

    def _flops(self, seq_len: int) -> int:
        """Scores and weighted values, of blocks beyond either end too."""
        w = self.block_size
        blocks = 1 + self.neighbours * (1 if self.causal else 2)
        return 4 * (seq_len + -seq_len % w) * blocks * w * self.head_dim
