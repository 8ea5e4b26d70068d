"""Softmax attention that also returns its log-sum-exp, by PyTorch's kernels (Dao et al. 2022, FlashAttention).

With the log-sum-exp, softmax attention over parts of the keys can be combined: results over disjoint keys merge, and
the weight of a key is `exp(score - lse)`.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_zoo.ops.gradients import once_differentiable
from attention_zoo.ops.operators import autocast

# The bias of a hidden key: below any score, and finite, so that a row of hidden keys only is not NaN.
HIDDEN = -1e30
# Weights in memory together, few enough for the caches of a CPU.
ENTRIES = 2**20
# Elements that a GPU's kernels load together: the width and the start of a row are multiples of it.
ALIGNED = 8
# The most heads in a grid of a GPU.
MOST_HEADS = 2**16 - 1
# PyTorch's memory-efficient kernel pads the log-sum-exp to a multiple of so many rows.
LSE_ROWS = 32
# What the flash kernel takes on a GPU; the columns that are added count.
FLASH_DTYPES, LARGEST_FLASH_DIM = (torch.float16, torch.bfloat16), 256

aten = torch.ops.aten


class Attended(NamedTuple):
    """`out = softmax(scale Q K^T) V` over the visible keys, `(batch, heads, queries, h)`; `lse` has no last dimension.

    `lse` is the logarithm of the sum of the exponentials of a row, in at least float32. A row that sees no key is
    zeros, with an `lse` of about `HIDDEN`. `backend` is the name of the kernel that ran.
    """

    out: Tensor
    lse: Tensor
    backend: str


def attend(query: Tensor, key: Tensor, value: Tensor, *, scale: float, hidden: Tensor | None = None) -> Attended:
    """Softmax attention and its log-sum-exp; gradients flow through both.

    Memory is linear in the lengths, masks included, and nothing waits for the device.

    Args:
        query: `(batch, heads, queries, h)`.
        key: `(batch, heads, keys, h)`; so is `value`.
        scale: factor of the scores.
        hidden: bool, broadcastable to `(batch, heads, queries, keys)`: True at keys that a query does not see. To
            add a number to the scores, add it to the log-sum-exp and `merge`: that is exact in any dtype.
    """
    return attend_with_column_norms(query, key, value, scale=scale, hidden=hidden, with_norms=False)[0]


def attend_with_column_norms(
    query: Tensor, key: Tensor, value: Tensor, *, scale: float, hidden: Tensor | None = None, with_norms: bool = True
) -> tuple[Attended, Tensor]:
    """`attend`, and the norm of each key's weights over the queries, `(batch, heads, keys)`, without a gradient."""
    query, key, value = autocast(query, key, value)
    h = query.shape[-1]
    query, key, value = (_aligned(x) for x in (query, key, value))
    settings = _Settings(scale, backend_of(query, hidden), with_norms)
    bias = None if hidden is None else _bias(hidden, query, key.shape[2])
    out, lse, norms = _Attend.apply(settings, query, key, value, bias)
    return Attended(out if out.shape[-1] == h else out[..., :h], lse, settings.backend), norms


def is_blind(lse: Tensor) -> Tensor:
    """Which rows see no key."""
    return lse < HIDDEN / 2


def merge(first: Attended, second: Attended) -> Attended:
    """Combine the results of the same queries over disjoint keys."""
    share = (second.lse - first.lse).sigmoid()[..., None]
    # In 16 bits the share of a few keys beside many would be lost.
    out = torch.lerp(first.out.to(share.dtype), second.out.to(share.dtype), share)
    return Attended(out.to(first.out.dtype), torch.logaddexp(first.lse, second.lse), first.backend)


def hidden_by(padding: Tensor | None) -> Tensor | None:
    """The keys that `(batch, keys)` padding hides, `(batch, 1, 1, keys)`; None for None."""
    return None if padding is None else padding[:, None, None]


def why_unsupported(query: Tensor) -> str | None:
    """Why no kernel takes this input; None if one does."""
    if query.device.type != "cpu" and query.dtype == torch.float64:
        return f"PyTorch's kernels take no {query.dtype} on {query.device.type}"
    return None


def backend_of(query: Tensor, hidden: Tensor | None) -> str:
    """The name of the kernel for this input: flash on a CPU; on a GPU flash only for 16 bits and nothing hidden."""
    # The backward pass has the columns of `_with_lse_column`, too.
    fits = query.dtype in FLASH_DTYPES and query.shape[-1] + ALIGNED <= LARGEST_FLASH_DIM
    return "flash" if query.device.type == "cpu" or (hidden is None and fits) else "efficient"


class _Settings(NamedTuple):
    scale: float
    backend: str
    with_norms: bool


def _aligned(x: Tensor) -> Tensor:
    """`x` with a layout that the kernels read: on a GPU, columns of zeros are added where the width needs it."""
    if x.device.type == "cpu":
        return x if x.stride(-1) == 1 else x.contiguous()
    if short := -x.shape[-1] % ALIGNED:
        return F.pad(x, (0, short)).contiguous()
    begins = all(step % ALIGNED == 0 for step in (x.storage_offset(), *x.stride()[:-1]))
    return x if begins and x.stride(-1) == 1 else x.clone(memory_format=torch.contiguous_format)


def _bias(hidden: Tensor, query: Tensor, keys: int) -> Tensor:
    """The bias that hides keys from a kernel: at least float32 on a CPU, on a GPU in the dtype of the queries."""
    on_cpu = query.device.type == "cpu"
    dtype = torch.promote_types(query.dtype, torch.float32) if on_cpu else query.dtype
    # -inf would give NaN in rows that see nothing; but float16 has no other number below any score.
    lowest = -torch.inf if dtype == torch.float16 else HIDDEN
    if on_cpu:
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, lowest)
    rows = F.pad(hidden.expand(*hidden.shape[:3], keys), (0, -keys % ALIGNED))
    bias = torch.zeros(rows.shape, dtype=dtype, device=hidden.device).masked_fill_(rows, lowest)
    return bias[..., :keys].expand(*query.shape[:3], keys)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, settings: _Settings, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        norms, rest = query.new_empty(0), []
        if settings.with_norms and query.device.type == "cpu":
            out, lse, norms = _rows_and_norms(query, key, value, bias, settings.scale)
        else:
            out, lse, *rest = _forward(query, key, value, bias, settings)
            if settings.with_norms:
                norms = _norms(query, key, bias, lse, settings.scale)
        if bias is not None:
            _clear(out, is_blind(lse))
        ctx.save_for_backward(query, key, value, bias, out, lse, *rest)
        ctx.settings, ctx.head_dim = settings, query.shape[-1]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(norms)
        return out, lse, norms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        query, key, value, bias, out, lse, *rest = ctx.saved_tensors
        d_out, d_lse, _ = grads
        d_out = torch.zeros_like(out) if d_out is None else d_out
        if bias is not None:
            d_out = d_out.masked_fill(is_blind(lse)[..., None], 0)
        if d_lse is not None:
            query, key, value, out, d_out = _with_lse_column(query, key, value, out, d_out, d_lse)
        gradients = _backward((d_out, query, key, value), bias, out, lse, rest, ctx.settings)
        # Without the columns that were added.
        return None, *(x[..., : ctx.head_dim] for x in gradients), None


def _clear(out: Tensor, blind: Tensor) -> None:
    """Zero the rows that see no key; on a CPU only if there are any, because that check is cheap there."""
    if out.device.type != "cpu" or torch.compiler.is_compiling() or blind.any():
        out.masked_fill_(blind[..., None], 0)


@torch.autocast("cpu", enabled=False)
def _rows_and_norms(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and column norms in one pass over the weights, as many rows at a time as fit into a cache."""
    precision = torch.promote_types(query.dtype, torch.float32)
    keys, values = key.flatten(0, 1).to(precision), value.flatten(0, 1).to(precision)
    outs, lses = [], []
    squares = keys.new_zeros(len(keys), 1, keys.shape[1])
    for rows in query.split(max(1, ENTRIES // squares.numel()), 2):
        weights = torch.bmm(rows.flatten(0, 1).to(precision), keys.mT).mul_(scale)
        if bias is not None:
            weights.unflatten(0, key.shape[:2]).add_(bias)
        largest = weights.amax(-1, keepdim=True)
        total = weights.sub_(largest).exp_().sum(-1, keepdim=True)
        outs.append(torch.bmm(weights, values).div_(total))
        lses.append(largest + total.log())
        squares.baddbmm_(total.square().reciprocal().mT, weights.square_())
    out, lse = (torch.cat(x, 1).unflatten(0, key.shape[:2]) for x in (outs, lses))
    return out.to(query.dtype), lse.squeeze(-1), squares.sqrt_().view(key.shape[:3])


def _norms(query: Tensor, key: Tensor, bias: Tensor | None, lse: Tensor, scale: float) -> Tensor:
    """Column norms from the log-sum-exp of the rows."""
    scores = (query @ key.mT).to(lse.dtype) * scale
    return (scores if bias is None else scores + bias).sub_(lse[..., None]).exp_().square_().sum(2).sqrt_()


def _with_lse_column(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, d_out: Tensor, d_lse: Tensor
) -> tuple[Tensor, ...]:
    """Inputs that make a backward kernel include the gradient of the log-sum-exp, `d lse_i / d s_ij = p_ij`.

    The kernel computes `d s_ij = p_ij (<d_out_i, v_j> - <d_out_i, out_i>)`: one more column, 1 in V, `d_lse` in `d_out`
    and 0 in `out`, adds `p_ij d_lse_i`.
    """
    query, key, out = (F.pad(x, (0, ALIGNED)) for x in (query, key, out))
    value = F.pad(F.pad(value, (0, 1), value=1.0), (0, ALIGNED - 1))
    d_out = F.pad(torch.cat([d_out, d_lse[..., None].to(d_out.dtype)], -1), (0, ALIGNED - 1))
    return query, key, value, out, d_out


def _forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, settings: _Settings) -> list[Tensor]:
    """Output, log-sum-exp and what else the backward kernel needs."""
    scale, backend, _ = settings
    if query.device.type == "cpu":
        kernel = aten._scaled_dot_product_flash_attention_for_cpu
        return list(kernel(query, key, value, 0.0, False, attn_mask=bias, scale=scale))
    if backend == "flash":
        out, lse, *rest = aten._scaled_dot_product_flash_attention(query, key, value, 0.0, False, scale=scale)
        return [out, lse, rest[4], rest[5]]
    kernel = aten._scaled_dot_product_efficient_attention
    out, lse, *rest = kernel(query, key, value, bias, True, 0.0, False, scale=scale)
    return [out, lse[..., : query.shape[2]].clamp_min(HIDDEN), *rest]


def _backward(
    inputs: tuple[Tensor, ...], bias: Tensor | None, out: Tensor, lse: Tensor, rest: list[Tensor], settings: _Settings
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value; `inputs` are the gradient of the output, query, key and value."""
    (_, query, key, _), (scale, backend, _) = inputs, settings
    if query.device.type == "cpu":
        kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return kernel(*inputs, out, lse, 0.0, False, attn_mask=bias, scale=scale)
    if backend == "flash":
        lengths, kernel = (query.shape[2], key.shape[2]), aten._scaled_dot_product_flash_attention_backward
        return kernel(*inputs, out, lse, None, None, *lengths, 0.0, False, *rest, scale=scale)
    # As the forward kernel returns them: padded rows have an lse of infinity, and out is by position, then by head.
    lse = F.pad(lse, (0, -lse.shape[-1] % LSE_ROWS), value=torch.inf)
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    wanted, kernel = [True, True, True, False], aten._scaled_dot_product_efficient_attention_backward
    return kernel(*inputs, bias, out, lse, *rest, 0.0, wanted, False, scale=scale)[:3]
