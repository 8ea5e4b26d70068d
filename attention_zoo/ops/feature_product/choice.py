"""Which fast path computes a normalised `feature_product`: `cpu` on a CPU, the Triton kernels on a GPU."""

from typing import Any

import torch
from torch import Tensor

from attention_zoo.ops import launching
from attention_zoo.ops.feature_product import cpu, tiles
from attention_zoo.ops.feature_product.blocks import LEAST, SLAB, Features, Form, form_of
from attention_zoo.ops.feature_product.chunks import packed_products
from attention_zoo.ops.feature_product.reference import product_flops
from attention_zoo.ops.masking import zero_padding

if launching.HAS_KERNELS:
    from attention_zoo.ops.feature_product import triton


def why_unsupported(query: Tensor, features: int, *, block_size: int | None, degree: int = 1) -> str | None:
    """Why no fast path takes this input; None if one does."""
    if not launching.on_gpu(query):
        return cpu.why_unsupported(query)
    if (reason := launching.why_unsupported(query)) is not None:
        return reason
    return tiles.why_unsupported(query, features, block_size, degree)


def normalised_product(
    query: Tensor, key: Tensor, value: Tensor, *, features: Features, padding: Tensor | None, **options: Any
) -> tuple[Tensor, str]:
    """The fast path of the tensors' device, with the arguments and results of `cpu.normalised_block_product`.

    On a GPU the features of all queries and keys are in memory, weights and squared features never.
    """
    if not launching.on_gpu(query):
        return cpu.normalised_block_product(query, key, value, features=features, padding=padding, **options)
    left, _ = features.function(query, features.parameters)
    right, log_scale = features.function(key, features.parameters)
    right = zero_padding(right, padding)
    if log_scale is not None and padding is not None:
        log_scale = log_scale.masked_fill(padding[:, None], LEAST)
    return triton.normalised_product(left, right, value, log_scale=log_scale, **options)


def is_quadratic(seq_len: int, features: int, head_dim: int, device: torch.device, **options: Any) -> bool:
    """Whether the fast path computes every weight (the parallel form); options are those of `form_of`."""
    return _form(seq_len, features, head_dim, device, options).quadratic


def fused_flops(seq_len: int, features: int, head_dim: int, device: torch.device, **options: Any) -> int:
    """FLOPs of one head by the fast path; options are those of `form_of`."""
    form, by_triton = _form(seq_len, features, head_dim, device, options), launching.is_gpu(device)
    return product_flops(
        seq_len,
        features,
        head_dim + 1,
        causal=options["causal"],
        block_size=form.block_size,
        degree=options.get("degree", 1),
        inner=options.get("inner"),
        width=form.width,
        slab=SLAB if form.quadratic and not by_triton else None,
        skips_future=by_triton,
    )


def _form(seq_len: int, features: int, head_dim: int, device: torch.device, options: dict[str, Any]) -> Form:
    if not launching.is_gpu(device):
        return form_of(seq_len, seq_len, features, head_dim, **options)
    degree = options.get("degree", 1)
    block_size = options.get("block_size") or tiles.default_block_size(seq_len, features, degree)
    width = packed_products(features) if degree == 2 else features
    return Form(options["causal"] and block_size >= seq_len, min(seq_len, block_size), width)
