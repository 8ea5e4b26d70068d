"""Units in which the scores of a query are numbers whose powers neither overflow nor vanish."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_zoo.ops.scans import running_maximum

# Of 2, in a weight: one more than these is left, and for float32 many, because weights and values are summed.
LARGEST_EXPONENT = {torch.float16: 15, torch.bfloat16: 60, torch.float32: 60}
# The square of a smaller norm is no normal float32.
LEAST_NORM = 2.0**-63


@torch.no_grad()
def score_units(query: Tensor, key: Tensor, *, degree: int, scale: float, bias: float, causal: bool) -> Tensor:
    """Powers of two, one for each query, in which no key that it sees weighs more than 2^60, in float16 2^15.

    Nor does the bias there exceed 1.
    `scale |<q_i, k_j>| <= scale |q_i| max_j |k_j|` (Cauchy-Schwarz); only keys that a query sees count.

    Args:
        query: `(batch, heads, queries, h)` of norms up to 1e18.
        key: `(batch, heads, keys, h)`, likewise; zeros at padding.
        degree: p in the weights `(scale <q, k>)^p`.
        scale: factor of the scores.
        bias: what is added to the sum of weights.
        causal: query i sees keys j <= i only.

    Returns:
        float32 `(batch, heads, queries)`.
    """
    of_query, of_keys = _norms(query), _norms(key)
    largest = running_maximum(of_keys) if causal else of_keys.amax(-1, keepdim=True)
    bound = of_query * largest * (scale / 2 ** (LARGEST_EXPONENT[query.dtype] // degree))
    bound = bound.clamp_min(max(bias ** (1 / degree), torch.finfo(bound.dtype).tiny))
    return bound / torch.frexp(bound).mantissa


def _norms(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).clamp_min(LEAST_NORM)
