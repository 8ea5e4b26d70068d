"""The error of sketched polynomial weights: PolySketchFormer (ICML version), Theorems 1.1 and 2.2."""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo import UnsupportedError
from attention_zoo.ops.feature_product.reference import expand
from attention_zoo.polysketch import Polysketch, RandomSketch
from bench.measures import Sized, register
from bench.measures.context import CellContext, redraws
from bench.measures.reference import require_finite
from bench.records.metrics import Metric, by_sequence, root_of_mean_square

ROWS_AT_ONCE = 512  # rows of an n x n matrix at once
EXPLICIT_ROWS = 8  # rows whose r^2 features are computed


@register
@dataclass
class SketchError(Sized):
    """Errors and signs of sketched polynomial weights (ICML paper, Theorem 1.1); `repeats` draws per sequence."""

    name: ClassVar[str] = "sketch_error"
    axis: ClassVar[str] = "features"
    # The theorems hold over draws for any inputs, so sequences and heads count as fixed.
    replicates: ClassVar[str] = "draws"

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Relative errors of `<phi'(q), phi'(k)>` and `<L, R>`, head by head, for every sequence and every redraw.

        Q and K are what the mechanism sketches: its inputs after its LayerNorm and scale. All in float64.

        Returns:
            Lists over the trials of `redraws` of lists over heads:
            `kernel_error` `||phi'(Q) phi'(K)^T - (Q K^T)^p||_F / (||Q^{(x)p}||_F ||K^{(x)p}||_F)` (Theorem 1.1);
            `sketch_error`, the same for L, R and p/2 (Theorem 2.2); `smallest_weight`, the smallest
            `<phi'(q), phi'(k)> / (|phi'(q)| |phi'(k)|)` at the first positions, computed from the r^2 features;
            `negative_share`, the share of negative weights there with a sketch of degree p instead of one of degree p/2
            tensored with itself (None for a learned sketch and for degree 2).
            Lists over sequences of lists over heads, None except for a Gaussian sketch of degree 4: `kernel_expected`
            and `sketch_expected`, the root of the expected squared errors, in closed form.
            `features`: r, None for degree 2. `sequences`: their number.

        Raises:
            UnsupportedError: the mechanism sketches no polynomial.
            NonFiniteError: NaN or infinity among the errors.
        """
        attention = context.attention()
        if not isinstance(attention, Polysketch):
            raise UnsupportedError(f"{attention.info.name} has no sketch of a polynomial")
        query, key, value = context.inputs()
        check = context.correctness_check((query[:1], key[:1], value[:1]))
        check.check_forward(context.config["label"], attention)
        check.finish()
        attention.double()
        is_known = attention.degree == 4 and getattr(attention.sketch, "kind", None) == "gaussian"
        query, key = query.double(), key.double()
        measured: dict[str, list[Any]] = {}
        with torch.no_grad():
            for sequence, is_first in redraws(context, attention, len(query), is_random=attention.degree > 2):
                q, k = (attention.layernorm(x[sequence]) * math.sqrt(attention.scale) for x in (query, key))
                errors = _errors(attention, q, k, with_expected=is_first and is_known)
                for name, by_head in (errors | _signs(attention, q, k)).items():
                    require_finite(by_head, name)
                    measured.setdefault(name, []).append(by_head.tolist())
        optional = dict.fromkeys(("negative_share", "kernel_expected", "sketch_expected"))
        features = attention.sketch_size if attention.degree > 2 else None
        return {"features": features, "sequences": len(query), **optional, **measured}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Root mean squares of `kernel_error` and `sketch_error` with intervals over draws, and the expected values.

        Also the `smallest_weight` and the `negative_share` over all trials and heads.
        """
        for which in ("kernel", "sketch"):
            samples = by_sequence(measurements[f"{which}_error"], measurements["sequences"]).swapaxes(0, 1)
            yield root_of_mean_square(f"{which}_error", samples, name=f"sketch_error.{which}")
        for which in ("kernel", "sketch"):
            # The expected values are exact for these inputs, so they have no interval.
            if (expected := measurements[f"{which}_expected"]) is not None:
                value = float(np.sqrt(np.square(expected).mean()))
                tracked = f"sketch_error.{which}_expected"
                yield Metric(f"{which}_expected", value, name=tracked, shown=("", 1.0) if which == "kernel" else None)
        for metric, reduce in (("smallest_weight", np.min), ("negative_share", np.mean)):
            if measurements[metric] is not None:
                raw = np.ravel(measurements[metric])
                yield Metric(metric, float(reduce(raw)), raw=raw, name=f"sketch_error.{metric}")

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The weights' error and its expected value, the sketch's error before squaring, and the smallest weight."""
        by_metric = {one.metric: one for one in quantities}
        error = by_metric["kernel_error"]
        interval = f" ± {error.high - error.value:.2g}" if math.isfinite(error.high) else ""
        words = [f"error {error.text}{interval}"]
        if "kernel_expected" in by_metric:
            words.append(f"expected {by_metric['kernel_expected'].text}")
        words.append(f"before squaring {by_metric['sketch_error'].text}")
        words.append(f"smallest weight {by_metric['smallest_weight'].value:.1e}")
        return ", ".join(words)


def _errors(attention: Polysketch, q: Tensor, k: Tensor, *, with_expected: bool) -> dict[str, Tensor]:
    """Errors of Theorems 1.1 and 2.2 for one sequence `(1, heads, n, h)`, and expected ones; each `(heads,)`."""
    left, right = attention.sketch(q)[0], attention.sketch(k)[0]
    degrees = {"kernel": attention.degree, "sketch": attention.degree // 2}
    sums: dict[str, Tensor] = defaultdict(lambda: q.new_zeros(q.shape[1]))
    # Some rows of a head at once, since n x n matrices of all heads are large.
    for head, start in itertools.product(range(q.shape[1]), range(0, q.shape[2], ROWS_AT_ONCE)):
        rows = slice(start, start + ROWS_AT_ONCE)
        inner, product = q[0, head, rows] @ k[0, head].T, left[head, rows] @ right[head].T
        power = inner ** degrees["sketch"]
        sums["kernel_error"][head] += (product.square() - power.square()).square().sum()
        sums["sketch_error"][head] += (product - power).square().sum()
        if with_expected:
            norms = q[0, head, rows].square().sum(-1)[:, None] * k[0, head].square().sum(-1)
            for which, squares in zip(degrees, expected_squares(inner, norms, attention.sketch_size), strict=True):
                sums[f"{which}_expected"][head] += squares.sum()
    lengths = [x[0].square().sum(-1) for x in (q, k)]
    whole = {which: math.prod((x**degree).sum(-1).sqrt() for x in lengths) for which, degree in degrees.items()}
    return {name: total.sqrt() / whole[name.partition("_")[0]] for name, total in sums.items()}


def _signs(attention: Polysketch, q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """Theorem 1.1 (1) from the features phi', and the negative weights that it avoids; each `(heads,)`."""
    q, k = q[:, :, :EXPLICIT_ROWS], k[:, :, :EXPLICIT_ROWS]
    left, right = (F.normalize(attention.sketch(x)[0], dim=-1) for x in (q, k))
    # Head by head, since r^2 features of all heads are large.
    weights = torch.stack([expand(a, 2) @ expand(b, 2).T for a, b in zip(left, right, strict=True)])
    signs = {"smallest_weight": weights.amin((1, 2))}
    if isinstance(attention.sketch, RandomSketch):
        groups, _, _, r = attention.sketch.matrices.shape
        signed = RandomSketch(attention.sketch.kind, attention.degree, attention.head_dim, r, groups).to(q)
        signed.draw(torch.Generator().manual_seed(attention.seed))
        signs["negative_share"] = (signed(q) @ signed(k).mT < 0).double().mean((0, 2, 3))
    return signs


def expected_squares(inner: Tensor, norms: Tensor, r: int) -> tuple[Tensor, Tensor]:
    """`E(<L, R>^2 - c^4)^2` and `E(<L, R> - c^2)^2` of a Gaussian sketch of degree 2 with r columns.

    `<L, R>` is the mean of r independent products of two independent `y = <q, g> <k, g>`, so its moments follow from
    those of y: `E y^t` of a pair of normal variables with variances |q|^2, |k|^2 and covariance c (Isserlis).
    `inner` has `c = <q, k>`, `norms` has `|q|^2 |k|^2`, of any shape.
    """
    c2 = inner.square()
    first = c2
    second = (norms + 2 * c2).square()
    third = (9 * norms + 6 * c2).square() * c2
    fourth = (9 * norms.square() + 72 * norms * c2 + 24 * c2.square()).square()
    distinct = [math.prod(range(r, r - k, -1)) / r**4 for k in range(5)]  # ordered k-tuples of columns, over r^4
    fourth_moment = (
        distinct[1] * fourth
        + distinct[2] * (4 * third * first + 3 * second.square())
        + distinct[3] * 6 * second * first.square()
        + distinct[4] * first**4
    )
    second_moment = first.square() + (second - first.square()) / r
    return fourth_moment - 2 * c2.square() * second_moment + c2**4, second_moment - first.square()
