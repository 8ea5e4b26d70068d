"""Nystromformer: Xiong et al. 2021, Nystromformer: A Nystrom-based Algorithm for Approximating Self-Attention."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from attention_zoo.base import Attention, Rows
from attention_zoo.checks import check_int, require
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.draws import uniform
from attention_zoo.ops.fused_softmax import attend, hidden_by
from attention_zoo.ops.gradients import once_differentiable
from attention_zoo.ops.masking import masked_softmax, visible_keys, zero_padding
from attention_zoo.ops.operators import current_autocast
from attention_zoo.ops.sampling import take_rows
from attention_zoo.registry import register


class Landmarks(NamedTuple):
    """The means of segments, and A, in at least float32."""

    query: Tensor  # Ql, (batch, heads, m, h)
    key: Tensor  # Kl, (batch, heads, m, h)
    exists: Tensor  # (batch, 1, 1, m) bool: the segment is not empty
    kernel: Tensor  # A, (batch, heads, m, m)


@register
class Nystromformer(Attention):
    """`F Z (B V)` with `F = softmax(Q Kl^T)`, `A = softmax(Ql Kl^T)`, `Z ~ pinv(A)`, `B = softmax(Ql K^T)`.

    Scores have the scale 1/sqrt(h). The landmarks Ql and Kl are the means of `num_landmarks` consecutive segments
    of the tokens that are not padding, nearly equal in size; if there are fewer tokens, each is a landmark. Padding
    does not change the output. The mask hides queries, too, from the landmarks, so there is no cross attention; a
    landmark mixes past and future, so there is no causal form.

    The released codes differ: they start the iteration for Z from the largest column sum of the whole batch, so that
    batch items affect each other; they average padding into the landmarks, attend to landmarks of padding, and take
    only lengths that `num_landmarks` divides; and they compute softmax itself if `num_landmarks` equals the length.

    Args:
        num_landmarks: m.
        iterations: steps towards pinv(A), cubic in m. The paper's 6 steps do not converge, even at m = n. If A is
            singular, each step makes rounding errors 13/4 times larger, so float32 allows about a dozen steps.
        conv_kernel_size: odd; adds a depthwise convolution of the values along the sequence, the paper's skip
            connection: one trainable kernel per head, without bias. It is not part of the approximation; None
            leaves it out.

    Raises:
        ValueError: `conv_kernel_size` is even.
    """

    info = AttentionInfo(
        name="nystromformer",
        paper="Xiong et al. 2021, algorithm 1",
        approximates="softmax",
        padding=True,
        complexity="O(n m h + m^2 h + m^3)",
        size="num_landmarks",
        implementations=("reference", "fused"),
    )

    def __init__(
        self, *, num_landmarks: int = 256, iterations: int = 6, conv_kernel_size: int | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        self.num_landmarks = check_int("num_landmarks", num_landmarks)
        self.iterations = check_int("iterations", iterations)
        self.conv_kernel_size = conv_kernel_size
        self.conv_weight: nn.Parameter | None = None
        if conv_kernel_size is not None:
            check_int("conv_kernel_size", conv_kernel_size)
            require("conv_kernel_size", conv_kernel_size, conv_kernel_size % 2 == 1, "odd, or None")
            self.conv_weight = nn.Parameter(torch.empty(self.num_heads, 1, conv_kernel_size, 1))
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        if self.conv_weight is not None:
            # PyTorch's default for a convolution: uniform in +-1/sqrt(inputs per output).
            drawn = uniform(self.conv_weight.shape, self._generator())
            self.conv_weight.copy_((2 * drawn - 1) * self.conv_weight.shape[2] ** -0.5)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        from_landmarks, inverse, to_landmarks = self._factors(query, key, padding)
        summary = inverse @ (to_landmarks @ value).to(inverse.dtype)
        return from_landmarks @ summary.to(value.dtype) + self._convolve(value, padding)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        landmarks = self._landmarks(query, key, padding)
        scale = self.head_dim**-0.5
        from_keys, _, _ = attend(landmarks.query.to(key.dtype), key, value, scale=scale, hidden=hidden_by(padding))
        summary = times_pseudo_inverse(landmarks.kernel, self.iterations, from_keys.to(landmarks.kernel.dtype))
        keys, values = landmarks.key.to(key.dtype), summary.to(value.dtype)
        missing = None if padding is None else ~landmarks.exists
        out, _, backend = attend(query, keys, values, scale=scale, hidden=missing)
        return out if self.conv_weight is None else out + self._convolve(value, padding), backend

    def _matrix(self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, rows: Rows) -> Tensor:
        """`F Z B` plus the banded matrix of the convolution; entries may be negative, rows may not sum to 1."""
        from_landmarks, inverse, to_landmarks = self._factors(query, key, padding)
        low_rank = from_landmarks[:, :, rows] @ (inverse @ to_landmarks.to(inverse.dtype)).to(key.dtype)
        if self.conv_weight is None:
            return low_rank
        identity = torch.eye(key.shape[2], dtype=key.dtype, device=key.device).expand(*key.shape[:2], -1, -1)
        return low_rank + self._convolve(identity, padding)[:, :, rows]

    def _factors(self, query: Tensor, key: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """F `(batch, heads, n, m)`, Z `(batch, heads, m, m)` in at least float32, B `(batch, heads, m, n)`."""
        landmarks = self._landmarks(query, key, padding)
        query, query_landmarks = (x * self.head_dim**-0.5 for x in (query, landmarks.query.to(query.dtype)))
        from_landmarks = masked_softmax(query @ landmarks.key.to(key.dtype).mT, landmarks.exists)
        visible = visible_keys(1, key.shape[2], False, padding, key.device)
        to_landmarks = masked_softmax(query_landmarks @ key.mT, visible)
        return from_landmarks, pseudo_inverse(landmarks.kernel, self.iterations), to_landmarks

    def _landmarks(self, query: Tensor, key: Tensor, padding: Tensor | None) -> Landmarks:
        n = key.shape[2]
        m, scale = min(self.num_landmarks, n), self.head_dim**-0.5
        if padding is None and n % m == 0:
            precision = torch.promote_types(query.dtype, torch.float32)
            queries, keys = (x.unflatten(2, (m, -1)).mean(3, dtype=precision) for x in (query, key))
            exists = torch.ones(1, 1, 1, m, dtype=torch.bool, device=key.device)
            return Landmarks(queries, keys, exists, (queries * scale @ keys.mT).softmax(-1))
        visible = visible_keys(1, n, False, padding, key.device)
        members, filled = segments(visible[:, 0, 0], m)
        queries, keys = (segment_means(tokens, members, filled) for tokens in (query, key))
        exists = filled.any(-1)[:, None, None]
        # A landmark that does not exist has a zero row and column in A, hence in Z: it drops out.
        kernel = masked_softmax(queries * scale @ keys.mT, exists & exists.mT)
        return Landmarks(queries, keys, exists, kernel)

    def _convolve(self, value: Tensor, padding: Tensor | None) -> Tensor:
        """The depthwise convolution of `(batch, heads, n, ...)` along n; zero without `conv_kernel_size`."""
        if self.conv_weight is None:
            return value.new_zeros(())
        weight = self.conv_weight.to(value.dtype)
        margin = (weight.shape[2] // 2, 0)
        return functional.conv2d(zero_padding(value, padding), weight, padding=margin, groups=self.num_heads)

    def _flops(self, seq_len: int) -> int:
        """Landmarks, the three score matrices, Z with its start, the products with V, and the convolution."""
        n, h, m = seq_len, self.head_dim, min(self.num_landmarks, seq_len)
        landmarks = 2 * m * -(-n // m) * h
        products = 2 * h * (4 * n * m + 2 * m * m)
        inverse = m * m + self.iterations * 4 * 2 * m**3
        if self._fuses_here(seq_len):  # the last step and Z are only applied to the h columns of B V
            inverse -= 4 * 2 * m**3 - 7 * 2 * m * m * h + 2 * m * m * h
        convolution = 2 * n * h * (self.conv_kernel_size or 0)
        return landmarks + products + inverse + convolution


def segments(visible: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Split the visible positions into `count` consecutive segments whose sizes differ by at most one.

    Args:
        visible: `(batch, n)` bool.
        count: the number of segments; if fewer positions are visible, each is a segment and the others are empty.

    Returns:
        The positions of each segment, `(batch, count, ceil(n / count))`, and which of these entries are filled.
    """
    n = visible.shape[1]
    total = visible.sum(1, keepdim=True)
    edges = (torch.arange(count + 1, device=visible.device) * total // count)[..., None]
    ranks = edges[:, :-1] + torch.arange(-(-n // count), device=visible.device)
    visible_first = (~visible).to(torch.uint8).argsort(dim=1, stable=True)
    members = visible_first.take_along_dim(ranks.clamp_max(n - 1).flatten(1), 1).view_as(ranks)
    return members, ranks < edges[:, 1:]


def segment_means(tokens: Tensor, members: Tensor, filled: Tensor) -> Tensor:
    """The means of `tokens` `(batch, heads, n, h)` over segments, `(batch, heads, count, h)`; zero for an empty one.

    They are in at least float32.
    """
    gathered = take_rows(tokens, members.flatten(1)[:, None].expand(-1, tokens.shape[1], -1))
    gathered = gathered.unflatten(2, members.shape[1:])
    precision = torch.promote_types(tokens.dtype, torch.float32)
    total = (gathered * filled[:, None, ..., None]).sum(3, dtype=precision)
    return total / filled.sum(-1).clamp_min(1)[:, None, :, None]


def pseudo_inverse(kernel: Tensor, iterations: int, start: Tensor | None = None) -> Tensor:
    """`Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4` from `Z = A^T / (|A|_1 |A|_inf)`, for each matrix A by itself.

    The rows of A sum to one (`|A|_inf = 1`) or zero; the singular values of A Z rise from at most 1 towards 1. Another
    `start` for Z may be given, shaped as A, `(batch, heads, m, m)`.
    """
    kernels, inverse = kernel.flatten(0, -3), (_start(kernel) if start is None else start).flatten(0, -3)
    for _ in range(iterations):
        inverse = inverse @ _factors_of_step(kernels, inverse)[-1]
    return inverse.view_as(kernel)


def times_pseudo_inverse(kernel: Tensor, iterations: int, x: Tensor) -> Tensor:
    """`pseudo_inverse(kernel, iterations) @ x`, whose last step is four products with the columns of x only.

    A recurrence of `P = A Z` alone would need half of the products, but lose a digit: rounding makes its P differ from
    A Z, and nothing corrects that.
    """
    inverse = _Iterations.apply(kernel.flatten(0, -3), _start(kernel).flatten(0, -3), iterations - 1).view_as(kernel)

    def times_product(y: Tensor) -> Tensor:
        return kernel @ (inverse @ y)

    inner = 15 * x - times_product(7 * x - times_product(x))
    return inverse @ (13 * x - times_product(inner)) / 4


def _start(kernel: Tensor) -> Tensor:
    largest_column_sum = kernel.sum(-2, keepdim=True).amax(-1, keepdim=True)
    return kernel.mT / largest_column_sum.masked_fill(largest_column_sum == 0, 1)


def _factors_of_step(kernels: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`P = A Z`, `S = 15 I - 7 P + P^2` and `T = (13 I - P S) / 4` of the step `Z <- Z T`."""
    product = kernels @ inverse
    # Sums are fused into the products: as passes of their own they would take a tenth of the time at m = 256.
    inner = torch.baddbmm(product, product, product, beta=-7)
    inner.diagonal(dim1=-2, dim2=-1).add_(15)
    outer = torch.baddbmm(product, product, inner, beta=0, alpha=-1 / 4)
    outer.diagonal(dim1=-2, dim2=-1).add_(13 / 4)
    return product, inner, outer


class _Iterations(torch.autograd.Function):
    """Steps of `pseudo_inverse`, whose sums are fused into the products in the backward pass, too.

    All are in the dtype of the kernels: autocast, which does not cast sums in place, takes no part.
    """

    @staticmethod
    def forward(ctx: Any, kernels: Tensor, inverse: Tensor, iterations: int) -> Tensor:
        steps, inverse = [], inverse.to(kernels.dtype)
        with torch.autocast(current_autocast(kernels.device)[0], enabled=False):
            for _ in range(iterations):
                factors = _factors_of_step(kernels, inverse)
                if any(ctx.needs_input_grad):
                    steps += [inverse, *factors]
                inverse = inverse @ factors[-1]
        ctx.save_for_backward(kernels, *steps)
        return inverse.clone() if iterations == 0 else inverse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernels, *steps = ctx.saved_tensors
        d_inverse, d_kernels = grads[0], torch.zeros_like(kernels)
        while steps:
            *steps, inverse, product, inner, outer = steps
            d_outer = inverse.mT @ d_inverse
            d_inner = torch.baddbmm(d_outer, product.mT, d_outer, beta=0, alpha=-1 / 4)
            d_product = torch.baddbmm(d_inner, d_inner, product.mT, beta=-7)
            d_product.baddbmm_(product.mT, d_inner).baddbmm_(d_outer, inner.mT, alpha=-1 / 4)
            d_inverse = (d_inverse @ outer.mT).baddbmm_(kernels.mT, d_product)
            d_kernels.baddbmm_(d_product, inverse.mT)
        return d_kernels, d_inverse, None
