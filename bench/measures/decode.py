"""Decoding token by token: time of a step, and bytes of the state, at the end of a context."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attention_zoo import Attention, UnsupportedError
from attention_zoo.ops.decoding.states import State
from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext
from bench.measures.timing import WARMUP_CALLS, Stopwatch
from bench.records.metrics import Metric, median, spread


@register
@dataclass
class Decode(Benchmark):
    """Time of one decoding step and bytes of the state at the end of a context of seq_len tokens; causal only."""

    name: ClassVar[str] = "decode"
    headline_format: ClassVar[str] = "{decode_latency} per token, state {state_bytes}"
    timed: ClassVar[bool] = True
    replicates: ClassVar[str] = "rounds"

    steps: int = setting(16, minimum=1)  # timed from one copied state, the last ones of the context
    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # steps are repeated until a sample lasts so long

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Raw samples of the last steps of `seq_len` tokens; the first and the last ones are checked.

        A step takes one token of each sequence of the batch.

        Returns:
            `{"unit": "ns", "samples": [...], "steps", "calls_per_sample", "warmup_calls", "method", "cache",
            "context": seq_len, "batch_size", "state_bytes"}`; a sample is nanoseconds per step, the mean over
            `calls_per_sample` times `steps` of them. On a GPU also what `Stopwatch.launched` says, of all the steps.

        Raises:
            UnsupportedError: the mechanism does not decode, or not with `causal=false`; fewer tokens than steps.
            IncorrectError: the outputs are not the last rows of the forward pass.
        """
        attention, inputs, label = context.attention(), context.inputs(), context.config["label"]
        with torch.no_grad():
            check = context.correctness_check(inputs, torch.arange(*last_steps(inputs, self.steps)))
            check.check_before(label, attention)
            measured = LastSteps(attention, inputs, self.steps)
            state = measured.prepare()
            check.check_first(label, "steps", (measured.rows(measured.run(state)),))
            context.enter("warmup")
            stopwatch = Stopwatch(context.device)
            fastest = min(stopwatch.time(measured) for _ in range(WARMUP_CALLS))
            calls = stopwatch.calibrate(measured, self.min_sample_ms, fastest)
            context.enter("measure")
            samples = []
            for done in range(context.config["repeats"]):
                samples.append(stopwatch.sample(measured, calls) / self.steps)
                context.progress(done + 1, context.config["repeats"])
            check.check_last(label, "steps", (measured.rows(stopwatch.result),))
            check.finish()
        return {
            "unit": "ns",
            "samples": samples,
            "steps": self.steps,
            "calls_per_sample": calls,
            "warmup_calls": WARMUP_CALLS,
            **stopwatch.method,
            **stopwatch.launched(measured),
            "context": inputs[0].shape[2],
            "batch_size": len(inputs[0]),
            "state_bytes": state.num_bytes,
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """`decode_latency`, a step's time in ns, with its `spread`; `state_bytes`."""
        samples = measurements["samples"]
        yield median("decode_latency", samples, "ns", name="decode_us_per_token", shown=("µs", 1e-3))
        yield spread(samples, name="spread_pct.decode")
        yield Metric("state_bytes", measurements["state_bytes"], "bytes", name="state_mib", shown=("MiB", 2.0**-20))


def last_steps(inputs: tuple[Tensor, Tensor, Tensor], steps: int) -> tuple[int, int]:
    """The position of the first timed step, and the length."""
    seq_len = inputs[0].shape[2]
    if steps > seq_len - 2:
        raise UnsupportedError(f"bench.steps={steps}: must be at most seq_len - 2 = {seq_len - 2}")
    return seq_len - steps, seq_len


class LastSteps:
    """The last `steps` steps of a sequence, each time from a copy of the state before them.

    So the context neither grows while it is measured nor is prefilled again. The step before them is not timed: a
    cache of keys and values makes room in it. A fold of exact blocks (`local`), one in `block_size` steps, has no
    fair share in so few: where the context ends with a block it is not in it, but the exact part is at its largest.
    """

    def __init__(self, attention: Attention, inputs: tuple[Tensor, Tensor, Tensor], steps: int) -> None:
        self.attention, self.value = attention, inputs[2]
        first, _ = last_steps(inputs, steps)
        query, key, value = (x[:, :, : first - 1] for x in inputs)
        _, self.state = attention.prefill(query, key, value)
        untimed, *self.tokens = zip(*(x[:, :, first - 1 :].split(1, 2) for x in inputs), strict=True)
        self._step(untimed, self.state)

    def prepare(self) -> State:
        """The state that the steps may change."""
        return copy.deepcopy(self.state)

    def run(self, prepared: State) -> list[Tensor]:
        """The steps, one after the other."""
        return [self._step(token, prepared) for token in self.tokens]

    def rows(self, outputs: list[Tensor]) -> Tensor:
        """The outputs of the steps where they stand in that of the forward pass; zero elsewhere."""
        rows = torch.zeros_like(self.value)
        rows[:, :, -len(outputs) :] = torch.cat(outputs, 2)
        return rows

    def _step(self, token: tuple[Tensor, ...], state: State) -> Tensor:
        query, key, value = token
        return self.attention.step(query, key, value, state)[0]
