"""Which queries, keys and values a mechanism takes; what it does not take is refused in one line."""

from typing import ClassVar

import torch
from torch import Tensor

from attention_zoo.checks import check_tensors, require
from attention_zoo.info import AttentionInfo, UnsupportedError
from attention_zoo.ops.operators import product_dtype


class InputChecks:
    """The checks of `Attention`, by what it was created with."""

    info: ClassVar[AttentionInfo]
    num_heads: int
    head_dim: int
    causal: bool
    max_seq_len: int | None

    def _check_inputs(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        self._check_shapes(query, key, value, padding)
        if query.device.type not in self.info.devices:
            devices = ", ".join(self.info.devices)
            raise UnsupportedError(f"{self.info.name} does not run on {query.device.type}; it runs on {devices}")
        # Powers, exponentials and sums over keys overflow float16 under autocast, too.
        for dtype, given in ((query.dtype, ""), (product_dtype(query), "autocast to ")):
            if dtype not in self.info.dtypes:
                dtypes = ", ".join(map(str, self.info.dtypes))
                raise UnsupportedError(f"{self.info.name} does not take {given}{dtype}; it takes {dtypes}")

    def _check_shapes(self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> None:
        check_tensors(query, key, value, self.num_heads, self.head_dim)
        self._check_length(max(query.shape[2], key.shape[2]))
        if query.shape[2] != key.shape[2] and (self.causal or not self.info.cross):
            kind, got = " (causal)" if self.causal else "", f"{key.shape[2]} keys and {query.shape[2]} queries"
            raise UnsupportedError(f"{self.info.name}{kind} needs as many keys as queries, got {got}")
        if padding is not None:
            if not self.info.padding:
                raise UnsupportedError(f"{self.info.name} does not support key_padding_mask")
            shape = (key.shape[0], key.shape[2])
            require("key_padding_mask.dtype", padding.dtype, padding.dtype == torch.bool, "torch.bool")
            require("key_padding_mask.shape", tuple(padding.shape), tuple(padding.shape) == shape, f"{shape}")
            require("key_padding_mask.device", padding.device, padding.device == key.device, f"key's {key.device}")

    def _check_length(self, length: int) -> None:
        limit = self.max_seq_len or length
        allowed = f"between 1 and max_seq_len={limit}" if self.max_seq_len else "at least 1"
        require("seq_len", length, 1 <= length <= limit, allowed)
