"""The error of an approximation, `||BV - R||_2`: Skeinformer, section 5, Figure 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.measures import Benchmark, register
from bench.records.metrics import Metric, by_sequence, mean
from bench.schema import setting

if TYPE_CHECKING:
    from torch import Tensor

    from bench.measures.workbench import Workbench


@register
@dataclass
class SpectralNorm(Benchmark):
    """||BV - R||_2 against exact attention, absolute and relative to ||BV||_2; `repeats` draws per sequence."""

    name: ClassVar[str] = "spectral_norm"
    axis: ClassVar[str] = "features"
    # Each has draws of its own; heads are the model's, and the same in all.
    replicates: ClassVar[str] = "sequences"

    # d: columns, rows, projection dimension or features of the mechanism; None: its own
    num_features: int | None = setting(None, minimum=1, condition=False)

    def measure(self, workbench: Workbench) -> dict[str, Any]:
        """Spectral norms of the errors, head by head, for every sequence and every redraw of the mechanism.

        BV is the output of the exact function that the mechanism approximates, R the mechanism's own. A trial is
        one sequence and one draw: `config["repeats"]` draws per sequence, one where the mechanism is not random or is
        the trained one of the model that the inputs are taken from.

        Returns:
            `features`: the size d of the mechanism, None where it has none. `reference`: the exact function.
            `sequences`: how many.
            `absolute` `||BV - R||_2`, `exact_norm` `||BV||_2` and `relative`, their ratio: each a list over
            trials (the redraws of a sequence side by side) of lists over heads.

        Raises:
            UnsupportedError: the mechanism approximates nothing.
            NonFiniteError: NaN or infinity in an output or a norm.
        """
        import torch

        from attention_zoo import UnsupportedError
        from bench.measures.reference import require_finite

        attention = workbench.attention()
        info = attention.info
        if info.approximates is None:
            raise UnsupportedError(f"{info.name} is a function of its own: there is no exact output to compare it with")
        exact = workbench.exact()
        query, key, value = workbench.inputs()
        gate = workbench.gate((query[:1], key[:1], value[:1]))
        gate.look(workbench.config["label"], attention)
        precision = torch.promote_types(query.dtype, torch.float32)
        # What was trained is what it is.
        is_drawn = info.random and workbench.config["label"] not in workbench.trained
        redraws = workbench.config["repeats"] if is_drawn else 1
        trials = len(query) * redraws
        result: dict[str, Any] = {"absolute": [], "relative": [], "exact_norm": []}
        with torch.no_grad():
            for trial in range(trials):
                sequence = slice(trial // redraws, trial // redraws + 1)
                inputs = [tensor[sequence] for tensor in (query, key, value)]
                if trial % redraws == 0:
                    target = exact(*(tensor.to(precision) for tensor in inputs)).double()
                    exact_norm = spectral_norm("exact output", target)
                if is_drawn:
                    # Multiplied, so that cells that differ in their seed alone share no draw either.
                    attention.resample(workbench.config["seed"] * trials + trial)
                absolute = spectral_norm("error", attention(*inputs).double() - target)
                relative = absolute / exact_norm
                require_finite(relative, "relative error")
                for name, norms in (("absolute", absolute), ("relative", relative), ("exact_norm", exact_norm)):
                    result[name].append(norms.tolist())
                workbench.progress(trial + 1, trials)
        gate.close()
        features = None if info.size is None else getattr(attention, info.size)
        return {"features": features, "reference": info.approximates, "sequences": len(query), **result}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`absolute`, `relative` and `exact_norm`: means over sequences of the means over their heads and draws."""
        for metric in ("absolute", "relative", "exact_norm"):
            shown = None if metric == "exact_norm" else ("", 1.0)
            samples = by_sequence(measurements[metric], measurements["sequences"])
            yield mean(metric, samples, name=f"spectral_norm.{metric}", shown=shown)

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """Both errors."""
        text = {one.metric: one.text for one in quantities}
        return f"error {text['absolute']}, relative {text['relative']}"


def spectral_norm(name: str, matrices: Tensor) -> Tensor:
    """The largest singular value of each `(n, h)` matrix of `(1, heads, n, h)`, float64: `(heads,)`.

    By the eigenvalues of its h x h Gram matrix, which has the same one squared: a fraction of the work of a singular
    value decomposition where n is larger than h, and as good for the largest. Scaled, so that no square underflows.

    Raises:
        NonFiniteError: NaN or infinity among the entries, which decompositions turn into believable numbers.
    """
    import torch

    from bench.measures.reference import require_finite

    require_finite(matrices, name)
    scale = matrices[0].abs().amax((1, 2))
    scaled = matrices[0] / scale.clamp_min(torch.finfo(scale.dtype).tiny)[:, None, None]
    return scale * torch.linalg.eigvalsh(scaled.mT @ scaled)[:, -1].clamp_min(0).sqrt()
