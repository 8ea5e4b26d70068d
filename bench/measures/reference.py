"""The correct output and gradients of a mechanism: some rows, by its reference implementation in float64."""

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

# If rounding decides which rows or columns are computed, this share of the compared values must agree.
DATA_DEPENDENT_SHARE = 0.75
# If one of many columns or rows is drawn differently, the error is this many times that of rounding.
OTHER_DRAWS = 3
# Errors of gradients are relative to their norm, or to this share of the norm of the values' gradient if larger.
LEAST_PARAMETER_GRADIENT = 5e-2
# How many rows before the last token are looked at for what they know of it.
BEFORE = 64
# A gradient of zeros has error 1, so the allowed error stays below that for every degree.
LARGEST_GRADIENT_ERROR = 0.45
# The size of output gradients outside the compared rows: a million such rows matter less than rounding. Float16 has
# nothing below 2^-24, so there they are larger.
FAINT = {torch.float64: 2.0**-50, torch.float32: 2.0**-30, torch.bfloat16: 2.0**-30, torch.float16: 2.0**-18}
# If weights cancel (`AttentionInfo.cancels`), a row that sees this many keys may have twice the usual error.
CANCELLING_KEYS = 64
# Relative errors that rounding explains: of a row of the output, and of a head's gradient.
TOLERANCES = {
    torch.float64: (1e-11, 1e-10),
    torch.float32: (5e-5, 5e-4),
    torch.bfloat16: (8e-2, 1e-1),
    torch.float16: (1e-2, 1e-2),
}


class Probe(NamedTuple):
    """The rows that are compared: some positions of some batch items, in all heads."""

    items: Tensor
    positions: Tensor

    def of_items(self, x: Tensor) -> Tensor:
        """Select the probe's items of `(batch, ...)`."""
        return x[self.items.to(x.device)]

    def of_rows(self, x: Tensor) -> Tensor:
        """Select the probe's rows of `(batch, heads, n, h)`: `(items, heads, positions, h)`."""
        return self.of_items(x)[:, :, self.positions.to(x.device)]

    def gradient(self, like: Tensor, generator: torch.Generator, *, few_keys_cancel: bool) -> Tensor:
        """A random output gradient of shape `(batch, heads, n, h)`, tiny except in the probe's rows.

        So the timed gradient is dense, but the other rows do not affect the compared digits of sums over all rows. With
        `few_keys_cancel`, rows that see few keys get small weights: if all weights of a row cancel, its gradient is
        larger than that of all other rows, and only rounding.
        """
        faint = FAINT[like.dtype]
        gradient = torch.randn(like.shape, generator=generator) * faint
        if few_keys_cancel:
            visible = torch.arange(1.0, like.shape[2] + 1)
            gradient *= (visible / (visible + CANCELLING_KEYS)).square()[:, None]
        gradient[self.items[:, None], :, self.positions] /= faint
        return gradient.to(like)


class Reference:
    """The reference implementation of a mechanism in float64 (or its widest dtype), on the CPU.

    `reference` has the same configuration with `impl="reference"`; it gets the weights and buffers of `attention`.
    """

    def __init__(self, attention: Attention, reference: Attention, *, with_gradients: bool) -> None:
        self.dtype = max(attention.info.dtypes, key=lambda dtype: dtype.itemsize)
        self.attention = reference.to(self.dtype).eval()
        self.attention.load_state_dict(attention.state_dict())
        self.parameters = {name: p for name, p in self.attention.named_parameters() if p.requires_grad}
        self.with_gradients = with_gradients

    def tolerance(self, dtype: torch.dtype, seq_len: int) -> dict[str, float]:
        """Allowed errors of `output` and `gradient`, from the dtype, the weights' degree and data-dependent draws.

        The degree is the number of rounded factors; in the output their errors partly average out. A head's gradient is
        compared as a whole: in a short sequence, no rows with many keys outweigh those where weights cancel.
        """
        output, gradient = TOLERANCES[dtype]
        degree, draws = self.attention.weight_degree, OTHER_DRAWS if self.attention.info.data_dependent else 1
        short = float(self._cancelling(torch.tensor(float(seq_len))))
        gradient = min(gradient * degree * draws * short, LARGEST_GRADIENT_ERROR)
        return {"output": output * degree**0.5 * draws, "gradient": gradient}

    def _cancelling(self, visible: Tensor) -> Tensor:
        """The factor on the allowed error of a row that sees `visible` keys."""
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

    def require_causal(self, label: str, inputs: Inputs) -> None:
        """Raise `IncorrectError` if rows of a causal mechanism change with the last token, which they do not see.

        A mechanism that agrees with its own reference may look at the future in both.
        """
        info, last = self.attention.info, inputs[0].shape[2] - 1
        if not self.attention.causal or info.approximately_causal or not last:
            return
        # The last rows, which share their block with the token, and the first.
        positions = torch.tensor([0, *range(max(1, last - BEFORE), last)])
        changed = torch.arange(last + 1)[:, None] == last
        tokens = [x[:1].detach().cpu().to(self.dtype) for x in inputs]
        with unlimited_memory(), torch.no_grad():
            rows, others = (
                self.attention.output_rows(*each, positions=positions)
                for each in (tokens, [torch.where(changed, 1 - x, x) for x in tokens])
            )
        probe = Probe(torch.tensor([0]), positions)
        errors = _relative_errors(others, rows, dims=1, least=self._least(probe, tokens[2]))
        worst = float(errors.max())
        if not worst <= self.tolerance(self.dtype, last)["output"]:
            row = int(positions[errors.amax((0, 1)).argmax()])
            raise IncorrectError(f"{label}: causal=true, but token {last} changes row {row} by {worst:.1e}")

    def compare(
        self, what: str, result: Result, expected: tuple[Tensor, ...], probe: Probe, value: Tensor
    ) -> dict[str, float]:
        """The largest relative errors: `output` of a row, `gradient` of a head of query, key, value or a parameter.

        These are judged. Papers report others, which are returned too: `output_whole` of all rows together,
        `gradient_whole` of all of query, key, value or a parameter.

        Args:
            what: the mechanism and the pass, for the message.
            result: of a `Pass` with this `value` as input.
            expected: from `results`, for the same `probe`.

        Raises:
            IncorrectError: an error is larger than rounding explains.
            NonFiniteError: any row of the result has NaN or infinity.
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
        """The norms of rows that are means of independent values: errors of smaller rows are relative to these."""
        size = probe.of_items(value).double().cpu().square().sum(-1).mean(-1).sqrt()
        visible = probe.positions + 1 if self.attention.causal else torch.tensor([value.shape[2]])
        return size[..., None] / visible.sqrt() * self._cancelling(visible)

    def _worst(self, what: str, errors: Tensor, allowed: float, probe: Probe) -> float:
        """The largest error; if draws depend on the data, the one that most errors are below."""
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
    """Raise `IncorrectError` unless an output is a tensor of the values' shape, dtype and device."""
    if not isinstance(out, Tensor):
        raise IncorrectError(f"{what}: output is {type(out).__name__}, must be a tensor")
    if (out.shape, out.dtype, out.device) != (value.shape, value.dtype, value.device):
        shapes = [f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (out, value)]
        raise IncorrectError(f"{what}: output is {shapes[0]}, must be {shapes[1]}")


def _relative_errors(actual: Tensor, expected: Tensor, dims: int, least: Tensor | float = 0.0) -> Tensor:
    """`|actual - expected| / max(|expected|, least)`, with norms over the last `dims` dimensions."""
    over = tuple(range(expected.ndim - dims, expected.ndim))
    expected = expected.double()
    scale = torch.linalg.vector_norm(expected, dim=over)
    scale = torch.maximum(scale, torch.as_tensor(least, dtype=scale.dtype)).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.linalg.vector_norm(actual.cpu().double() - expected, dim=over) / scale


@contextlib.contextmanager
def unlimited_memory() -> Iterator[None]:
    """Lift the limit on this process's memory: the check's memory does not count for the cell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
