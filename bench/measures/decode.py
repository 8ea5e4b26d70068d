"""Decoding token by token: time of a step, and bytes of the state, at the end of a context."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from bench.errors import IncorrectError
from bench.measures import Benchmark, register
from bench.records.quantities import Quantity, median, spread
from bench.schema import setting

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from attention_zoo import Attention
    from attention_zoo.ops.decoding import State
    from bench.measures.workbench import Workbench


@register
@dataclass
class Decode(Benchmark):
    """Time of one decoding step and bytes of the state at the end of a context of seq_len tokens; causal only."""

    name: ClassVar[str] = "decode"

    steps: int = setting(16, minimum=1)  # timed from one copied state, the last ones of the context
    min_sample_ms: float = setting(20.0, minimum=0, condition=False)  # steps are repeated until a sample lasts so long

    def measure(self, workbench: Workbench) -> dict[str, Any]:
        """Raw samples of the last steps of `seq_len` tokens, once they were seen to agree with the whole forward pass.

        A step takes one token of each sequence of the batch.

        Returns:
            `{"unit": "ns", "samples": [...], "steps", "calls_per_sample", "warmup_calls", "method", "cache",
            "context": seq_len, "batch_size", "state_bytes", "error"}`; a sample is nanoseconds per step, the mean over
            `calls_per_sample` times `steps` of them; `error` that of their outputs relative to the forward pass.

        Raises:
            UnsupportedError: the mechanism does not decode, or not with `causal=false`; fewer tokens than steps.
            IncorrectError: the outputs differ from those of the forward pass.
        """
        import torch

        from bench.measures.timing import WARMUP_CALLS, Stopwatch

        attention, inputs = workbench.attention(), workbench.inputs()
        gate = workbench.gate(inputs)
        gate.look(workbench.config["label"], attention)
        with torch.no_grad():
            workbench.enter("check")
            measured = LastSteps(attention, inputs, self.steps)
            state, forward = measured.prepare(), attention(*(x[:1] for x in inputs))
            error = _error(torch.cat(measured.run(state), 2), forward, workbench.dtype)
            workbench.enter("warmup")
            stopwatch = Stopwatch(workbench.device)
            fastest = min(stopwatch.time(measured) for _ in range(WARMUP_CALLS))
            calls = stopwatch.calibrate(measured, self.min_sample_ms, fastest)
            workbench.enter("measure")
            samples = []
            for done in range(workbench.config["repeats"]):
                samples.append(stopwatch.sample(measured, calls) / self.steps)
                workbench.progress(done + 1, workbench.config["repeats"])
            _error(torch.cat(stopwatch.result, 2), forward, workbench.dtype)
        gate.close()
        return {
            "unit": "ns",
            "samples": samples,
            "steps": self.steps,
            "calls_per_sample": calls,
            "warmup_calls": WARMUP_CALLS,
            **stopwatch.method,
            "context": inputs[0].shape[2],
            "batch_size": len(inputs[0]),
            "state_bytes": state.num_bytes,
            "error": error,
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Quantity]:
        """`decode_latency`, a step's time in ns, with its `spread`; `state_bytes`."""
        samples = measurements["samples"]
        yield median("decode_latency", samples, "ns", name="decode_us_per_token", shown=("µs", 1e-3))
        yield spread(samples, name="spread_pct.decode")
        yield Quantity("state_bytes", measurements["state_bytes"], "bytes", name="state_mib", shown=("MiB", 2.0**-20))

    @classmethod
    def headline(cls, quantities: Sequence[Quantity]) -> str:
        """Time and state."""
        text = {one.metric: one.text for one in quantities}
        return f"{text['decode_latency']} per token, state {text['state_bytes']}"


class LastSteps:
    """The last `steps` steps of a sequence, each time from a copy of the state before them.

    So the context neither grows while it is measured nor is prefilled again. The step before them is not timed: a
    cache of keys and values makes room in it. A fold of exact blocks (`local`), one in `block_size` steps, has no
    fair share in so few: where the context ends with a block it is not in it, but the exact part is at its largest.
    """

    def __init__(self, attention: Attention, inputs: tuple[Tensor, Tensor, Tensor], steps: int) -> None:
        from attention_zoo import UnsupportedError

        self.attention = attention
        first = inputs[0].shape[2] - steps
        if first < 2:
            raise UnsupportedError(f"bench.steps={steps}: must be at most seq_len - 2 = {first + steps - 2}")
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

    def _step(self, token: tuple[Tensor, ...], state: State) -> Tensor:
        query, key, value = token
        return self.attention.step(query, key, value, state)[0]


def _error(out: Tensor, forward: Tensor, dtype: torch.dtype) -> float:
    """Of the first sequence, relative to the last rows of its forward pass."""
    from bench.measures.reference import TOLERANCES, require_finite

    require_finite(out, "the steps' output")
    expected = forward[:, :, -out.shape[2] :].double()
    error = float((out[:1].double() - expected).norm() / expected.norm().clamp_min(1e-30))
    # Both are rounded, and the state is a sum in another order.
    allowed = 2 * TOLERANCES[dtype].output
    if not error <= allowed:
        raise IncorrectError(
            f"the last {out.shape[2]} steps: relative error {error:.1e} against the forward pass, allowed {allowed:.0e}"
        )
    return error
