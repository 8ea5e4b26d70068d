"""Linformer and its unreduced form: Wang et al. 2020, Linformer, section 4, equation 7."""

from typing import Any

import torch
from torch import Tensor, nn

from attention_zoo.checks import check_bool, check_float, check_int
from attention_zoo.dense import AttentionDropout
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.draws import normal
from attention_zoo.ops.fused_softmax import attend, hidden_by
from attention_zoo.ops.masking import masked_softmax, visible_keys, zero_padding
from attention_zoo.registry import register


@register
class Linformer(AttentionDropout):
    """`softmax(Q (E K)^T / sqrt(h)) (F V)`: keys and values are projected along the sequence to `projection_dim`.

    E and F, `(projection_dim, max_seq_len)`, are shared by the heads; a shorter sequence uses their first
    columns.
    A projected key mixes all positions. So padding can only be zeroed before the projection, and there is no causal
    form.

    Args:
        projection_dim: rows of E and F, the paper's k; it may exceed the sequence length.
        share_key_value: project values with E, too.
        trainable: E and F are parameters, otherwise buffers.
        init_std: standard deviation of the normal initial entries; None is 1/sqrt(projection_dim), the
            Johnson-Lindenstrauss scale.
        unreduced: `D^-1 A S S^T V` with `A = exp(Q K^T / sqrt(h))`, D its row sums and S = E^T, which is then
            never trained (Linformer, equation 5; Skeinformer, section 3.3.2). Quadratic; `E[S S^T] = I`.
        dropout: probability of dropping one of the n x k weights in training mode, as in the released code; the
            reference does it.

    Raises:
        ValueError: `max_seq_len` is None.
    """

    info = AttentionInfo(
        name="linformer",
        paper="Wang et al. 2020, section 4, equation 7",
        approximates="softmax",
        padding=True,
        cross=True,
        random=True,
        complexity="O(n k h); unreduced O(n^2 h)",
        size="projection_dim",
        implementations=("reference", "fused"),
    )

    E: Tensor
    F: Tensor

    def __init__(
        self,
        *,
        projection_dim: int = 256,
        share_key_value: bool = False,
        trainable: bool = True,
        init_std: float | None = None,
        unreduced: bool = False,
        dropout: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(dropout=dropout, **common)
        if self.max_seq_len is None:
            raise ValueError("max_seq_len=None: must be an integer of at least 1, the longest sequence it takes")
        self.projection_dim = check_int("projection_dim", projection_dim)
        self.share_key_value = check_bool("share_key_value", share_key_value)
        self.trainable = check_bool("trainable", trainable)
        self.init_std = projection_dim**-0.5 if init_std is None else check_float("init_std", init_std, above=0)
        self.unreduced = check_bool("unreduced", unreduced)
        for name in ("E",) if share_key_value or unreduced else ("E", "F"):
            projection = torch.empty(projection_dim, self.max_seq_len)
            if trainable and not unreduced:
                self.register_parameter(name, nn.Parameter(projection))
            else:
                self.register_buffer(name, projection)
        self._draw()

    @torch.no_grad()
    def _draw(self) -> None:
        generator = self._generator()
        for projection in (*self.parameters(), *self.buffers()):
            projection.copy_(normal(projection.shape, generator) * self.init_std)

    def _projections(self, key: Tensor) -> tuple[Tensor, Tensor]:
        key_projection = self.E[:, : key.shape[2]].to(key.dtype)
        if self.share_key_value or self.unreduced:
            return key_projection, key_projection
        return key_projection, self.F[:, : key.shape[2]].to(key.dtype)

    def _projected(self, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keys, values and padding for the softmax attention after the projection."""
        key_projection, value_projection = self._projections(key)
        value = value_projection @ zero_padding(value, padding)
        if self.unreduced:
            return key, value_projection.T @ value, padding
        return key_projection @ zero_padding(key, padding), value, None

    def _weights(self, query: Tensor, key: Tensor, padding: Tensor | None) -> Tensor:
        scores = query @ key.transpose(-1, -2) * self.head_dim**-0.5
        return masked_softmax(scores, visible_keys(query.shape[2], key.shape[2], False, padding, key.device))

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
        key, value, padding = self._projected(key, value, padding)
        return self._drop(self._weights(query, key, padding)) @ value

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> tuple[Tensor, str]:
        key, value, padding = self._projected(key, value, padding)
        out, _, backend = attend(query, key, value, scale=self.head_dim**-0.5, hidden=hidden_by(padding))
        return out, backend

    def _rows(self, query: Tensor, key: Tensor, visible: Tensor, positions: Tensor) -> Tensor:
        """`softmax(Q (E K)^T / sqrt(h)) F`, or `D^-1 A S S^T`; entries may be negative."""
        projection = self._projections(key)[1]
        mixing = projection.T @ projection if self.unreduced else projection
        projected, _, padding = self._projected(key, key, ~visible[:, 0, 0])
        return (self._weights(query, projected, padding) @ mixing).masked_fill(~visible, 0)

    def _flops(self, seq_len: int) -> int:
        """`E K`, `F V`, scores and weighted values; unreduced, `S (S^T V)` and both n x n x h products."""
        projections = 4 * seq_len * self.projection_dim * self.head_dim
        attended = seq_len if self.unreduced else self.projection_dim
        return projections + 4 * seq_len * attended * self.head_dim
