"""The measures against things whose time, size and ratio are known."""

import pytest
import torch
from cells import Sleeping, SleepingBench, config, measure, measured, said

from bench.common.mechanism import build_attention
from bench.measures.context import CellContext
from bench.measures.memory import fits_in_memory, largest_fitting, run_at

CPU = torch.device("cpu")


def test_latency_of_a_known_sleep():
    passes = ["forward", "backward", "forward_backward"]
    bench = {"name": "latency", "passes": passes, "min_sample_ms": 0.0}
    found = measure(SleepingBench(config(bench=bench), Sleeping(0.02, 0.05)))
    assert list(found["passes"]) == passes and found["tokens"] == 128
    for name, seconds in zip(passes, (0.02, 0.05, 0.07), strict=True):
        samples = found["passes"][name]["samples"]
        # A sleep never ends early; how late it ends is up to the machine's load.
        assert len(samples) == 5 and seconds * 1e9 <= min(samples) < (seconds + 0.015) * 1e9


@pytest.mark.parametrize("min_sample_ms, times, calls", [(0.0, (0.03, 0.09), (1, 1)), (12.0, (0.003, 0.03), (4, 1))])
def test_compare_finds_the_ratio_of_known_sleeps_and_alternates(min_sample_ms, times, calls):
    order = []
    against = [{"label": "slow", "attention": {"name": "v_mean"}}]
    settings = config(bench={"name": "compare", "min_sample_ms": min_sample_ms, "against": against}, repeats=6)
    found = measure(SleepingBench(settings, *(Sleeping(seconds, order=order) for seconds in times)))
    assert found["labels"] == ["v_mean", "slow"]
    fast, slow = found["calls_per_sample"].values()
    assert calls[0] / 2 <= fast <= calls[0] and slow == calls[1]
    turn = [times[0]] * fast + [times[1]]
    assert order[-6 * len(turn) :] == (turn + turn[::-1]) * 3
    speedup = said("compare", found)["speedup"]
    # A busy machine wakes late from 3 ms; calls that were counted wrongly would double it at least.
    assert speedup.value == pytest.approx(times[0] / times[1], rel=0.5) and speedup.attention == "slow"


class Allocating(Sleeping):
    """Holds two tensors of `megabytes` at once, then one."""

    def __init__(self, megabytes):
        super().__init__()
        self.bytes = megabytes * 2**20

    def forward(self, query, key, value, padding=None):
        first = torch.ones(self.bytes, dtype=torch.int8)
        second = first + 1
        del first
        third = second[:1].clone()
        return query + third


def memory(**settings):
    return {"name": "memory", "passes": ["forward"], **settings}


def test_peak_memory_of_known_allocations():
    found = measure(SleepingBench(config(bench=memory()), Allocating(16)))
    assert found["passes"]["forward"]["peak_bytes"] == pytest.approx(2 * 16 * 2**20, rel=1e-3)
    assert found["passes"]["forward"]["baseline_bytes"] == 3 * 2 * 2 * 64 * 8 * 4, "queries, keys and values"


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["forward", "forward_backward"])
def test_the_peak_on_a_gpu_is_that_of_every_call(name):
    """Not of the first one: the workspace of a matrix product in autograd's own thread is a library's, made once."""
    settings = "softmax", memory(passes=[name])
    first, second = (measured(*settings, device="cuda", seq_len=256)["passes"][name] for _ in range(2))
    assert first["peak_bytes"] == second["peak_bytes"] < 16 * 2 * 2 * 256**2 * 4


@pytest.mark.parametrize("limit", [4, 100, 128, 2000])
def test_bisection_finds_the_largest_that_fits(limit):
    for most in (0, 1, 2, 5, 31, 63, 64, 77, 127, 1000, 1999, 2000):
        tried = []
        found = largest_fitting(lambda size, most=most, tried=tried: tried.append(size) or size <= most, 1, limit)
        known = min(most, limit)
        assert found == known if known < 128 or known == limit else known - known / 64 - 1 <= found <= known
        assert len(tried) == len(set(tried)) <= 20 and max(tried) <= limit


def test_the_largest_batch_and_length_by_passes_on_numbers_that_are_made_on_the_device(monkeypatch):
    """In the cell's dtype; an allocation that fails is an answer, and another error is raised."""
    shapes = []

    class Failing(Sleeping):
        def forward(self, query, key, value, padding=None):
            shapes.append(tuple(query.shape))
            assert query.dtype == torch.bfloat16 and not torch.equal(query, key) and query.std() > 0.5
            torch.empty(2**60 if len(query) > 3 or query.shape[2] > 66 else 1, dtype=torch.int8)
            return query

    for axis, most in (("batch_size", 3), ("seq_len", 66)):
        settings = config(bench=memory(largest=axis, largest_limit=67), dtype="bfloat16")
        context = SleepingBench(settings, Failing())
        largest = measure(context)["largest"]
        assert (largest["axis"], largest["value"], largest["limit_bytes"]) == (axis, most, None)
        assert all(fits == (int(value) <= most) for value, fits in largest["tried"].items())
    assert (3, 2, 64, 8) in shapes and (2, 2, 66, 8) in shapes
    monkeypatch.setattr(context, "inputs", lambda **_: pytest.fail("float32 in the host's memory"))
    run_at(context, "forward", {"seq_len": 5})
    with pytest.raises(ZeroDivisionError):
        fits_in_memory(CPU, lambda: 1 / 0)


def test_inputs_are_the_same_for_every_mechanism_and_known_by_those_that_are_measured():
    """Not by those in another dtype, which a comparison makes besides."""
    contexts = [CellContext(config(name), None) for name in ("flash", "linformer")]
    one, other = (context.inputs() for context in contexts)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    known = contexts[0].inputs_sha256
    contexts[0].inputs(dtype="bfloat16")
    assert known is not None and known == contexts[0].inputs_sha256 == contexts[1].inputs_sha256


def test_the_exact_function_shares_hyperparameters():
    given = {"name": "polysketch", "degree": 8, "scale": 0.5, "sketch": "srht"}
    exact = CellContext(config("polysketch", attention=given, causal=True), None).exact()
    assert (exact.info.name, exact.degree, exact.scale, exact.causal) == ("polynomial", 8, 0.5, True)
    softmax = config("softmax", attention={"name": "softmax", "scale": 0.125})
    assert CellContext(softmax, None).exact().scale == build_attention(softmax).scale == 0.125
