"""What a mechanism's output and gradients should be: some rows of them, by its reference implementation in float64."""

import contextlib
import resource
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_zoo import Attention
from bench.common.errors import IncorrectError, NonFiniteError
from bench.inputs.base import NAMES, Inputs
from bench.measures.timing import Result

# Where rounding decides which rows or columns are computed, this share of what is compared has to agree.
DATA_DEPENDENT_SHARE = 0.75
# One column or row drawn otherwise, of many, is this many times rounding.
OTHER_DRAWS = 3
# Errors of gradients are relative to their norm, or to this share of the norm of the values' gradient if that is more.
LEAST_PARAMETER_GRADIENT = 5e-2
# A gradient of zeros is off by 1: whatever the degree, less than that is allowed.
LARGEST_GRADIENT_ERROR = 0.45
# Where weights cancel (`AttentionInfo.cancels`), a row that sees this many keys is as far off again as one of many.
CANCELLING_KEYS = 64


# Relative errors that rounding explains: of a row of the output, and of the gradient of a head.
TOLERANCES = {
    torch.float64: (1e-11, 1e-10),
    torch.float32: (5e-5, 5e-4),
    torch.bfloat16: (8e-2, 1e-1),
    torch.float16: (1e-2, 1e-2),
}


class Probe(NamedTuple):
    """Which rows are compared: each of some positions of each of some batch items, in all heads."""

    items: Tensor
    positions: Tensor

    def of_items(self, x: Tensor) -> Tensor:
        """The items of `(batch, ...)`."""
        return x[self.items.to(x.device)]

    def of_rows(self, x: Tensor) -> Tensor:
        """The rows of `(batch, heads, n, h)`: `(items, heads, positions, h)`."""
        return self.of_items(x)[:, :, self.positions.to(x.device)]

    def gradient(self, like: Tensor, generator: torch.Generator, *, few_keys_cancel: bool) -> Tensor:
        """A random output gradient shaped like `(batch, heads, n, h)`, faint but for the rows of the probe.

        What is timed is dense, yet of a sum over all rows the others do not reach the digits that are compared. With
        `few_keys_cancel`, rows that see few keys count little: where all of a row's weights cancel, its gradient is
        larger than that of all other rows, and wholly rounding.
        """
        faint = 2.0**-50 if like.dtype == torch.float64 else 2.0**-30
        gradient = torch.randn(like.shape, generator=generator) * faint
        if few_keys_cancel:
            visible = torch.arange(1.0, like.shape[2] + 1)
            gradient *= (visible / (visible + CANCELLING_KEYS)).square()[:, None]
        gradient[self.items[:, None], :, self.positions] /= faint
        return gradient.to(like)


class Reference:
    """The reference implementation of a mechanism in float64 (or the widest dtype that it takes), on the CPU.

    `reference` is of the same configuration with `impl="reference"`; it takes over the state of `attention`.
    """

    def __init__(self, attention: Attention, reference: Attention, *, with_gradients: bool) -> None:
        self.dtype = max(attention.info.dtypes, key=lambda dtype: dtype.itemsize)
        self.attention = reference.to(self.dtype).eval()
        self.attention.load_state_dict(attention.state_dict())
        self.parameters = {name: p for name, p in self.attention.named_parameters() if p.requires_grad}
        self.with_gradients = with_gradients

    def tolerance(self, dtype: torch.dtype, seq_len: int) -> dict[str, float]:
        """Of `output` and `gradient`: by dtype, degree of the weights, and whether draws may differ a little.

        A degree is as many rounded factors, in the output partly averaged out. Gradients of a head are compared whole:
        where weights cancel, a short sequence has no rows of many keys that would outweigh those of few.
        """
        output, gradient = TOLERANCES[dtype]
        degree, draws = self.attention.weight_degree, OTHER_DRAWS if self.attention.info.data_dependent else 1
        short = float(self._cancelling(torch.tensor(float(seq_len))))
        gradient = min(gradient * degree * draws, LARGEST_GRADIENT_ERROR) * short
        return {"output": output * degree**0.5 * draws, "gradient": gradient}

    def _cancelling(self, visible: Tensor) -> Tensor:
        """How many times the usual error is allowed to a row that sees so many keys."""
        return 1 + CANCELLING_KEYS / visible if self.attention.info.cancels else torch.ones_like(visible)

    def results(self, inputs: Inputs, probe: Probe, gradient: Tensor) -> tuple[Tensor, ...]:
        """The rows of `probe`; then the gradients of query, key and value of its items and of the parameters."""
        items = [probe.of_items(x.detach()).cpu().to(self.dtype) for x in inputs]
        where: dict[str, Any] = {"positions": probe.positions, "items": probe.items, "batch_size": len(inputs[0])}
        with unlimited_memory(), torch.set_grad_enabled(self.with_gradients):
            leaves = [*(x.requires_grad_(self.with_gradients) for x in items), *self.parameters.values()]
            rows = self.attention.output_rows(*items, **where)
            if not self.with_gradients:
                return (rows,)
            upstream = probe.of_rows(gradient).cpu().to(self.dtype)
            gradients = torch.autograd.grad(rows, leaves, upstream, materialize_grads=True)
            return (rows.detach(), *gradients)

    def compare(
        self, what: str, result: Result, expected: tuple[Tensor, ...], probe: Probe, value: Tensor
    ) -> dict[str, float]:
        """The largest relative errors: `output` of a row, `gradient` of a head of query, key, value or a parameter.

        Beside these, which are judged, those that papers state: `output_whole` of all rows together, `gradient_whole`
        of all of query, key, value or a parameter.

        Args:
            what: the mechanism and the pass, for the reason.
            result: of a `Pass`, where its inputs had this `value`.
            expected: from `results`, for the same `probe`.

        Raises:
            IncorrectError: one of them is larger than rounding explains.
            NonFiniteError: there is NaN or infinity in the result, in whatever row.
        """
        out, *gradients = result
        _require_like(out, value, what)
        assert out is not None
        allowed = self.tolerance(out.dtype, value.shape[2])
        require_finite(out, f"{what}: output")
        rows, wanted = probe.of_rows(out), expected[0]
        errors = _relative_errors(rows, wanted, dims=1, least=self._least(probe, value))
        worst = {"output": self._worst(f"{what}: output", errors, allowed["output"], probe)}
        worst["output_whole"] = float(_relative_errors(rows, wanted, wanted.ndim))
        for index, (name, gradient) in enumerate(zip((*NAMES, *self.parameters), gradients, strict=False)):
            place, wanted, is_of_input = f"{what}: gradient of {name}", expected[1 + index], index < len(NAMES)
            actual = torch.zeros_like(wanted)
            if gradient is not None:
                require_finite(gradient, place)
                actual = probe.of_items(gradient) if is_of_input else gradient
            least = LEAST_PARAMETER_GRADIENT * expected[3].norm()
            whole = errors = _relative_errors(actual, wanted, wanted.ndim, least)
            if is_of_input:
                errors = _relative_errors(actual, wanted, 2, expected[3].flatten(2).norm(dim=-1))
            error = self._worst(place, errors, allowed["gradient"], probe)
            for key, size in (("gradient", error), ("gradient_whole", float(whole))):
                worst[key] = max(size, worst.get(key, 0.0))
        return worst

    def _least(self, probe: Probe, value: Tensor) -> Tensor:
        """The norms of the rows if they were means of independent values: where less is left, errors are not less."""
        size = probe.of_items(value).double().cpu().square().sum(-1).mean(-1).sqrt()
        visible = probe.positions + 1 if self.attention.causal else torch.tensor([value.shape[2]])
        return size[..., None] / visible.sqrt() * self._cancelling(visible)

    def _worst(self, what: str, errors: Tensor, allowed: float, probe: Probe) -> float:
        """The largest error, or the one that most are below where draws depend on the data."""
        share = DATA_DEPENDENT_SHARE if self.attention.info.data_dependent else 1.0
        worst = float(errors.flatten().sort().values[max(0, int(share * errors.numel()) - 1)])
        if not worst <= allowed:
            place = ""
            if errors.ndim > 1:
                item, head, *row = (int(i) for i in torch.unravel_index(errors.argmax(), errors.shape))
                position = f", position {int(probe.positions[row[0]])}" if row else ""
                place = f"; worst in sequence {int(probe.items[item])}, head {head}{position}"
            raise IncorrectError(f"{what}: relative error {worst:.1e} against float64, allowed {allowed:.0e}{place}")
        return worst


def require_finite(out: Tensor, what: str) -> None:
    """Raise `NonFiniteError` with the count and the first index unless all of `out` is finite."""
    bad = ~torch.isfinite(out)
    if bad.any():
        first = tuple(bad.nonzero()[0].tolist())
        raise NonFiniteError(f"{what}: {int(bad.sum())} of {out.numel()} values are not finite, the first at {first}")


def _require_like(out: object, value: Tensor, what: str) -> None:
    """Raise `IncorrectError` unless an output is a tensor like the values."""
    if not isinstance(out, Tensor):
        raise IncorrectError(f"{what}: output is {type(out).__name__}, must be a tensor")
    if (out.shape, out.dtype, out.device) != (value.shape, value.dtype, value.device):
        shapes = [f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (out, value)]
        raise IncorrectError(f"{what}: output is {shapes[0]}, must be {shapes[1]}")


def _relative_errors(actual: Tensor, expected: Tensor, dims: int, least: Tensor | float = 0.0) -> Tensor:
    """`|actual - expected| / max(|expected|, least)`, norms over the last `dims` dimensions."""
    over = tuple(range(expected.ndim - dims, expected.ndim))
    expected = expected.double()
    scale = torch.linalg.vector_norm(expected, dim=over)
    scale = torch.maximum(scale, torch.as_tensor(least, dtype=scale.dtype)).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.linalg.vector_norm(actual.cpu().double() - expected, dim=over) / scale


@contextlib.contextmanager
def unlimited_memory() -> Iterator[None]:
    """Without the limit on this process's memory: what the check takes is not the cell's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
