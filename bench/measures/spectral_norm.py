"""The error of an approximation, `||BV - R||_2`: Skeinformer, section 5, Figure 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_zoo import UnsupportedError
from bench.errors import NonFiniteError


@torch.no_grad()
def measure(workbench: Any) -> dict[str, Any]:
    """Spectral norms of the errors, head by head, for every sequence and every redraw of the mechanism.

    BV is the output of the exact function that the mechanism approximates, R the mechanism's own. A trial is
    one sequence and one draw: `config["repeats"]` draws per sequence, one where the mechanism is not random.

    Returns:
        `features`: the size d of the mechanism, None where it has none. `reference`: the exact function.
        `absolute` `||BV - R||_2`, `exact_norm` `||BV||_2` and `relative`, their ratio: each a list over
        trials (the redraws of a sequence side by side) of lists over heads.

    Raises:
        UnsupportedError: the mechanism approximates nothing.
        NonFiniteError: NaN or infinity in an output or a norm.
    """
    attention = workbench.attention()
    info = attention.info
    if info.approximates is None:
        raise UnsupportedError(f"{info.name} is a function of its own: there is no exact output to compare it with")
    exact = workbench.exact()
    query, key, value = workbench.inputs()
    gate = workbench.gate((query[:1], key[:1], value[:1]))
    gate.look(workbench.config["label"], attention)
    precision = torch.promote_types(query.dtype, torch.float32)
    redraws = workbench.config["repeats"] if info.random else 1
    trials = len(query) * redraws
    result: dict[str, Any] = {"absolute": [], "relative": [], "exact_norm": []}
    for trial in range(trials):
        sequence = slice(trial // redraws, trial // redraws + 1)
        inputs = [tensor[sequence] for tensor in (query, key, value)]
        if trial % redraws == 0:
            target = exact(*(tensor.to(precision) for tensor in inputs)).double()
            exact_norm = _spectral_norm("exact output", target)
        if info.random:
            # Multiplied, so that cells that differ in their seed alone share no draw either.
            attention.resample(workbench.config["seed"] * trials + trial)
        absolute = _spectral_norm("error", attention(*inputs).double() - target)
        relative = _finite("relative error", absolute / exact_norm)
        for name, norms in (("absolute", absolute), ("relative", relative), ("exact_norm", exact_norm)):
            result[name].append(norms.tolist())
        workbench.progress(trial + 1, trials)
    gate.close()
    features = None if info.size is None else getattr(attention, info.size)
    return {"features": features, "reference": info.approximates, **result}


def _spectral_norm(name: str, matrices: Tensor) -> Tensor:
    """The largest singular value per head of a `(1, heads, seq_len, head_dim)` float64 tensor."""
    # On CUDA the decomposition of a matrix with a NaN returns believable numbers (pytorch issue 43567).
    return _finite(name, torch.linalg.matrix_norm(_finite(name, matrices)[0], ord=2))


def _finite(name: str, tensor: Tensor) -> Tensor:
    bad = ~torch.isfinite(tensor)
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        raise NonFiniteError(f"{name}: {int(bad.sum())} of {bad.numel()} values are not finite, the first at {first}")
    return tensor
