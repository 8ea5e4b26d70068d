"""Decoding token by token: time of a step, and size of the state, at the end of a context."""

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

    steps: int = setting(16, "number of timed tokens, the last of the context", minimum=1)

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Raw samples of the last steps of `seq_len` tokens; the first and last results are checked.

        A step takes one token of each sequence of the batch.

        Returns:
            As `time_in_rounds`, per step, and `{"steps", "context": seq_len, "batch_size", "state_bytes"}`. A sample is
            the mean over `calls_per_sample` times `steps` steps; `host_ns` and `head_start_ns` are for all `steps`.
            On a GPU only the first of the `steps` finds a cold cache, and `"cache"` says so.

        Raises:
            UnsupportedError: the mechanism cannot decode, or cannot with `causal=false`; there are too few tokens.
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
        cache = f"cold in the first of {self.steps} steps" if timing["cache"] == "cold" else timing["cache"]
        return {**timing, "cache": cache, "samples": samples, "steps": self.steps, **sizes}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`decode_latency`, the time of a step in ns, with its `spread`; `state_bytes`."""
        samples = measurements["samples"]
        yield median("decode_latency", samples, "ns", name="decode_us_per_token", shown=("µs", 1e-3))
        yield spread(samples, name="spread_pct.decode")
        yield Metric("state_bytes", measurements["state_bytes"], "bytes", name="state_mib", shown=("MiB", 2.0**-20))


class LastSteps(Timed):
    """The last `steps` steps of a sequence, each time from a copy of the state before them.

    So the context neither grows during the measurement nor is prefilled again. The step before them is not timed: in
    it a cache of keys and values allocates room. Folding exact blocks (`local`) happens once in `block_size` steps, too
    rarely for a fair share: if the context ends with a block, no fold is timed, but the exact part is largest.
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
        """A copy of the state, which the steps may change."""
        self.outputs = []
        return copy.deepcopy(self.state)

    def run(self, prepared: State) -> None:
        """Run the steps, one after the other."""
        self.outputs = [self.attention.step(q, k, v, prepared)[0] for q, k, v in self.tokens]

    def rows(self) -> Tensor:
        """The last outputs at their positions in the forward pass's output; zero elsewhere."""
        rows = torch.zeros_like(self.value)
        rows[:, :, -len(self.outputs) :] = torch.cat(self.outputs, 2)
        return rows
