"""PyTorch's attention kernels of a GPU, for machines without one: what they refuse, and what they compute.

Each takes CPU tensors as `torch.ops.aten` would be given a GPU's, raises where the real kernel does, or reads other
memory than was meant, and computes in float32 with all scores in memory. Read from PyTorch's sources (`attention.cu`,
`attention_backward.cu`, `kernel_forward.h`, `kernel_backward.h`, `flash_api.cpp`), 2.6 to 2.13.
"""

import math

import torch
import torch.nn.functional as F

LOADED_BYTES = 16  # by a thread, at once: where rows begin
LSE_ROWS = 32
LARGEST_GRID = 65535  # of heads; batches are split by PyTorch
FLASH_DIM = 256


def _check(holds, message):
    if not holds:
        raise RuntimeError(message)


def _check_rows(**tensors):
    """Rows are loaded 16 bytes at a time, and all tensors are of one dtype and device."""
    dtypes = {name: x.dtype for name, x in tensors.items()}
    _check(len(set(dtypes.values())) == 1, f"expected one dtype, got {dtypes}")
    for name, x in tensors.items():
        aligned = LOADED_BYTES // x.element_size()
        _check(x.stride(-1) == 1, f"{name} must be contiguous in its last dimension, got strides {x.stride()}")
        begins = (x.storage_offset(), *x.stride()[:-1])
        _check(all(at % aligned == 0 for at in begins), f"{name} is not correctly aligned, got {begins}")
        _check(x.shape[1] <= LARGEST_GRID, f"invalid configuration argument: {x.shape[1]} heads")


def _check_efficient(query, key, value, bias):
    floats = (torch.float16, torch.bfloat16, torch.float32)
    _check(query.dtype in floats, f"cutlassF: no kernel found for {query.dtype}")
    _check_rows(query=query, key=key, value=value)
    if bias is not None:
        _check(bias.dtype == query.dtype, "invalid dtype for bias - should match query's dtype")
        shape = (*query.shape[:3], key.shape[2])
        _check(tuple(bias.shape) == shape, f"attn_bias: wrong shape {tuple(bias.shape)}, expected {shape}")
        _check_rows(attn_bias=bias)


def _check_flash(query, key, value):
    _check(query.dtype in (torch.float16, torch.bfloat16), f"FlashAttention takes 16 bits, got {query.dtype}")
    h = query.shape[-1]
    _check(h % 8 == 0 and h <= FLASH_DIM, f"FlashAttention takes multiples of 8 up to {FLASH_DIM}, got head_dim {h}")
    _check_rows(query=query, key=key, value=value)


def _scores(query, key, bias, causal, scale):
    scores = scale * query.float() @ key.float().mT
    if bias is not None:
        scores = scores + bias.float()
    return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf) if causal else scores


def _side_by_side(x):
    """As the kernels lay out what they write: the heads of a row next to each other."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _forward(query, key, value, bias, causal, scale):
    """The output, which is not a number in rows that see nothing but minus infinity, and the log-sum-exp."""
    scores = _scores(query, key, bias, causal, scale)
    lse = scores.logsumexp(-1)
    # The weights are rounded before they meet the values.
    out = (scores - lse[..., None]).exp().to(value.dtype).float() @ value.float()
    return _side_by_side(out.to(value.dtype)), lse


def _backward(d_out, query, key, value, bias, out, lse, causal, scale):
    weights = (_scores(query, key, bias, causal, scale) - lse[..., None]).exp()
    d_out = d_out.float()
    delta = (d_out * out.float()).sum(-1, keepdim=True)
    d_scores = weights * (d_out @ value.float().mT - delta) * scale
    gradients = d_scores @ key.float(), d_scores.mT @ query.float(), weights.mT @ d_out
    return tuple(_side_by_side(x.to(query.dtype)) for x in gradients)


def efficient_forward(query, key, value, bias, compute_lse, dropout=0.0, causal=False, *, scale):
    assert compute_lse and dropout == 0
    _check_efficient(query, key, value, bias)
    out, lse = _forward(query, key, value, bias, causal, scale)
    lse = F.pad(lse, (0, -lse.shape[-1] % LSE_ROWS), value=math.inf)
    return out, lse, *(torch.zeros((), dtype=torch.int64) for _ in range(2))


def efficient_backward(d_out, query, key, value, bias, out, lse, seed, offset, dropout, wanted, causal=False, *, scale):
    assert wanted == [True, True, True, False] and dropout == 0
    _check_efficient(query, key, value, bias)
    queries = query.shape[2]
    _check(lse.dtype == torch.float32 and lse.shape[-1] % LSE_ROWS == 0, "logsumexp is not of the kernel's rows")
    _check(lse[..., queries:].isposinf().all(), "logsumexp of rows that are none weighs")
    if query.dtype != torch.float32:
        _check(out.transpose(1, 2).is_contiguous(), f"the output is read with other strides than {out.stride()}")
    lse = lse[..., :queries]
    return *_backward(d_out, query, key, value, bias, out, lse, causal, scale), torch.empty(0)


def flash_forward(query, key, value, dropout=0.0, causal=False, *, scale):
    assert dropout == 0
    _check_flash(query, key, value)
    out, lse = _forward(query, key, value, None, causal, scale)
    rng, unused, debug = (torch.zeros((), dtype=torch.int64) for _ in range(3))
    return out, lse, None, None, query.shape[2], key.shape[2], rng, unused, debug


def flash_backward(
    d_out, query, key, value, out, lse, starts_q, starts_k, queries, keys, dropout, causal, seed, offset, *, scale
):
    assert dropout == 0 and (queries, keys) == (query.shape[2], key.shape[2])
    _check_flash(query, key, value)
    return _backward(d_out, query, key, value, None, out, lse, causal, scale)


# By the name of the operation in `torch.ops.aten`.
KERNELS = {
    "_scaled_dot_product_efficient_attention": efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": efficient_backward,
    "_scaled_dot_product_flash_attention": flash_forward,
    "_scaled_dot_product_flash_attention_backward": flash_backward,
}
