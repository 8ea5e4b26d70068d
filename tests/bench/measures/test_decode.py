"""The decode measure against steps whose time, context, state and error are known."""

import copy
import dataclasses
import itertools
import time

import pytest
import torch
from synthetic_records import decode as decode_record
from test_measures import config, measure

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
    changed = config(name, causal=True, **changes)
    return {**changed, "bench": bench}


class Bench(CellContext):
    """Measures a mechanism of the test's own."""

    def __init__(self, config, attention):
        super().__init__(config, None)
        self._attention = attention

    def attention(self, **changes):
        return self._attention


class Changed(VMean):
    """Whose steps take a while, are noted, or are not what the forward pass says."""

    def __init__(self, seconds=0.0, factor=1.0):
        super().__init__(head_dim=8, num_heads=2, causal=True, max_seq_len=64)
        self.seconds, self.factors, self.lengths = seconds, itertools.repeat(factor), []

    def _step(self, state, *token):
        time.sleep(self.seconds)
        self.lengths.append(state.length + 1)
        return super()._step(state, *token) * next(self.factors)


def test_time_of_a_known_sleep_per_step():
    measured = measure(Bench(settings(steps=3), Changed(seconds=0.01)))
    assert len(measured["samples"]) == 5 and measured["steps"] == 3
    # A sleep never ends early; how late it ends is up to the machine's load.
    assert min(measured["samples"]) >= 1e7
    assert min(measured["samples"]) < 2.5e7
    assert (measured["context"], measured["batch_size"], measured["unit"]) == (64, 2, "ns")


def test_every_sample_is_at_the_end_of_the_same_context():
    attention = Changed()
    measure(Bench(settings(steps=3, repeats=7), attention))
    first, *timed = attention.lengths
    assert first == 61 and timed == [62, 63, 64] * (len(timed) // 3) and len(timed) >= 7 * 3


def test_the_size_of_the_state_is_that_of_its_tensors_at_the_end():
    for n in (32, 64):
        cached = measure(CellContext(settings("softmax", seq_len=n), None))
        # Keys and values of 2 x 2 heads of 8 in 4 bytes, and which of the positions are padding.
        assert cached["state_bytes"] == 2 * n * (2 * 2 * 8 * 4 + 1)
        summed = measure(CellContext(settings("performer", seq_len=n), None))
        assert summed["state_bytes"] == 2 * 2 * (256 * 9 + 1) * 4


def test_a_cache_does_not_grow_while_it_is_timed():
    attention = build_attention(settings("softmax"), max_seq_len=None)
    inputs = CellContext(settings("softmax"), None).inputs()
    measured = decode.LastSteps(attention, inputs, 16)
    state = measured.prepare()
    before = state.num_bytes
    assert len(measured.run(state)) == 16 and state.length == 64 and state.num_bytes == before
    assert measured.state.length == 48


@pytest.mark.parametrize("name", ["softmax", "polysketch", "performer"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_steps_that_are_right_pass_the_check(name, dtype):
    context = CellContext(settings(name, dtype=dtype, repeats=1), None)
    assert measure(context)["samples"][0] > 0
    assert context.correctness[name]["own"]["rows"] == 2 * 4


def test_steps_that_are_wrong_have_no_time():
    with pytest.raises(IncorrectError, match=r"v_mean, steps: output: relative error 1\.0e-02 against float64"):
        measure(Bench(settings(), Changed(factor=1.01)))
    with pytest.raises(NonFiniteError, match="v_mean, steps: output"):
        measure(Bench(settings(), Changed(factor=float("nan"))))
    only_the_last_sequence = torch.tensor([1.0, 1.01]).reshape(2, 1, 1, 1)
    with pytest.raises(IncorrectError, match=r"v_mean, steps: output: .*worst in sequence 1, head \d, position 6\d$"):
        measure(Bench(settings(), Changed(factor=only_the_last_sequence)))


def test_steps_that_are_wrong_only_later_have_no_time():
    attention = Changed()
    calls = 4 * (1 + WARMUP_CALLS)
    with pytest.raises(IncorrectError, match="v_mean, steps: the last call gave not what the first gave"):
        attention.factors = itertools.chain(itertools.repeat(1.0, 1 + calls), itertools.repeat(1.01))
        measure(Bench(settings(), attention))


def test_a_prefill_that_changes_its_inputs_has_no_time():
    class Zeroes(Changed):
        def prefill(self, query, key, value, **given):
            prefilled = super().prefill(query, key, value, **given)
            key.zero_()
            return prefilled

    with pytest.raises(IncorrectError, match="v_mean: changed its input key"):
        measure(Bench(settings(), Zeroes()))


def test_what_cannot_be_measured_is_unsupported():
    with pytest.raises(UnsupportedError, match="causal=false: softmax decodes only with causal=true"):
        measure(CellContext({**settings("softmax"), "causal": False}, None))
    with pytest.raises(UnsupportedError, match="informer cannot decode"):
        measure(CellContext({**settings("informer"), "causal": False}, None))
    with pytest.raises(UnsupportedError, match=r"^bench\.steps=63: must be at most seq_len - 2 = 62$"):
        measure(CellContext(settings(steps=63), None))
    assert measure(CellContext(settings(steps=62, repeats=1), None))["steps"] == 62


def test_the_benchmark_is_causal_unless_told_otherwise():
    def composed(*overrides):
        return check(compose_jobs(Loader().load, [overrides])[0][0])

    assert composed("bench=decode").causal and not composed("bench=latency").causal
    assert not composed("bench=decode", "causal=false").causal
    assert composed("bench=decode", "bench.steps=7").bench["steps"] == 7


def test_summary_and_line(rng):
    record = decode_record("flash", 1024, rng)
    times = {"samples": [2e3, 4e3, 4e3, 6e3], "state_bytes": 3 * 2**20}
    record = dataclasses.replace(record, measurements={**copy.deepcopy(record.measurements), **times})
    summary = summarise(record)
    assert summary == {"decode_us_per_token": 4.0, "spread_pct.decode": 25.0, "state_mib": 3.0}
    assert line(record).endswith("4 µs per token, state 3 MiB")


def test_float64_steps_agree_to_rounding():
    context = CellContext(settings("performer", dtype="float64", repeats=1), None)
    measure(context)
    assert context.correctness["performer"]["own"]["output"] < 1e-12
