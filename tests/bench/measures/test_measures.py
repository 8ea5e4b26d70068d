"""The measures against things whose time, size and ratio are known."""

import math
import time

import pytest
import torch
from no_gate import NoGate

from bench import measures
from bench.common.mechanism import build_attention
from bench.measures import memory
from bench.measures.timing import Pass, Stopwatch
from bench.measures.workbench import Workbench


def config(name="v_mean", bench=None, **changes):
    return {
        "label": name,
        "attention": {"name": name},
        "bench": bench or {"name": "latency", "passes": ["forward"], "min_sample_ms": 0.0},
        "inputs": {"name": "gaussian", "score_scale": 1.0},
        "seq_len": 64,
        "batch_size": 2,
        "num_heads": 2,
        "head_dim": 8,
        "dtype": "float32",
        "causal": False,
        "device": "cpu",
        "impl": "auto",
        "seed": 0,
        "repeats": 5,
        **changes,
    }


def benchmark(bench):
    """That of a cell's settings, the rest as by default."""
    own = {key: value for key, value in bench.items() if key not in ("name", "against")}
    return measures.get(bench["name"])(**own)


def measure(workbench):
    return benchmark(workbench.config["bench"]).measure(workbench)


class Sleeping(torch.nn.Module):
    """A mechanism whose forward and backward pass last as long as they are told."""

    def __init__(self, forward_s, backward_s=0.0):
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s

    def forward(self, query, key, value, padding=None):
        time.sleep(self.forward_s)
        out = query + key + value
        if out.requires_grad:
            out.register_hook(lambda gradient: time.sleep(self.backward_s))
        return out

    def flops(self, batch, seq_len):
        return 1


class SleepingBench(Workbench):
    def __init__(self, config, *sleepers):
        super().__init__(config, None)
        self.sleepers = dict(zip((c["label"] for c in self.configs()), sleepers, strict=True))

    def attention(self, **changes):
        return next(iter(self.sleepers.values()))

    def attentions(self):
        return self.sleepers

    def gate(self, inputs):
        return NoGate()


def test_latency_of_a_known_sleep():
    passes = ["forward", "backward", "forward_backward"]
    workbench = SleepingBench(
        config(bench={"name": "latency", "passes": passes, "min_sample_ms": 0.0}), Sleeping(0.02, 0.05)
    )
    measured = measure(workbench)
    assert list(measured["passes"]) == passes
    for name, seconds in zip(passes, (0.02, 0.05, 0.07), strict=True):
        samples = measured["passes"][name]["samples"]
        assert len(samples) == 5
        # A sleep never ends early; how late it ends is up to the machine's load.
        assert min(samples) >= seconds * 1e9
        assert min(samples) < (seconds + 0.015) * 1e9
    assert measured["tokens"] == 128


def test_samples_last_as_long_as_asked(monkeypatch):
    attention, stopwatch = Sleeping(0.004), Stopwatch(torch.device("cpu"))
    one = Pass("forward", attention, (torch.zeros(1, 1, 2, 2),) * 3)
    assert stopwatch.calibrate(one, 0, stopwatch.time(one)) == 1
    # No sleep is shorter than 4 ms; the fastest of those that were timed may be longer on a busy machine.
    timed = []
    monkeypatch.setattr(
        stopwatch, "time", lambda measured: timed.append(Stopwatch.time(stopwatch, measured)) or timed[-1]
    )
    assert stopwatch.calibrate(one, 20, stopwatch.time(one)) == math.ceil(20e6 / min(timed)) <= 5


def test_compare_finds_the_ratio_of_known_sleeps_and_alternates():
    order = []

    class Noted(Sleeping):
        def forward(self, *inputs):
            order.append(self.forward_s)
            return super().forward(*inputs)

    against = [{"label": "slow", "attention": {"name": "v_mean"}}]
    settings = config(bench={"name": "compare", "min_sample_ms": 0.0, "against": against}, repeats=6)
    measured = measure(SleepingBench(settings, Noted(0.03), Noted(0.09)))
    assert measured["labels"] == ["v_mean", "slow"]
    ratios = [slow / fast for fast, slow in zip(*measured["samples"].values(), strict=True)]
    assert sorted(ratios)[3] == pytest.approx(3, rel=0.2)
    assert order[-12:] == [0.03, 0.09, 0.09, 0.03] * 3
    (speedup,) = (one for one in measures.get("compare").quantities(measured) if one.metric == "speedup")
    assert speedup.value == pytest.approx(1 / 3, rel=0.2) and speedup.attention == "slow"


def test_compare_calls_each_as_often_as_its_sample_needs():
    against = [{"label": "slow", "attention": {"name": "v_mean"}}]
    settings = config(bench={"name": "compare", "min_sample_ms": 12.0, "against": against}, repeats=2)
    calls = measure(SleepingBench(settings, Sleeping(0.003), Sleeping(0.03)))["calls_per_sample"]
    assert 2 <= calls["v_mean"] <= 4 and calls["slow"] == 1


class Allocating(Sleeping):
    """Holds two tensors of `megabytes` at once, then one."""

    def __init__(self, megabytes):
        super().__init__(0)
        self.bytes = megabytes * 2**20

    def forward(self, query, key, value, padding=None):
        first = torch.ones(self.bytes, dtype=torch.int8)
        second = first + 1
        del first
        third = second[:1].clone()
        return query + third


@pytest.mark.parametrize("megabytes", [1, 16, 64])
def test_peak_memory_of_known_allocations(megabytes):
    settings = config(bench={"name": "memory", "passes": ["forward"], "largest": None})
    measured = measure(SleepingBench(settings, Allocating(megabytes)))
    peak = measured["passes"]["forward"]["peak_bytes"]
    assert peak == pytest.approx(2 * megabytes * 2**20, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["forward", "forward_backward"])
def test_the_peak_on_a_gpu_is_that_of_every_call(name):
    """Not of the first one: the workspace of a matrix product in autograd's own thread is a library's, made once."""
    settings = config("softmax", {"name": "memory", "passes": [name]}, device="cuda", seq_len=256)
    first, second = (measure(Workbench(settings, None))["passes"][name]["peak_bytes"] for _ in range(2))
    assert first == second < 16 * 2 * 2 * 256**2 * 4


def test_the_bisection_makes_its_inputs_on_the_device_in_the_cells_dtype(monkeypatch):
    shapes = []

    class Noted(Sleeping):
        def forward(self, query, key, value, padding=None):
            shapes.append((query.shape, query.dtype, query.device.type))
            assert not torch.equal(query, key) and query.std() > 0.5
            return query

    workbench = SleepingBench(config(dtype="bfloat16"), Noted(0))
    monkeypatch.setattr(workbench, "inputs", lambda **_: pytest.fail("float32 in the host's memory"))
    assert memory._runs(workbench, "batch_size", 3, "forward") and memory._runs(workbench, "seq_len", 5, "forward")
    assert shapes == [((3, 2, 64, 8), torch.bfloat16, "cpu"), ((2, 2, 5, 8), torch.bfloat16, "cpu")]


def test_peak_memory_of_softmax_is_its_matrices():
    n = 512
    settings = config("softmax", {"name": "memory", "passes": ["forward"], "largest": None}, seq_len=n)
    measured = measure(Workbench(settings, None))
    matrix = 2 * 2 * n * n * 4
    peak = measured["passes"]["forward"]["peak_bytes"]
    assert 2 * matrix <= peak < 3.2 * matrix
    inputs = 3 * 2 * 2 * n * 8 * 4
    assert measured["passes"]["forward"]["baseline_bytes"] == inputs


@pytest.mark.parametrize("fits_up_to", [1, 5, 64, 100, 127])
def test_bisection_finds_the_largest_that_fits(fits_up_to, monkeypatch):
    tried = []

    def runs(workbench, axis, value, name):
        tried.append(value)
        return value <= fits_up_to

    monkeypatch.setattr(memory, "_runs", runs)
    settings = {"name": "memory", "passes": ["forward"], "largest": "batch_size", "largest_limit": 100}
    largest = benchmark(settings).bisect(Workbench(config(bench=settings, batch_size=1), None))
    assert largest["value"] == min(fits_up_to, 100)
    assert len(tried) == len(set(tried)) <= 14
    assert all(largest["tried"][str(value)] == (value <= fits_up_to) for value in tried)


def test_an_allocation_that_fails_is_an_answer_and_another_error_is_not():
    class Failing(Sleeping):
        def forward(self, query, key, value, padding=None):
            torch.empty(2**60 if len(query) > 3 else 1, dtype=torch.int8)
            if len(query) == 3:
                raise ValueError("not about memory")
            return query

    workbench = SleepingBench(config(), Failing(0))
    assert memory._runs(workbench, "batch_size", 2, "forward")
    assert not memory._runs(workbench, "batch_size", 4, "forward")
    with pytest.raises(ValueError, match="not about memory"):
        memory._runs(workbench, "batch_size", 3, "forward")


def test_inputs_are_the_same_for_every_mechanism():
    one, other = (Workbench(config(name), None).inputs() for name in ("flash", "linformer"))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_inputs_are_known_by_those_that_are_measured():
    """Not by shorter ones that a benchmark makes besides."""
    workbench = Workbench(config(), None)
    workbench.inputs()
    known = workbench.inputs_sha256
    workbench.inputs(seq_len=32)
    workbench.inputs(batch_size=1)
    assert known is not None and workbench.inputs_sha256 == known


def test_each_mechanism_of_a_comparison_has_its_own_reference():
    against = [{"label": "mean", "attention": {"name": "v_mean"}, "impl": "auto", "dtype": "float32"}]
    workbench = Workbench(config("flash", bench={"name": "compare", "against": against}), None)
    assert [workbench.reference(label).info.name for label in ("flash", "mean")] == ["flash", "v_mean"]


def test_the_exact_function_shares_hyperparameters():
    settings = config("polysketch", causal=True)
    settings["attention"] |= {"degree": 8, "scale": 0.5, "sketch": "srht"}
    exact = Workbench(settings, None).exact()
    assert (exact.info.name, exact.degree, exact.scale, exact.causal) == ("polynomial", 8, 0.5, True)
    softmax = config("softmax")
    softmax["attention"]["scale"] = 0.125
    assert Workbench(softmax, None).exact().scale == 0.125
    assert build_attention(softmax).scale == 0.125
