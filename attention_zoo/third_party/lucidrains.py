"""Layers of Phil Wang's packages: linformer, local-attention, nystrom-attention, performer-pytorch, reformer-pytorch.

`fused` is the package's own code on query, key and value: a layer's projections of the hidden state are replaced by
the identity, and random numbers come from our seed. Function and cost are those of the zoo's mechanism of the same
name, unless the docstring says otherwise. `reference` is the dense matrix of the package's function.
"""

import operator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention_zoo.base import Rows
from attention_zoo.checks import check_int
from attention_zoo.info import AttentionInfo
from attention_zoo.linformer import Linformer
from attention_zoo.nystromformer import Nystromformer, pseudo_inverse
from attention_zoo.ops.draws import normal, orthogonal_features
from attention_zoo.ops.masking import masked_softmax, zero_padding
from attention_zoo.performer import Performer
from attention_zoo.reformer import Reformer
from attention_zoo.registry import register
from attention_zoo.sampled import SampledAttention
from attention_zoo.third_party.packages import CapturedArguments, PortedAttention

# Constants of performer-pytorch that are not arguments of its layer.
FEATURE_EPS, CAUSAL_EPS = 1e-4, 1e-6


@register
class LucidrainsLinformer(PortedAttention):
    """`softmax(Q (E K)^T / sqrt(h)) (F V)` by linformer: the same output per seed and the same cost as `linformer`.

    E and F have our initial values, not the package's uniform ones. Heads are passed to it as batch items, without
    copies. It takes no mask.

    Args:
        projection_dim: rows of E and F.

    Raises:
        ValueError: `max_seq_len` is None.
    """

    info = replace(
        Linformer.info, name="lucidrains_linformer", padding=False, complexity="O(n k h)", package="linformer"
    )
    source = "linformer.LinformerSelfAttention"

    def __init__(self, *, projection_dim: int = 256, **common: Any) -> None:
        super().__init__(**common)
        n, h = self.max_seq_len, self.head_dim
        if n is None:
            raise ValueError("max_seq_len=None: must be an integer of at least 1, the longest sequence it takes")
        self.projection_dim = check_int("projection_dim", projection_dim)
        self.layer = self._make_layer(dim=h, seq_len=n, k=projection_dim, heads=1)
        self.layer.to_q = self.layer.to_out = nn.Identity()
        for projection, argument in (("to_k", "key"), ("to_v", "value")):
            delattr(self.layer, projection)  # a module may only be replaced by a module
            setattr(self.layer, projection, operator.attrgetter(argument))
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        generator, k = self._generator(), self.projection_dim
        for projection in (self.layer.proj_k, self.layer.proj_v):
            projection.copy_(normal(projection.mT.shape, generator).mT * k**-0.5)

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        queries, keys, values = (x.flatten(0, 1) for x in (query, key, value))
        return self.layer(queries, context=CapturedArguments(keys, keys, values)).view_as(query)

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        n = key.shape[2]
        scores = query @ (self.layer.proj_k[:n].mT @ key).mT * self.head_dim**-0.5
        return scores.softmax(-1) @ self.layer.proj_v[:n].mT

    def _flops(self, seq_len: int) -> int:
        """`E K`, `F V`, scores and weighted values."""
        return 8 * seq_len * self.projection_dim * self.head_dim


@register
class LucidrainsPerformer(PortedAttention):
    """FAVOR+ by performer-pytorch: like `performer`, with the same projection for the same seed, and the same cost.

    It adds 1e-4 to every feature, relative to the exponential of the largest product with its query or of all keys;
    ours adds 1e-6 relative to the largest feature of its own query or key. The largest is a constant for gradients.
    If causal, the largest over all keys lets the future change past outputs. Without its CUDA code it has an m x h
    sum in memory for each of the n / 128 positions of a chunk: as many multiplications as without blocks, and more
    traffic. Its causal sums have the dtype of the inputs, so in bfloat16 they lose digits, and `bench` calls long
    ones incorrect. It takes no mask.

    Args:
        num_features: m.
    """

    info = replace(
        Performer.info,
        name="lucidrains_performer",
        causal=False,
        approximately_causal=True,
        padding=False,
        decode=False,
        package="performer-pytorch",
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
        """`(exp(w x - |x|^2 / 2 - largest) + eps) / sqrt(m)` of `x / h^(1/4)`, with the largest w x over `dims`."""
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

    def _flops(self, seq_len: int) -> int:
        """The features of queries and keys, the products with the state, the normaliser."""
        m, h = self.num_features, self.head_dim
        return 8 * seq_len * m * h + 2 * seq_len * m


@register
class LucidrainsLocal(PortedAttention):
    """Softmax over the query's own block of keys and its neighbours, by local-attention, without rotary embeddings.

    The zoo has no mechanism that is the same. The nearest is `bigbird` without random blocks: its queries see five
    blocks, as many as here with `neighbours=2`, but the first and the last block are among them, and the queries of
    these two blocks see everything.

    Args:
        block_size: w, the package's `window_size`. A shorter last block is padded with hidden zeros.
        neighbours: blocks seen on each side of the own one, if causal only before it: `look_backward`, `look_forward`.
    """

    info = AttentionInfo(
        name="lucidrains_local",
        paper="Beltagy et al. 2020 (Longformer), section 3.1, as blocks",
        approximates="softmax",
        causal=True,
        padding=True,
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
        out = self.layer(query, key, value, mask=real_positions(query, padding))
        # The package returns the mean of all values for a row that sees no key, the future included.
        return out if padding is None else out.masked_fill(self._sees_padding_only(padding)[:, None, :, None], 0)

    def _sees_padding_only(self, padding: Tensor) -> Tensor:
        """Which rows see only padding, `(batch, n)`."""
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

    def _test_blocks(self) -> tuple[int, int]:
        return self.block_size, 2 * self.neighbours + 3

    def _flops(self, seq_len: int) -> int:
        """Scores and weighted values, also of blocks beyond either end."""
        w = self.block_size
        blocks = 1 + self.neighbours * (1 if self.causal else 2)
        return 4 * (seq_len + -seq_len % w) * blocks * w * self.head_dim


@register
class LucidrainsNystromformer(PortedAttention):
    """`(F Z) (B V)` by nystrom-attention: `nystromformer` without its convolution.

    It multiplies `F Z` first, 2 n m^2 FLOPs that ours does not need, and starts the iteration for Z from the largest
    column sum of all heads (and of all batch items, so we pass these one by one). If m does not divide the length, it
    puts zeros in front and masks them; ours has segments of two sizes. A padded position stays in its segment, whose
    mean is over fewer tokens; ours splits the tokens that are not padding into equal segments. A landmark of padding
    only is still a row of the matrix that is inverted.

    Args:
        num_landmarks: m.
        iterations: steps towards the pseudo-inverse.
    """

    info = replace(
        Nystromformer.info,
        name="lucidrains_nystromformer",
        complexity="O(n m h + n m^2 + m^3)",
        package="nystrom-attention",
        # Its identity matrix and its masked means are float32, which cannot be multiplied with bfloat16.
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
        front, real = fill_up(query, padding, self.num_landmarks, front=True)
        query, key, value = (F.pad(x, (0, 0, front, 0)) if front else x for x in (query, key, value))
        masks = [None] * len(query) if real is None else real[:, None].expand(-1, self.num_heads, -1)
        items = zip(query, key, value, masks, strict=True)
        outs = [self.layer(CapturedArguments(*item), mask=mask)[:, front:] for *item, mask in items]
        return torch.stack(outs)

    def _matrix(self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Rows) -> Tensor:
        """`F Z B`; entries may be negative."""
        front = -query.shape[2] % self.num_landmarks
        real = F.pad(real_positions(query, padding), (front, 0))[:, None]
        query, key = (F.pad(x, (0, 0, front, 0)) for x in (query, key))
        query, key = (x * real[..., None] for x in (query * self.head_dim**-0.5, key))
        count = real.unflatten(2, (self.num_landmarks, -1)).sum(3)
        landmarks = [
            x.unflatten(2, (self.num_landmarks, -1)).sum(3) / count.clamp_min(1)[..., None] for x in (query, key)
        ]
        exists = count > 0
        from_landmarks = _blindly_uniform(query @ landmarks[1].mT, real, exists)
        kernel = _blindly_uniform(landmarks[0] @ landmarks[1].mT, exists, exists)
        to_landmarks = _blindly_uniform(landmarks[0] @ key.mT, exists, real)
        # The largest sums of all heads, where ours takes those of each head.
        largest = kernel.sum(-2).amax((-2, -1)) * kernel.sum(-1).amax((-2, -1))
        inverse = pseudo_inverse(kernel, self.iterations, kernel.mT / largest[:, None, None, None])
        to_tokens = inverse @ to_landmarks * real[:, :, None]
        return (from_landmarks[:, :, front:][:, :, rows] @ to_tokens)[..., front:]

    def _flops(self, seq_len: int) -> int:
        """The three score matrices, Z, `F Z`, `B V` and their product."""
        m, h = self.num_landmarks, self.head_dim
        n = seq_len + -seq_len % m
        return 2 * h * (4 * n * m + m * m) + self.iterations * 4 * 2 * m**3 + 2 * n * m * m


def _blindly_uniform(scores: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Softmax of the scores `(batch, heads, i, j)` where `left` and `right` are True; a row without any is uniform."""
    visible = left[..., :, None] & right[..., None, :]
    return scores.masked_fill(~visible, -torch.finfo(scores.dtype).max).softmax(-1)


class FixedRandn(TorchFunctionMode):
    """A context in which `torch.randn` returns `draws`."""

    def __init__(self, draws: Tensor) -> None:
        super().__init__()
        self.draws = draws

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replace `torch.randn`; call any other function unchanged."""
        return self.draws if func is torch.randn else func(*args, **(kwargs or {}))


@register
class LucidrainsReformer(PortedAttention, SampledAttention):
    """LSH attention by reformer-pytorch: like `reformer`, with half as many hash buckets and nearly the same cost.

    Queries and keys are shared: `key` is not read. Scores are divided by sqrt(h); ours and the paper's are not. There
    are n / m buckets for chunks of m; ours and the paper have twice as many, so here hashing costs half as much. The
    chunks of all rounds form one circle: the first chunk of a round also sees the last chunk of the previous round. The
    rotations, which the package draws in every forward pass, are shared by the heads. As in its `Autopadder`, hidden
    zeros pad the sequence to a multiple of 2m; these, and padding, take places in the chunks, while ours removes
    padding. With `causal=True` a change of the future changes past outputs, as in ours.

    Args:
        num_hashes: rounds of hashing.
        bucket_size: m, the length of a chunk.
    """

    info = replace(
        Reformer.info,
        name="lucidrains_reformer",
        package="reformer-pytorch",
        # Vectors rotated in bfloat16 may tie, and then get into other buckets.
        dtypes=(torch.float64, torch.float32),
    )
    source = "reformer_pytorch.LSHAttention"

    def __init__(self, *, num_hashes: int = 2, bucket_size: int = 64, **common: Any) -> None:
        super().__init__(**common)
        self.num_hashes = check_int("num_hashes", num_hashes)
        self.bucket_size = check_int("bucket_size", bucket_size)
        self.layer = self._make_layer(bucket_size=bucket_size, n_hashes=num_hashes, causal=self.causal)

    def _run_layer(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        end, real = fill_up(query, padding, 2 * self.bucket_size)
        query, value = (F.pad(zero_padding(x, padding), (0, 0, 0, end)).flatten(0, 1) for x in (query, value))
        mask = None if real is None else real.repeat_interleave(self.num_heads, 0)
        with FixedRandn(self._rotations(query)):
            out = self.layer(query, value, input_mask=mask)[0]
        return out.unflatten(0, (-1, self.num_heads))[:, :, : out.shape[1] - end]

    def _rotations(self, x: Tensor) -> Tensor:
        """Rotations `(1, h, rounds, half the buckets)`, shaped as the package draws them for `(..., n, h)`."""
        columns, h = x.shape[-2] // (2 * self.bucket_size), self.head_dim
        normal = self._normal_noise((columns, self.num_hashes * h), x.device)
        return normal.view(1, columns, self.num_hashes, h).permute(0, 3, 2, 1).to(x.dtype)

    def _matrix(self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Rows) -> Tensor:
        """`c_ij exp(s_ij)`, normalised; c_ij is how often i meets j. A position that meets none gets its own value."""
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

    def _test_blocks(self) -> tuple[int, int]:
        return self.bucket_size, 3

    def _flops(self, seq_len: int) -> int:
        """Rotations, and both products of every chunk with two chunks of keys."""
        m = self.bucket_size
        n = seq_len + -seq_len % (2 * m)
        return self.num_hashes * 2 * (n * n // (2 * m) + 2 * n * 2 * m) * self.head_dim


def fill_up(query: Tensor, padding: Tensor | None, multiple: int, *, front: bool = False) -> tuple[int, Tensor | None]:
    """How many zeros pad the length to a multiple, and which positions are neither these nor padding.

    The zeros are at the end or in front; the second result is `(batch, length)`, None if all positions are real.
    """
    missing = -query.shape[2] % multiple
    if padding is None and not missing:
        return 0, None
    return missing, F.pad(real_positions(query, padding), (missing, 0) if front else (0, missing))


def real_positions(query: Tensor, padding: Tensor | None) -> Tensor:
    """`(batch, n)` bool, False at padding."""
    return query.new_ones(len(query), query.shape[2], dtype=torch.bool) if padding is None else ~padding
