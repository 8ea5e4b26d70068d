"""The gate before a measurement: the mechanism's output against a float64 reference on a short stretch of the input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_zoo import Attention, UnsupportedError
from attention_zoo.sampled import SampledAttention
from bench.errors import IncorrectError, NonFiniteError
from bench.measures.workbench import build_attention

# Long enough that a block algorithm crosses the edge of a block.
BEYOND_ONE_BLOCK = 65
DEFAULT_BLOCK = 512
# Relative error (Frobenius) that rounding explains: scores of polynomial attention are raised to the 8th power.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 6e-2}


@torch.no_grad()
def check_output(attention: Attention, config: dict[str, Any], inputs: tuple[Tensor, Tensor, Tensor]) -> dict[str, Any]:
    """Compare with the dense matrix (where there is one) of the same mechanism in float64 on the CPU.

    Where samples are drawn by the data, rounding may swap one for another and change some rows: there the median
    error of a row counts.

    Returns:
        The error, its tolerance, and what was compared.

    Raises:
        IncorrectError: the error exceeds the tolerance.
        NonFiniteError: the output holds NaN or infinity.
    """
    length = min(config["seq_len"], (getattr(attention, "block_size", None) or DEFAULT_BLOCK) + BEYOND_ONE_BLOCK)
    short = tuple(x[:1, :, :length] for x in inputs)
    out = attention(*short).double().cpu()
    require_finite(out, "the mechanism's output")
    reference = build_attention(config, impl="reference").double().eval()
    reference.load_state_dict(attention.state_dict())
    query, key, value = (x.double().cpu() for x in short)
    try:
        expected = reference.attention_matrix(query, key, value=value) @ value
        against = "dense matrix, float64"
    except UnsupportedError:
        expected = reference(query, key, value)
        against = "reference implementation, float64"
    difference, scale = (out - expected).norm(dim=-1), expected.norm(dim=-1)
    if isinstance(attention, SampledAttention):
        error = float((difference / scale.clamp_min(1e-30)).median())
    else:
        error = float(difference.norm() / scale.norm().clamp_min(1e-30))
    tolerance = TOLERANCES[attention_dtype(config)]
    if not error <= tolerance:
        raise IncorrectError(
            f"{config['label']}: relative error {error:.1e} against the {against}, allowed {tolerance:.0e}"
        )
    return {"error": error, "tolerance": tolerance, "reference": against, "seq_len": length}


def attention_dtype(config: dict[str, Any]) -> torch.dtype:
    """The dtype that a configuration names."""
    return getattr(torch, config["dtype"])


def require_finite(out: Tensor, what: str) -> None:
    """Raise `NonFiniteError` with the count and the first index unless all of `out` is finite."""
    bad = ~torch.isfinite(out)
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        raise NonFiniteError(f"{what}: {int(bad.sum())} of {out.numel()} values are not finite, the first at {first}")
