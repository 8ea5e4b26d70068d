"""The decode measure against steps whose time, context, state and error are known."""

import dataclasses
import itertools
import time

import pytest
import torch
from cells import config, measure
from fake_gpu import FakeGpu
from synthetic_records import decode as decode_record

from attention_zoo import UnsupportedError
from attention_zoo.v_mean import VMean
from bench.common.errors import IncorrectError, NonFiniteError
from bench.common.mechanism import build_attention
from bench.measures import decode
from bench.measures.context import CellContext
from bench.measures.timing import WARMUP_CALLS
from bench.plan.compose import compose_jobs
from bench.plan.config import check
from bench.plan.load import Loader
from bench.records.summary import summarise
from bench.records.table import line


def settings(name="v_mean", steps=4, **changes):
    bench = {"name": "decode", "steps": steps, "min_sample_ms": 0.0}
    return config(name, bench, **{"causal": True, **changes})


def measured(*cell, **changes):
    context = CellContext(settings(*cell, **changes), None)
    return measure(context), context


class Changed(VMean):
    """Whose steps take a while, are noted, or are not what the forward pass says."""

    def __init__(self, seconds=0.0, factors=(1.0,)):
        super().__init__(head_dim=8, num_heads=2, causal=True, max_seq_len=64)
        self.seconds, self.lengths = seconds, []
        self.factors = itertools.chain(factors, itertools.repeat(factors[-1]))

    def _before_step(self):
        time.sleep(self.seconds)

    def _step(self, state, *token):
        self._before_step()
        self.lengths.append(state.length + 1)
        return super()._step(state, *token) * next(self.factors)


def measured_of(attention, **changes):
    context = CellContext(settings(**changes), None)
    context.attention = lambda: attention
    return measure(context)


def test_time_of_a_known_sleep_per_step_at_the_end_of_the_same_context():
    attention = Changed(seconds=0.01)
    found = measured_of(attention, steps=3)
    # A sleep never ends early; how late it ends is up to the machine's load.
    assert len(found["samples"]) == 5 and 1e7 <= min(found["samples"]) < 2.5e7
    assert (found["steps"], found["context"], found["batch_size"], found["unit"]) == (3, 64, 2, "ns")
    assert found["cache"] == "warm"
    first, *timed = attention.lengths
    assert first == 61 and timed == [62, 63, 64] * (len(timed) // 3) and len(timed) >= 5 * 3


def test_on_a_gpu_the_first_of_the_steps_finds_a_cold_cache_and_the_record_says_so(monkeypatch):
    inputs, gpu = CellContext(settings(), None).inputs(), FakeGpu().install(monkeypatch)
    attention = Changed()
    monkeypatch.setattr(attention, "_before_step", lambda: gpu.launch(1e3, 5e3))
    context = CellContext(settings(device="cuda"), None)
    context.attention, context.inputs = lambda: attention, lambda: inputs
    found = measure(context)
    assert gpu.cold[-4:] == [True, False, False, False] and found["samples"] == pytest.approx([5e3] * 5)
    assert found["cache"] == "cold in the first of 4 steps"


def test_the_size_of_the_state_is_that_of_its_tensors_at_the_end():
    for n in (32, 64):
        # Keys and values of 2 x 2 heads of 8 in 4 bytes, and which of the positions are padding.
        assert measured("softmax", seq_len=n)[0]["state_bytes"] == 2 * n * (2 * 2 * 8 * 4 + 1)
        assert measured("performer", seq_len=n)[0]["state_bytes"] == 2 * 2 * (256 * 9 + 1) * 4


def test_a_cache_does_not_grow_while_it_is_timed():
    attention = build_attention(settings("softmax"), max_seq_len=None)
    steps = decode.LastSteps(attention, CellContext(settings("softmax"), None).inputs(), 16)
    state = steps.prepare()
    before = state.num_bytes
    steps.run(state)
    assert len(steps.outputs) == 16 and state.length == 64 and state.num_bytes == before
    assert steps.state.length == 48


@pytest.mark.parametrize("name, dtype", [("softmax", "bfloat16"), ("polysketch", "float32"), ("performer", "float64")])
def test_steps_that_are_right_pass_the_check(name, dtype):
    found, context = measured(name, dtype=dtype, repeats=1)
    own = context.correctness[name]["own"]
    assert found["samples"][0] > 0 and own["rows"] == 2 * 4
    if dtype == "float64":
        assert own["output"] < 1e-12


CALLS = 1 + 4 * (1 + WARMUP_CALLS)
SECOND_SEQUENCE = torch.tensor([1.0, 1.01]).reshape(2, 1, 1, 1)
WRONG = [
    ([1.01], IncorrectError, r"output: relative error 1\.0e-02 against float64"),
    ([float("nan")], NonFiniteError, "output"),
    ([SECOND_SEQUENCE], IncorrectError, r"output: .*worst in sequence 1, head \d, position 6\d$"),
    ([1.0] * CALLS + [1.01], IncorrectError, "the last call gave not what the first gave"),
]


@pytest.mark.parametrize("factors, error, reason", WRONG)
def test_steps_that_are_wrong_have_no_time(factors, error, reason):
    with pytest.raises(error, match=f"v_mean, steps: {reason}"):
        measured_of(Changed(factors=factors))


def test_what_cannot_be_measured_is_unsupported():
    for cell, changes, reason in (
        (("softmax",), {"causal": False}, "causal=false: softmax decodes only with causal=true"),
        (("informer",), {"causal": False}, "informer cannot decode"),
        ((), {"steps": 63}, r"^bench\.steps=63: must be at most seq_len - 2 = 62$"),
    ):
        with pytest.raises(UnsupportedError, match=reason):
            measured(*cell, **changes)
    assert measured(steps=62, repeats=1)[0]["steps"] == 62


def test_the_benchmark_is_causal_unless_told_otherwise():
    def composed(*overrides):
        return check(compose_jobs(Loader().load, [overrides])[0][0])

    assert composed("bench=decode").causal and not composed("bench=latency").causal
    assert not composed("bench=decode", "causal=false").causal


def test_summary_and_line(rng):
    record = decode_record("flash", 1024, rng)
    times = {"samples": [2e3, 4e3, 4e3, 6e3], "state_bytes": 3 * 2**20}
    record = dataclasses.replace(record, measurements=record.measurements | times)
    assert summarise(record) == {"decode_us_per_token": 4.0, "spread_pct.decode": 25.0, "state_mib": 3.0}
    assert line(record).endswith("4 µs per token, state 3 MiB")
