"""The correctness gate: a mechanism is right where it can go wrong before it is timed, and still right afterwards.

Two inputs are looked at. A short one, `Attention.telling_length` tokens of the cell's own, in every second head with
keys that have much in common, as trained ones do: rows all along it. The cell's own: some rows, spread over batch,
heads and positions to the last. Both against float64 (`Reference`), and where a backward pass is measured so are the
gradients. On the cell's own input these are the first results of what is timed, so that nothing runs twice; the last
results are compared with the first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

import attention_zoo
from attention_zoo import Attention
from bench import inputs as input_sources
from bench.common.errors import IncorrectError
from bench.inputs.seeds import inputs_seed
from bench.measures.reference import Inputs, Probe, Reference
from bench.measures.surroundings import Surroundings
from bench.measures.timing import Pass, Result

if TYPE_CHECKING:
    from bench.measures.workbench import Workbench

# Rows compared: of the short input, and of each of two sequences of the cell's own.
SHORT_ROWS, OWN_ROWS = 256, 16
# Standard deviations that all keys have in common. With 10, rows of sums over keys are rounding in bfloat16.
IN_COMMON = 3.0


@dataclass
class Measured:
    """A mechanism that was admitted, what its results should be, and what they were first, by pass and sign."""

    attention: Attention
    reference: Reference
    expected: tuple[Tensor, ...] = ()
    first: dict[tuple[str, int], list[Tensor | None]] = field(default_factory=dict)


class Gate:
    """Looks after one measurement of one or more mechanisms on the same inputs; those of other dtypes have their own.

    `admit` each mechanism; give `first` the first results of each pass for both signs of the values, and `last` the
    last ones; then `close`. Each raises `IncorrectError`, or `NonFiniteError` for NaN and infinity, with the reason.
    What was compared is noted in `Workbench.correctness`, what ran in `Workbench.implementations`.

    Args:
        workbench: of the cell.
        inputs: query, key and value that are measured; `turn` changes the value in place.
        positions: rows of the inputs to compare, where only these are measured; None is some of all.

    Attributes:
        gradient: of the output, for the passes that are measured.
    """

    def __init__(self, workbench: Workbench, inputs: Inputs, positions: Tensor | None = None) -> None:
        self.workbench, self.inputs = workbench, inputs
        self.generator = torch.Generator().manual_seed(inputs_seed(workbench.config["seed"]))
        self.probe = own_probe(len(inputs[0]), inputs[0].shape[2], self.generator)
        if positions is not None:
            self.probe = self.probe._replace(positions=positions)
        infos = [attention_zoo.info(config["attention"]["name"]) for config in workbench.configs()]
        self.few_keys_cancel = workbench.config["causal"] and any(info.cancels for info in infos)
        self.gradient = self.probe.gradient(inputs[0], self.generator, few_keys_cancel=self.few_keys_cancel)
        self.sign = 1
        self.measured: dict[str, Measured] = {}
        self.surroundings = Surroundings(inputs)

    def admit(self, label: str, attention: Attention, passes: Collection[str] = ("forward",)) -> None:
        """See that a mechanism is right on the short input in every pass that will be measured."""
        with_gradients = set(passes) != {"forward"}
        if with_gradients:
            _first_gradient()
        with self.workbench.during("check"):
            reference = Reference(attention, self.workbench.reference(label), with_gradients=with_gradients)
            self.measured[label] = Measured(attention, reference)
            length = min(self.inputs[0].shape[2], attention.telling_length)
            query, key, value = self._short(length)
            probe = Probe(torch.tensor([0]), spread(length, SHORT_ROWS, self.generator))
            gradient = probe.gradient(query, self.generator, few_keys_cancel=self.few_keys_cancel)
            expected = reference.results((query, key, value), probe, gradient)
            for name in ("forward", "forward_backward") if with_gradients else ("forward",):
                result = Pass(name, attention, (query, key, value), gradient).run_unprepared()
                self.surroundings.require_unchanged(label)
                self._compare("short", label, f"{name} of {length} tokens", result, expected, probe, value)

    def _short(self, length: int) -> Inputs:
        """A sequence of the cell's own; keys of every second head, where they are drawn, have much in common."""
        query, key, value = (x[:1, :, :length].contiguous() for x in self.inputs)
        if not input_sources.source(self.workbench.config["inputs"]).is_read:
            common = torch.randn(1, key.shape[1], 1, key.shape[3], generator=self.generator).to(key)
            common[:, ::2] = 0
            key = key + IN_COMMON * key.std() * common
        return query, key, value

    def turn(self, sign: int) -> None:
        """Give the values this sign, 1 or -1.

        An output that is remembered from an earlier call is then the wrong one, and nothing about speed changes.
        """
        if sign != self.sign:
            self.inputs[2].neg_()
            self.sign = sign

    def first(self, label: str, name: str, result: Result) -> None:
        """Compare the first result of a pass with the reference, for positive values; remember it for `last`."""
        with self.workbench.during("check"):
            measured = self.measured[label]
            measured.first[name, self.sign] = [_fingerprint(x) for x in result]
            self._require_other_outputs(label, name)
            # After each mechanism: a rival must not answer for what another one did.
            self.surroundings.require_unchanged(label, value_is_turned=self.sign < 0)
            if self.sign > 0:
                if not measured.expected:
                    measured.expected = measured.reference.results(self.inputs, self.probe, self.gradient)
                self._compare("own", label, name, result, measured.expected, self.probe, self.inputs[2])

    def last(self, label: str, name: str, result: Result) -> None:
        """Compare the last result of a pass with its first one for values of the same sign."""
        with self.workbench.during("check"):
            measured = self.measured[label]
            allowed = measured.reference.tolerance(self.inputs[0].dtype, self.inputs[0].shape[2]).output
            for before, tensor in zip(measured.first[name, self.sign], result, strict=True):
                now = _fingerprint(tensor)
                error = 0.0 if before is None or now is None else _difference(now, before)
                if (now is None) != (before is None) or not error <= allowed:
                    raise IncorrectError(
                        f"{label}, {name}: the last call gave not what the first gave, off by {error:.1e}"
                    )

    def look(self, label: str, attention: Attention) -> None:
        """See that the forward pass is right on both inputs, where no pass is measured."""
        self.admit(label, attention)
        self.first(label, "forward", Pass("forward", attention, self.inputs).run_unprepared())

    def close(self) -> None:
        """See that inputs and process are as they were, and note what ran."""
        with self.workbench.during("check"):
            self.turn(1)
            self.surroundings.require_unchanged(" or ".join(self.measured))
            for label, measured in self.measured.items():
                self.workbench.note_implementation(label, measured.attention)

    def _compare(
        self,
        which: str,
        label: str,
        name: str,
        result: Result,
        expected: tuple[Tensor, ...],
        probe: Probe,
        value: Tensor,
    ) -> None:
        out, reference = result[0], self.measured[label].reference
        if not isinstance(out, torch.Tensor):
            raise IncorrectError(f"{label}, {name}: output is {type(out).__name__}, must be a tensor")
        if (out.shape, out.dtype, out.device) != (value.shape, value.dtype, value.device):
            shapes = [f"{tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}" for x in (out, value)]
            raise IncorrectError(f"{label}, {name}: output is {shapes[0]}, must be {shapes[1]}")
        errors = reference.compare(f"{label}, {name}", result, expected, probe, value)
        report = self.workbench.correctness.setdefault(label, {}).setdefault(which, {})
        report |= {key: max(error, report.get(key, 0.0)) for key, error in errors.items()}
        allowed = reference.tolerance(value.dtype, value.shape[2])._asdict()
        report |= {f"{key}_allowed": allowed[key] for key in errors if key in allowed}
        report |= {"seq_len": value.shape[2], "rows": len(probe.items) * len(probe.positions)}

    def _require_other_outputs(self, label: str, name: str) -> None:
        first = self.measured[label].first
        negative, positive = (first.get((name, sign), [None])[0] for sign in (-1, 1))
        if negative is not None and positive is not None and negative.any() and torch.equal(negative, positive):
            raise IncorrectError(f"{label}, {name}: other values, the same output: it is that of an earlier call")


def own_probe(batch_size: int, seq_len: int, generator: torch.Generator) -> Probe:
    """The last sequence of the batch and one before it, `OWN_ROWS` positions of each."""
    before = [int(torch.randint(batch_size - 1, (), generator=generator))] if batch_size > 1 else []
    return Probe(torch.tensor([*before, batch_size - 1]), spread(seq_len, OWN_ROWS, generator))


def spread(seq_len: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` ascending positions: one of each of equal stretches, and the last; all where there are no more."""
    if seq_len <= count:
        return torch.arange(seq_len)
    edges = torch.linspace(0, seq_len - 1, count).long()
    drawn = edges[:-1] + (torch.rand(count - 1, generator=generator) * edges.diff()).long()
    return torch.cat([drawn, edges[-1:]])


def _first_gradient() -> None:
    """Torch imports SymPy at the first gradient of a process: part of every such cell, not of its check."""
    one = torch.ones((), requires_grad=True)
    torch.autograd.grad(one * 1, one, torch.ones(()))


def _fingerprint(x: Tensor | None) -> Tensor | None:
    """Of each row its norm and its product with fixed numbers, `(..., 2)`: 2 of h numbers, and none goes unnoticed."""
    if x is None:
        return None
    precision = torch.promote_types(x.dtype, torch.float32)
    weights = torch.linspace(1, 2, x.shape[-1], dtype=precision, device=x.device)
    pieces = x.detach().reshape(-1, *x.shape[-2:]).split(8)
    return torch.cat([torch.stack([y.norm(dim=-1), y @ weights], -1) for y in (p.to(precision) for p in pieces)])


def _difference(now: Tensor, before: Tensor) -> float:
    """The largest change of a row, relative to its norm (or to a thousandth of the largest)."""
    norms = before[..., 0]
    scale = norms.clamp_min(1e-3 * float(norms.max())).clamp_min(torch.finfo(torch.float32).tiny)
    return float(((now - before).abs().amax(-1) / scale).max())
