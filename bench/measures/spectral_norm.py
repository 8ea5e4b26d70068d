"""The error of an approximation, `||BV - R||_2`: Skeinformer, section 5, Figure 1."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attention_zoo import UnsupportedError
from bench.measures import Sized, register
from bench.measures.context import CellContext, num_features, redraws
from bench.measures.reference import require_finite
from bench.records.metrics import Metric, by_sequence, mean


@register
@dataclass
class SpectralNorm(Sized):
    """||BV - R||_2 against exact attention, absolute and relative to ||BV||_2; `repeats` draws per sequence."""

    name: ClassVar[str] = "spectral_norm"
    axis: ClassVar[str] = "features"
    headline_format: ClassVar[str] = "error {absolute}, relative {relative}"
    # Each sequence has its own draws; heads belong to the model and are the same in all sequences.
    replicates: ClassVar[str] = "sequences"

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Spectral norms of the errors, head by head, for every sequence and every redraw of the mechanism.

        BV is the output of the exact function that the mechanism approximates, R the mechanism's own output.

        Returns:
            `features`: the mechanism's size d, None if it has none. `reference`: the exact function. `sequences`: their
            number. `absolute` `||BV - R||_2`, `exact_norm` `||BV||_2` and `relative`, their ratio: lists over the
            trials of `redraws` of lists over heads.

        Raises:
            UnsupportedError: the mechanism approximates no other function.
            NonFiniteError: NaN or infinity in an output or a norm.
        """
        attention = context.attention()
        info = attention.info
        if info.approximates is None:
            raise UnsupportedError(f"{info.name} is a function of its own: there is no exact output to compare it with")
        exact = context.exact()
        query, key, value = context.inputs()
        check = context.correctness_check((query[:1], key[:1], value[:1]))
        check.check_forward(context.config["label"], attention)
        precision = torch.promote_types(query.dtype, torch.float32)
        norms: dict[str, list[list[float]]] = {"absolute": [], "relative": [], "exact_norm": []}
        with torch.no_grad():
            for sequence, is_first in redraws(context, attention, len(query), is_random=info.random):
                inputs = [tensor[sequence] for tensor in (query, key, value)]
                if is_first:
                    target = exact(*(tensor.to(precision) for tensor in inputs)).double()
                    exact_norm = spectral_norm("exact output", target)
                absolute = spectral_norm("error", attention(*inputs).double() - target)
                relative = absolute / exact_norm
                require_finite(relative, "relative error")
                for of_all, of_trial in zip(norms.values(), (absolute, relative, exact_norm), strict=True):
                    of_all.append(of_trial.tolist())
        check.finish()
        return {"features": num_features(attention), "reference": info.approximates, "sequences": len(query), **norms}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`absolute`, `relative` and `exact_norm`: means over sequences of the means over their heads and draws."""
        for metric in ("absolute", "relative", "exact_norm"):
            shown = None if metric == "exact_norm" else ("", 1.0)
            samples = by_sequence(measurements[metric], measurements["sequences"])
            yield mean(metric, samples, name=f"spectral_norm.{metric}", shown=shown)


def spectral_norm(name: str, matrices: Tensor) -> Tensor:
    """The largest singular value of each `(n, h)` matrix of `(1, heads, n, h)`, float64: `(heads,)`.

    Computed as the root of the largest eigenvalue of the h x h Gram matrix: much cheaper than a singular value
    decomposition if n is larger than h, and as accurate for the largest value. Scaled, so that no square underflows.

    Raises:
        NonFiniteError: NaN or infinity among the entries, which decompositions turn into plausible numbers.
    """
    require_finite(matrices, name)
    scale = matrices[0].abs().amax((1, 2))
    scaled = matrices[0] / scale.clamp_min(torch.finfo(scale.dtype).tiny)[:, None, None]
    return scale * torch.linalg.eigvalsh(scaled.mT @ scaled)[:, -1].clamp_min(0).sqrt()
