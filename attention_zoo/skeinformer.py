"""Skeinformer: Chen et al. 2022, Sketching as a Tool for Understanding and Accelerating Self-attention."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_zoo.base import Rows
from attention_zoo.checks import check_bool, check_choice, check_int
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.fused_softmax import Attended, attend, attend_with_column_norms, hidden_by, merge
from attention_zoo.ops.masking import masked_softmax, visible_keys
from attention_zoo.ops.sampling import assign_rows, place_rows, sample_without_replacement, take_rows
from attention_zoo.registry import register
from attention_zoo.sampled import SampledAttention


class MatrixSketch(NamedTuple):
    """The parts of the attention matrix that algorithm 1 computes: d columns and d rows, or all n if there are fewer.

    If fewer than d positions are not padding, the surplus indices point to padding and have weight zero.
    """

    columns: Tensor  # J', (batch, heads, d)
    column_weights: Tensor  # D^-1 A^J', (batch, heads, n, d)
    unselected: Tensor  # (batch, heads, 1, n) bool: neither in J' nor padding
    fill: Tensor | None  # D^-1 g, (batch, heads, n, 1): the weight of each unselected key; None is zero
    exact_rows: tuple[Tensor, Tensor] | None  # J, (batch, d), and B_J, (batch, heads, d, n), to be assigned


@register
class Skeinformer(SampledAttention):
    """Important columns of the softmax matrix, their geometric mean for the others, exact rows at the pilots.

    Algorithm 1 with one change: J is drawn without replacement, because a row assigned twice would get its
    gradient twice. Row maxima are subtracted before exponentiating, which changes no ratio. J is
    shared by the heads, J' is drawn for each head; no gradient flows through the draws. `num_features >= n` is
    softmax attention.

    Args:
        num_features: d, the number of pilot rows and of sampled columns.
        column_sampling: `importance` draws J' by equation 5, `uniform` uniformly.
        row_normalization: `adaptive` is equation 6; `simple` is the softmax over the sampled columns; `none`
            divides by the exact row sums (quadratic) and fills nothing.
        pilot_reuse: replace the rows of the pilots by exact rows.
    """

    info = AttentionInfo(
        name="skeinformer",
        paper="Chen et al. 2022, algorithm 1",
        approximates="softmax",
        padding=True,
        random=True,
        data_dependent=True,
        complexity="O(n d h)",
        size="num_features",
        implementations=("reference", "fused"),
    )

    def __init__(
        self,
        *,
        num_features: int = 256,
        column_sampling: str = "importance",
        row_normalization: str = "adaptive",
        pilot_reuse: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.num_features = check_int("num_features", num_features)
        self.column_sampling = check_choice("column_sampling", column_sampling, ("importance", "uniform"))
        self.row_normalization = check_choice("row_normalization", row_normalization, ("adaptive", "simple", "none"))
        self.pilot_reuse = check_bool("pilot_reuse", pilot_reuse)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        sketch = self.sketch(query, key, value, padding)
        output = sketch.column_weights @ value.take_along_dim(sketch.columns[..., None], 2)
        if sketch.fill is not None:
            output = output + sketch.fill * (sketch.unselected.to(value.dtype) @ value)
        if sketch.exact_rows is not None:
            pilots, pilot_weights = sketch.exact_rows
            output = assign_rows(output, pilots[:, None], pilot_weights @ value)
        return output

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        batch, heads, n, _ = query.shape
        noise, scale = self._batch_noise(query), self.head_dim**-0.5
        visible = visible_keys(1, n, False, padding, query.device)
        hidden = hidden_by(padding)
        importance, exact = torch.ones_like(noise[:, 1:]), None
        if self.pilot_reuse:
            pilots = self._draw_pilots(noise[:, 0], visible)
            of_pilots = take_rows(query, pilots), key, value
            if self.column_sampling == "uniform":
                exact = attend(*of_pilots, scale=scale, hidden=hidden)
            else:
                exact, norms = attend_with_column_norms(*of_pilots, scale=scale, hidden=hidden)
                importance = norms * torch.linalg.vector_norm(value.detach(), dim=3, dtype=norms.dtype)
        elif self.column_sampling == "importance":
            with torch.no_grad():
                importance = self._importance(self._pilot(query, key, noise[:, 0], visible)[1], value)
        columns = sample_without_replacement(importance, noise[:, 1:], self.num_features, visible[:, :, 0])
        out, _, backend = self._attend_columns(query, key, value, columns, visible.expand(batch, heads, 1, n), hidden)
        return (out if exact is None else assign_rows(out, pilots, exact.out)), backend

    def _attend_columns(
        self, query: Tensor, key: Tensor, value: Tensor, columns: Tensor, visible: Tensor, hidden: Tensor | None
    ) -> Attended:
        """Every row from the sampled columns; the caller overwrites the rows of the pilots."""
        scale = self.head_dim**-0.5
        keys, values = take_rows(key, columns), take_rows(value, columns)
        selected = visible.take_along_dim(columns[:, :, None], 3)
        surplus = None if hidden is None else ~selected
        sampled = attend(query, keys, values, scale=scale, hidden=surplus)
        if self.row_normalization == "adaptive":
            unselected = visible.scatter(3, columns[:, :, None], False)
            return merge(sampled, geometric_mean(query, keys, value, selected, unselected, scale))
        if self.row_normalization == "none":
            whole = attend(query, key, value, scale=scale, hidden=hidden).lse
            return sampled._replace(out=sampled.out * (sampled.lse - whole).exp()[..., None].to(sampled.out.dtype))
        return sampled

    def _output_rows(self, query: Tensor, key: Tensor, value: Tensor, rows: Tensor, item: int, batch: int) -> Tensor:
        noise = self._batch_noise(query.expand(batch, -1, -1, -1))[item : item + 1]
        return self._matrix(query, key, value, None, rows, noise) @ value

    def _matrix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        padding: Tensor | None,
        rows: Rows,
        noise: Tensor | None = None,
    ) -> Tensor:
        """The sketched softmax matrix; importance sampling needs the norms of `value`.

        Raises:
            ValueError: `value` is None with `column_sampling="importance"`.
        """
        sketch = self.sketch(query, key, value, padding, noise)
        weights = sketch.column_weights[:, :, rows]
        fill = torch.zeros_like(weights[..., :1]) if sketch.fill is None else sketch.fill[:, :, rows]
        matrix = (fill * sketch.unselected).scatter(3, sketch.columns[:, :, None].expand_as(weights), weights)
        if sketch.exact_rows is None:
            return matrix
        pilots, pilot_weights = sketch.exact_rows
        positions = torch.arange(query.shape[2], device=query.device)[rows]
        return place_rows(matrix, positions, pilots[:, None], pilot_weights)

    def _batch_noise(self, query: Tensor) -> Tensor:
        """Noise for the pilots and for each head's columns, `(batch, 1 + heads, n)`; it depends on the batch size."""
        batch, heads, n, _ = query.shape
        return self._noise((n, batch, 1 + heads), query.device).permute(1, 2, 0)

    def sketch(
        self, query: Tensor, key: Tensor, value: Tensor | None, padding: Tensor | None, noise: Tensor | None = None
    ) -> MatrixSketch:
        """Algorithm 1 without the products with V; uniform sampling does not need `value`."""
        batch, heads, n, _ = query.shape
        noise = self._batch_noise(query) if noise is None else noise
        visible = visible_keys(1, n, False, padding, query.device).expand(batch, heads, 1, n)
        importance = torch.ones_like(noise[:, 1:])
        pilot = None
        if self.pilot_reuse or self.column_sampling == "importance":
            pilot = self._pilot(query, key, noise[:, 0], visible)
            if self.column_sampling == "importance":
                importance = self._importance(pilot[1], value)
        columns = sample_without_replacement(importance, noise[:, 1:], self.num_features, visible[:, :, 0])
        unselected = visible.scatter(3, columns[:, :, None], False)
        weights, fill = self._normalise(query, key, columns, visible, unselected)
        return MatrixSketch(columns, weights, unselected, fill, pilot if self.pilot_reuse else None)

    def _pilot(self, query: Tensor, key: Tensor, noise: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """J, `(batch, d)`, uniform over positions that are not padding, and `B_J = softmax(Q_J K^T / sqrt(h))`."""
        pilots = self._draw_pilots(noise, visible)[:, 0]
        scores = self._scores(query.take_along_dim(pilots[:, None, :, None], 2), key)
        return pilots, masked_softmax(scores, visible)

    def _draw_pilots(self, noise: Tensor, visible: Tensor) -> Tensor:
        """J, `(batch, 1, d)`."""
        return sample_without_replacement(torch.ones_like(noise), noise, self.num_features, visible[:, 0, 0])[:, None]

    @torch.no_grad()
    def _importance(self, pilot_weights: Tensor, value: Tensor | None) -> Tensor:
        """Equation 5, not normalised: column norms of B_J times row norms of V, `(batch, heads, n)`.

        Surplus pilots do no harm: where there are any, all columns that are not padding are selected anyway.
        """
        if value is None:
            raise ValueError("value=None: must be given, column_sampling='importance' samples by its norms")
        precision = torch.promote_types(value.dtype, torch.float32)
        columns = torch.linalg.vector_norm(pilot_weights, dim=2, dtype=precision)
        return columns * torch.linalg.vector_norm(value, dim=3, dtype=precision)

    def _normalise(
        self, query: Tensor, key: Tensor, columns: Tensor, visible: Tensor, unselected: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Weights `(batch, heads, n, d)` of the columns and `(batch, heads, n, 1)` of each unselected key."""
        if self.row_normalization == "none":
            return masked_softmax(self._scores(query, key), visible).take_along_dim(columns[:, :, None], 3), None
        scores = self._scores(query, key.take_along_dim(columns[..., None], 2))
        selected = visible.take_along_dim(columns[:, :, None], 3)
        if self.row_normalization == "simple":
            return masked_softmax(scores, selected), None
        return adaptively_normalised(scores, selected, unselected.sum(-1, keepdim=True))

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.transpose(-1, -2) * self.head_dim**-0.5

    def _flops(self, seq_len: int) -> int:
        """Scores and weighted values of columns and pilots, and the fill; all scores if D is exact."""
        n, d = seq_len, min(self.num_features, seq_len)
        products = {"adaptive": 2 * n * d + 2 * n, "simple": 2 * n * d, "none": n * n + n * d}[self.row_normalization]
        products += n * d * (self.pilot_reuse or self.column_sampling == "importance")
        products += n * d * self.pilot_reuse
        return 2 * products * self.head_dim


def adaptively_normalised(scores: Tensor, selected: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Equation 6: `D^-1 A^J'` and `D^-1 g`, g the geometric mean of a row of `A^J'`, `D = A^J' 1 + others g`.

    Args:
        scores: `(batch, heads, n, d)`, the logarithms of `A^J'`.
        selected: `(batch, heads, 1, d)` bool, False at surplus columns.
        others: `(batch, heads, 1, 1)`, the number of keys that are neither selected nor padding.
    """
    log_a = scores.to(torch.promote_types(scores.dtype, torch.float32))
    count = selected.sum(-1, keepdim=True)
    # The ratio does not depend on the subtracted maximum, so no gradient needs to flow through it.
    log_max = log_a.detach().masked_fill(~selected, -torch.inf).amax(-1, keepdim=True).masked_fill(count == 0, 0)
    a = (log_a - log_max).masked_fill(~selected, -torch.inf).exp()
    log_g = log_a.masked_fill(~selected, 0).sum(-1, keepdim=True) / count.clamp_min(1)
    g = (log_g - log_max).exp()
    row_sum = (a.sum(-1, keepdim=True) + others * g).masked_fill(count == 0, 1)
    return (a / row_sum).to(scores.dtype), (g / row_sum).to(scores.dtype)


def geometric_mean(
    query: Tensor, keys: Tensor, value: Tensor, selected: Tensor, unselected: Tensor, scale: float
) -> Attended:
    """The part of equation 6 for the keys that were not selected, as attention to one key, to `merge` with the columns.

    `log g` is the mean of the columns' scores, and so the score of the mean of their keys. All keys that were not
    selected have this score: together they are one key with the mean of their values, and the logarithm of their number
    added to its log-sum-exp.

    Args:
        query: `(batch, heads, n, h)`; so is `value`.
        keys: `(batch, heads, d, h)`, the keys of the columns.
        selected: `(batch, heads, 1, d)` bool, False at surplus columns.
        unselected: `(batch, heads, 1, n)` bool.
        scale: factor of the scores.
    """
    precision = torch.promote_types(keys.dtype, torch.float32)
    # Not surplus columns: their keys are padding, which may be too large for a mean (and then no other key is left).
    shown = selected.to(precision)
    mean_key = shown @ keys.to(precision) / shown.sum(-1, keepdim=True).clamp_min(1)
    others = unselected.sum(-1, keepdim=True)
    mean_value = unselected.to(value.dtype) @ value / others.clamp_min(1)
    one = attend(query, mean_key.to(keys.dtype), mean_value.to(value.dtype), scale=scale)
    return one._replace(lse=one.lse + others.squeeze(-1).to(precision).log())
