"""Correct before fast: a mechanism is checked before it is timed, and once more afterwards.

Two inputs are checked. The short input has the first `Attention.min_test_length` tokens of the cell's own input; in
every second head its keys share a common part, as trained keys do. Rows all along it are compared. Of the cell's own
input, some rows are compared, spread over batch, heads and positions up to the last. Both are compared with float64
(`Reference`), and so are gradients if a backward pass is measured. Of the short input the reference's rows must not
change with later tokens if the mechanism is causal. On the cell's own input, the results of the first
timed calls are compared, so that no call is made only for the check; the last results are compared with the first.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import attention_zoo
from attention_zoo import Attention
from bench import inputs as input_sources
from bench.common.errors import IncorrectError
from bench.inputs.base import NAMES, Inputs, inputs_seed
from bench.measures.reference import Probe, Reference
from bench.measures.timing import Pass, Result

if TYPE_CHECKING:
    from bench.measures.context import CellContext

# Rows compared: of the short input, and of each of two sequences of the cell's own input.
SHORT_ROWS, OWN_ROWS = 256, 16
# Size of the keys' common part in standard deviations. With 10, sums over keys are mere rounding in bfloat16.
IN_COMMON = 3.0
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class CorrectnessCheck:
    """Checks mechanisms on the same inputs in one measurement; for each dtype there is a separate check.

    Call `check_before` for each mechanism; then `check_first` with the first results of each pass for both signs of the
    values, `check_last` with the last results, and `finish`. Each raises `IncorrectError`, or `NonFiniteError` for NaN
    and infinity, with the reason. The context stores what was compared and which implementation ran.

    Args:
        context: the cell of these mechanisms.
        inputs: measured query, key and value; `set_sign` changes the value in place.
        positions: rows of the inputs to compare, if only these are measured; None: random ones.

    Attributes:
        gradient: gradient with respect to the output, for the measured passes.
    """

    def __init__(self, context: CellContext, inputs: Inputs, positions: Tensor | None = None) -> None:
        self.context, self.inputs, self.sign = context, inputs, 1
        # Not the seed of the inputs themselves: the gradient would be the query, shifted.
        self.generator = torch.Generator().manual_seed(inputs_seed(context.config["seed"], "check"))
        infos = [attention_zoo.info(config["attention"]["name"]) for config in context.configs()]
        # If weights cancel, a row that sees few keys may lose all its digits.
        self.few_keys_cancel = context.config["causal"] and any(info.cancels for info in infos)
        batch_size, _, seq_len, _ = inputs[0].shape
        before = [int(torch.randint(batch_size - 1, (), generator=self.generator))] if batch_size > 1 else []
        drawn = spread(seq_len, OWN_ROWS, self.generator)
        self.probe = Probe(torch.tensor([*before, batch_size - 1]), drawn if positions is None else positions)
        self.gradient = self.probe.gradient(inputs[0], self.generator, few_keys_cancel=self.few_keys_cancel)
        self.mechanisms: dict[str, Attention] = {}
        self.references: dict[str, Reference] = {}
        self.expected: dict[str, tuple[Tensor, ...]] = {}
        self.first: dict[tuple[str, str, int], list[Tensor | None]] = {}
        """The first results, by label, pass and sign."""
        self.state = process_state(inputs)

    def check_before(self, label: str, attention: Attention, passes: Collection[str] = ("forward",)) -> None:
        """Check a mechanism on the short input in every pass that will be measured."""
        with_gradients = set(passes) != {"forward"}
        if with_gradients:
            # Torch imports SymPy at a process's first gradient: this must count for the cell, not for its check.
            one = torch.ones((), requires_grad=True)
            torch.autograd.grad(one * 1, one, torch.ones(()))
        with self.context.during("check"):
            reference = Reference(attention, self.context.reference(label), with_gradients=with_gradients)
            self.mechanisms[label], self.references[label] = attention, reference
            length = min(self.inputs[0].shape[2], attention.min_test_length)
            inputs = self._short(length)
            reference.require_causal(label, inputs)
            probe = Probe(torch.tensor([0]), spread(length, SHORT_ROWS, self.generator))
            gradient = probe.gradient(inputs[0], self.generator, few_keys_cancel=self.few_keys_cancel)
            expected = reference.results(inputs, probe, gradient)
            for name in ("forward", "forward_backward") if with_gradients else ("forward",):
                result = Pass(name, attention, inputs, gradient).run_unprepared()
                self._require_unchanged(label)
                self._compare(label, f"{name} of {length} tokens", result, expected, probe, inputs[2])

    def _short(self, length: int) -> Inputs:
        """The start of the cell's first sequence; generated keys get a common part in every second head."""
        query, key, value = (x[:1, :, :length].contiguous() for x in self.inputs)
        if not input_sources.source(self.context.config["inputs"]).is_read:
            common = torch.randn(1, key.shape[1], 1, key.shape[3], generator=self.generator).to(key)
            common[:, ::2] = 0
            key = key + IN_COMMON * key.std() * common
        return query, key, value

    def set_sign(self, sign: int) -> None:
        """Give the values this sign, 1 or -1.

        A mechanism that returns a remembered output of an earlier call is then wrong, and the speed stays the same.
        """
        if sign != self.sign:
            self.inputs[2].neg_()
            self.sign = sign

    def check_first(self, label: str, name: str, result: Result) -> None:
        """Compare the first result of a pass with the reference, for positive values; stored for `check_last`."""
        with self.context.during("check"):
            self.first[label, name, self.sign] = [_fingerprint(x) for x in result]
            negative, positive = (self.first.get((label, name, sign), [None])[0] for sign in (-1, 1))
            if negative is not None and positive is not None and negative.any() and torch.equal(negative, positive):
                raise IncorrectError(f"{label}, {name}: other values, the same output: it is that of an earlier call")
            # After each mechanism, so that another one is not blamed.
            self._require_unchanged(label)
            if self.sign > 0:
                if label not in self.expected:
                    self.expected[label] = self.references[label].results(self.inputs, self.probe, self.gradient)
                self._compare(label, name, result, self.expected[label], self.probe, self.inputs[2])

    def check_last(self, label: str, name: str, result: Result) -> None:
        """Compare the last result of a pass with the first one for values of the same sign."""
        with self.context.during("check"):
            allowed = self.references[label].tolerance(self.inputs[0].dtype, self.inputs[0].shape[2])["output"]
            for before, tensor in zip(self.first[label, name, self.sign], result, strict=True):
                now = _fingerprint(tensor)
                error = 0.0 if before is None or now is None else _difference(now, before)
                if (now is None) != (before is None) or not error <= allowed:
                    what = "the last call gave not what the first gave"
                    raise IncorrectError(f"{label}, {name}: {what}, off by {error:.1e}")

    def check_forward(self, label: str, attention: Attention) -> None:
        """Check the forward pass on both inputs, for benchmarks that time no pass."""
        self.check_before(label, attention)
        self.check_first(label, "forward", Pass("forward", attention, self.inputs).run_unprepared())

    def finish(self) -> None:
        """Check that inputs and process are unchanged, and store which implementation ran."""
        with self.context.during("check"):
            self.set_sign(1)
            self._require_unchanged(" or ".join(self.mechanisms))
            for label, attention in self.mechanisms.items():
                self.context.note_implementation(label, attention)

    def _compare(
        self, label: str, name: str, result: Result, expected: tuple[Tensor, ...], probe: Probe, value: Tensor
    ) -> None:
        reference, which = self.references[label], "own" if probe is self.probe else "short"
        report = self.context.correctness.setdefault(label, {}).setdefault(which, {})
        errors = reference.compare(f"{label}, {name}", result, expected, probe, value)
        report |= {key: max(error, report.get(key, 0.0)) for key, error in errors.items()}
        allowed = reference.tolerance(value.dtype, value.shape[2])
        report |= {f"{key}_allowed": allowed[key] for key in errors if key in allowed}
        report |= {"seq_len": value.shape[2], "rows": len(probe.items) * len(probe.positions)}

    def _require_unchanged(self, label: str) -> None:
        """Raise `IncorrectError` with the first thing that the mechanism `label` has changed."""
        for name, now in process_state(self.inputs).items():
            # The check itself changes the sign of the value.
            if now != self.state[name] and (self.sign > 0 or name != "its input value"):
                shown = f" to {now}" if isinstance(now, str | bool | int) and "input" not in name else ""
                raise IncorrectError(f"{label}: changed {name}{shown}")


def process_state(inputs: Inputs) -> dict[str, Any]:
    """What a mechanism must leave unchanged: the inputs, and state that it shares with the rest of its process."""
    numpy: Any = np.random.get_state()
    # Asking for the state of an unused GPU would initialise it.
    cuda = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else None
    return {f"its input {name}": _bit_sum(tensor) for name, tensor in zip(NAMES, inputs, strict=True)} | {
        "torch's random state": torch.get_rng_state().numpy().tobytes(),
        "CUDA's random state": cuda,
        "Python's random state": random.getstate(),
        "NumPy's random state": (numpy[1].tobytes(), numpy[2:]),
        "the default dtype": str(torch.get_default_dtype()),
        "the number of threads": torch.get_num_threads(),
        "the working directory": os.getcwd(),
        "the grad mode": torch.is_grad_enabled(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
    }


def spread(seq_len: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` ascending positions: one random position in each equal stretch, and the last; all if there are fewer."""
    if seq_len <= count:
        return torch.arange(seq_len)
    edges = torch.linspace(0, seq_len - 1, count).long()
    drawn = edges[:-1] + (torch.rand(count - 1, generator=generator) * edges.diff()).long()
    return torch.cat([drawn, edges[-1:]])


def _fingerprint(x: Tensor | None) -> Tensor | None:
    """Each row's norm and its product with fixed numbers, `(..., 2)`: smaller than the row, and shows any change."""
    if x is None:
        return None
    precision = torch.promote_types(x.dtype, torch.float32)
    weights = torch.linspace(1, 2, x.shape[-1], dtype=precision, device=x.device)
    pieces = x.detach().reshape(-1, *x.shape[-2:]).split(8)
    return torch.cat([torch.stack([y.norm(dim=-1), y @ weights], -1) for y in (p.to(precision) for p in pieces)])


def _difference(now: Tensor, before: Tensor) -> float:
    """The largest change of a row, relative to its norm (or to 0.001 of the largest norm)."""
    norms = before[..., 0]
    scale = norms.clamp_min(1e-3 * float(norms.max())).clamp_min(torch.finfo(torch.float32).tiny)
    return float(((now - before).abs().amax(-1) / scale).max())


def _bit_sum(x: Tensor) -> int:
    """The sum of the numbers' bit patterns as integers, modulo 2^64: a different sum means a different tensor."""
    return int(x.detach().view(_INTEGERS[x.element_size()]).sum(dtype=torch.int64))
