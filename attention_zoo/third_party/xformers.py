"""Exact softmax attention by the kernels of the xformers package (Rabe and Staats 2021; Lefaudeux et al. 2022)."""

import dataclasses
import importlib
from typing import Any

import torch
from torch import Tensor

from attention_zoo.info import UnsupportedError
from attention_zoo.ops.decoding.states import KeyValueCache
from attention_zoo.registry import register
from attention_zoo.softmax import KernelSoftmax, Softmax
from attention_zoo.third_party.packages import require_package

# The kernels read a row of the bias in words of 128 bits, so it must start at a multiple of 8 elements of 16 bits.
ALIGNMENT = 8


@register
class XformersMemoryEfficient(KernelSoftmax):
    """Softmax attention by `xformers.ops.memory_efficient_attention`, whichever of its kernels takes the input.

    With padding the mask is a bias of batch x seq_len numbers, or batch x seq_len^2 if causal.

    Args:
        scale: factor of the scores; None is 1/sqrt(head_dim).

    Raises:
        UnsupportedError: the package is not installed, or none of its kernels takes the input.
    """

    info = dataclasses.replace(
        Softmax.info,
        name="xformers_memory_efficient",
        paper="Rabe, Staats 2021, as in Lefaudeux et al. 2022 (xformers)",
        package="xformers",
        devices=("cuda",),
        implementations=("reference", "fused"),
        dtypes=(torch.float32, torch.bfloat16, torch.float16),
    )

    def __init__(self, *, scale: float | None = None, **common: Any) -> None:
        super().__init__(scale=scale, **common)
        require_package(self.info, "xformers")

    def _why_no_fused_read(self, state: KeyValueCache, query: Tensor) -> str | None:
        return None  # the package refuses an input when it is called

    def _kernel(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
    ) -> tuple[Tensor, str]:
        package = importlib.import_module("xformers.ops")
        bias = package.LowerTriangularMask() if is_causal else None if mask is None else _aligned_bias(mask, query)
        by_position = (x.transpose(1, 2) for x in (query, key, value))
        try:
            out = package.memory_efficient_attention(*by_position, attn_bias=bias, scale=self.scale)
        except NotImplementedError as error:
            reasons = " ".join(str(error).split())
            raise UnsupportedError(f"{self.info.name}: no kernel takes the input ({reasons})") from error
        return out.transpose(1, 2), "memory_efficient_attention"


def _aligned_bias(visible: Tensor, query: Tensor) -> Tensor:
    """0 where `visible` `(batch, 1, 1 or queries, keys)`, else -inf, for every head and query, with aligned rows."""
    *rows, keys = visible.shape
    bias = query.new_zeros(*rows, keys + -keys % ALIGNMENT)[..., :keys]
    return bias.masked_fill_(~visible, -torch.inf).expand(*query.shape[:3], keys)
