"""Decoding token by token: time of a step, and bytes of the state, at the end of a context."""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attention_zoo import Attention, UnsupportedError
from attention_zoo.ops.decoding.states import State
from bench.common.schema import setting
from bench.inputs.base import Inputs
from bench.measures import register
from bench.measures.context import CellContext
from bench.measures.rounds import TimedInRounds, time_in_rounds
from bench.measures.timing import Timed
from bench.records.metrics import Metric, median, spread


@register
@dataclass
class Decode(TimedInRounds):
    """Time of one decoding step and bytes of the state at the end of a context of seq_len tokens; causal only."""

    name: ClassVar[str] = "decode"
    headline_format: ClassVar[str] = "{decode_latency} per token, state {state_bytes}"

    steps: int = setting(16, "tokens that are timed, the last ones of the context", minimum=1)

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Raw samples of the last steps of `seq_len` tokens; the first and the last ones are checked.

        A step takes one token of each sequence of the batch.

        Returns:
            As `time_in_rounds` of a step, and `{"steps", "context": seq_len, "batch_size", "state_bytes"}`; a sample is
            the mean over `calls_per_sample` times `steps` of them, `host_ns` and `head_start_ns` are of all the steps.

        Raises:
            UnsupportedError: the mechanism does not decode, or not with `causal=false`; fewer tokens than steps.
            IncorrectError: the outputs are not the last rows of the forward pass.
        """
        attention, inputs, label = context.attention(), context.inputs(), context.config["label"]
        batch_size, _, seq_len, _ = inputs[0].shape
        if self.steps > seq_len - 2:
            raise UnsupportedError(f"bench.steps={self.steps}: must be at most seq_len - 2 = {seq_len - 2}")
        with torch.no_grad():
            check = context.correctness_check(inputs, torch.arange(seq_len - self.steps, seq_len))
            check.check_before(label, attention)
            measured = LastSteps(attention, inputs, self.steps)
            state = measured.prepare()
            measured.run(state)
            check.check_first(label, "steps", (measured.rows(),))
            timing = time_in_rounds(context, {}, {label: measured}, self.min_sample_ms)[label]
            check.check_last(label, "steps", (measured.rows(),))
            check.finish()
        samples = [sample / self.steps for sample in timing["samples"]]
        sizes = {"context": seq_len, "batch_size": batch_size, "state_bytes": state.num_bytes}
        return {**timing, "samples": samples, "steps": self.steps, **sizes}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`decode_latency`, a step's time in ns, with its `spread`; `state_bytes`."""
        samples = measurements["samples"]
        yield median("decode_latency", samples, "ns", name="decode_us_per_token", shown=("µs", 1e-3))
        yield spread(samples, name="spread_pct.decode")
        yield Metric("state_bytes", measurements["state_bytes"], "bytes", name="state_mib", shown=("MiB", 2.0**-20))


class LastSteps(Timed):
    """The last `steps` steps of a sequence, each time from a copy of the state before them.

    So the context neither grows while it is measured nor is prefilled again. The step before them is not timed: a
    cache of keys and values makes room in it. A fold of exact blocks (`local`), one in `block_size` steps, has no
    fair share in so few: where the context ends with a block it is not in it, but the exact part is at its largest.
    """

    def __init__(self, attention: Attention, inputs: Inputs, steps: int) -> None:
        self.attention, self.value = attention, inputs[2]
        self.outputs: list[Tensor] = []
        before = inputs[0].shape[2] - steps - 1
        query, key, value = (x[:, :, :before] for x in inputs)
        _, self.state = attention.prefill(query, key, value)
        (query, key, value), *self.tokens = zip(*(x[:, :, before:].split(1, 2) for x in inputs), strict=True)
        attention.step(query, key, value, self.state)

    def prepare(self) -> State:
        """The state that the steps may change."""
        self.outputs = []
        return copy.deepcopy(self.state)

    def run(self, prepared: State) -> None:
        """The steps, one after the other."""
        self.outputs = [self.attention.step(q, k, v, prepared)[0] for q, k, v in self.tokens]

    def rows(self) -> Tensor:
        """The last outputs where they stand in that of the forward pass; zero elsewhere."""
        rows = torch.zeros_like(self.value)
        rows[:, :, -len(self.outputs) :] = torch.cat(self.outputs, 2)
        return rows
