"""The share of the ceiling in closed form, of mechanisms and on devices whose times are known."""

import dataclasses

import numpy as np
import pytest
import torch
from cells import Sleeping, SleepingBench, config, measure, measured, said
from synthetic_records import latency as latency_record

from bench import measures
from bench.common.mechanism import build_attention
from bench.inputs.base import NAMES
from bench.measures import peaks as of_device
from bench.measures import rounds
from bench.measures.context import CellContext
from bench.measures.flops import count
from bench.measures.peaks import Peak, Peaks
from bench.measures.timing import LONG_CALL_NS, Pass, Stopwatch
from bench.records import roofline
from bench.records.summary import headline, quantities, summarise

CPU = torch.device("cpu")
GEMM, COPY = 1e11, 2e10  # of a device, per second


def ceilings(rounds=8, drift=1.0):
    """100 GFLOP/s and 20 GB/s, in rounds of which each is slower than the one before."""
    slower = [drift**k for k in range(rounds)]
    return {
        "gemm": {"work": 10**9, "samples": [1e7 * s for s in slower]},
        "copy": {"work": 10**8, "samples": [5e6 * s for s in slower]},
    }


def of_cell(**changes):
    """Half of the ceiling of compute."""
    one = {"samples": [2e7] * 8, "ceilings": ceilings(), "flops": 10**9, "bytes": 10**7, "features": None}
    return one | changes


def told(**changes):
    """The headline."""
    return measures.get("roofline").headline(list(said("roofline", of_cell(**changes)).values()))


def latency(rng, samples, **work):
    """An older record, and the same with ceilings beside its forward pass."""
    older = latency_record("flash", 1024, rng)
    forward = {**older.measurements["passes"]["forward"], "samples": samples, "ceilings": ceilings()}
    passes = {**older.measurements["passes"], "forward": forward}
    return older, dataclasses.replace(older, measurements={**older.measurements, "passes": passes, **work})


@pytest.mark.parametrize(
    ("flops", "moved", "ns", "percent", "verdict"),
    [
        (10**9, 10**6, 1e7, 100, "compute"),
        (10**6, 10**8, 1e7, 50, "memory"),
        (10**9, 2 * 10**8, 2e7, 50, "compute"),  # on the ridge: 5 FLOP/byte
        (10**9, 3 * 10**8, 2e7, 75, "memory"),
        (10**6, 10**8, 2.5e6, 200, "beyond memory"),
        (10**9, 10**6, 8e6, 125, "beyond compute"),
    ],
)
def test_the_share_is_the_longer_of_two_least_times_over_the_time(flops, moved, ns, percent, verdict):
    """None where it is above the ceiling."""
    share = roofline.share([ns] * 8, ceilings(), flops, moved)
    value = percent if percent <= 100 else np.nan
    assert (share.value, share.low, share.high) == pytest.approx((value,) * 3, nan_ok=True)
    assert share.verdict == verdict and share.raw == pytest.approx([percent] * 8)
    assert bool(share.tracked()) == (percent <= 100)


def test_the_share_of_rounds_that_are_not_alike():
    """Bounded by the ceiling where some are above it; what slows a whole round is in no share."""
    share = roofline.share([8e6] * 4 + [2e7] * 4, ceilings(), 10**9, 10**6)
    assert (share.low, share.value, share.high) == pytest.approx((50, 6250**0.5, 100))
    samples = [2e7 * 1.3**k for k in range(8)]
    share = roofline.share(samples, ceilings(drift=1.3), 10**9, 10**6)
    assert (share.low, share.value, share.high) == pytest.approx((50, 50, 50))
    assert roofline.share(samples, ceilings(), 10**9, 10**6).low < 40
    one_less = {**ceilings(), "copy": ceilings(rounds=1)["copy"]}
    for times, beside in ((samples[1:], ceilings()), (samples, one_less)):
        with pytest.raises(ValueError):
            roofline.share(times, beside, 10**9, 10**6)


def test_what_a_cell_says():
    found = said("roofline", of_cell())
    rates = {"gemm": GEMM, "copy": COPY}
    work = {"flops": 1e9, "throughput": 0.05, "bytes": 1e7, "intensity": 100, "latency": 2e7, "share": 50}
    assert {name: one.value for name, one in found.items()} == pytest.approx(work | rates)
    assert [found[name].unit for name in rates] == ["FLOP/s", "bytes/s"]
    assert [found[name].text for name in rates] == ["100 GFLOP/s", "20 GB/s"]
    (other,) = roofline.rates({"exponentials_float32": {"work": 10**6, "samples": [1e6]}})
    assert (other.metric, other.value, other.unit) == ("exponentials_float32", 1e9, "1/s")
    assert told() == "50 % of the ceiling (50 of 100 GFLOP/s, compute)"
    assert told(samples=[8e6] * 8, bytes=10**6) == "beyond the products' ceiling"
    assert told(flops=10**6, bytes=10**8) == "25 % of the ceiling (5 of 20 GB/s, memory)"
    assert told(flops=0, bytes=10**8) == "without operations: it only copies"
    fast = {**ceilings(), "gemm": {"work": 8 * 10**12, "samples": [1e7] * 8}}
    of_gpu = told(flops=4 * 10**12, samples=[1e7] * 8, ceilings=fast)
    assert of_gpu == "50 % of the ceiling (400 of 800 TFLOP/s, compute)"


def test_a_latency_says_its_share_where_ceilings_were_measured(rng):
    older, newer = latency(rng, [2e7] * 8, flops=10**9, bytes=10**7)
    assert "%" not in headline(older) and "share" not in {one.metric for one in quantities(older)}
    assert headline(newer).startswith("forward 20 ms (50 % of the ceiling), forward_backward ")
    assert headline(newer).count("%") == 1
    shares = {f"share_pct{which}.forward": 50 for which in ("", "_low", "_high")}
    more = summarise(newer).keys() - summarise(older)
    assert {name: summarise(newer)[name] for name in more} == pytest.approx(shares)


def test_the_work_of_the_ceilings():
    product = of_device.product(24, "float64", CPU)
    assert count(lambda: product.run(None)) == {"mm": product.work} == {"mm": 2 * 24**3}
    assert product.run(None).std().item() == pytest.approx(24**0.5, rel=0.2), "neither zeros nor ones"
    copy = of_device.copy(4096, CPU)
    out = copy.run(None)
    assert copy.work == 2 * 4096 == 2 * out.nbytes and torch.equal(out, torch.arange(1024, dtype=torch.int32))
    exponentials = of_device.exponentials(1000, torch.bfloat16, CPU)
    assert exponentials.work == 1000 and exponentials.run(None).dtype == torch.bfloat16
    assert exponentials.run(None).log().std().item() == pytest.approx(1, rel=0.1)


class Device(Stopwatch):
    """A device of known rates; a pass takes as long as the products that it runs, `slower` times."""

    slower = 1.0

    def __init__(self, device, **how):
        super().__init__(device, **how)
        self.timed = []

    def time(self, measured):
        self.timed.append(measured)
        if isinstance(measured, Peak):
            self.result = measured.run(None)
            return 1e9 * measured.work / {torch.int32: COPY}.get(self.result.dtype, GEMM)
        self.result = measured.run_unprepared()
        return self.slower * 1e9 * sum(count(measured.run_unprepared).values()) / GEMM


@pytest.fixture
def small(monkeypatch):
    """Peaks of a few kilobytes."""
    monkeypatch.setattr(of_device, "SIDES", (16, 32, 64))
    monkeypatch.setattr(of_device, "COPIED", (2**10, 2**11, 2**12))
    monkeypatch.setattr(of_device, "EXPONENTIALS_PER_THREAD", 64)


class OneProduct(Sleeping):
    """A mechanism that is one matrix product."""

    def __init__(self, head_dim):
        super().__init__()
        self.info = build_attention(config("softmax")).info
        self.square = torch.nn.Parameter(torch.randn(head_dim, head_dim), requires_grad=False)
        self.register_buffer("held", torch.zeros(100))

    def forward(self, query, key, value, padding=None):
        return query @ self.square

    def flops(self, batch, seq_len):
        return batch * 2 * seq_len * 2 * self.square.shape[0] ** 2


@pytest.mark.parametrize("slower", [1.0, 8.0])
def test_a_mechanism_that_is_one_product_reaches_the_ceiling(slower, small, monkeypatch):
    """Inputs, parameters and buffers are read, and the output is written. After the peaks it is warm again."""
    events = []

    class Noted(Device):
        def rewarm(self, measured, fastest_ns):
            events.append(("warm", measured))

        def sample(self, measured, calls):
            events.append(("sample", measured))
            return super().sample(measured, calls)

    monkeypatch.setattr(rounds, "Stopwatch", Noted)
    monkeypatch.setattr(Device, "slower", slower)
    settings = config(bench={"name": "roofline", "min_sample_ms": 0.0}, head_dim=512, seq_len=256)
    found = measure(SleepingBench(settings, OneProduct(512)))
    assert found["flops"] == 2 * 2 * 256 * 2 * 512**2
    assert found["bytes"] == 4 * (4 * 2 * 2 * 256 * 512 + 512**2 + 100) and found["features"] is None
    numbers = said("roofline", found)
    assert numbers["share"].value == pytest.approx(100 / slower) and numbers["share"].verdict == "compute"
    assert numbers["gemm"].value == pytest.approx(GEMM)
    of_pass = [index for index, (what, one) in enumerate(events) if what == "sample" and isinstance(one, Pass)]
    assert len(of_pass) == len(numbers["share"].raw) == settings["repeats"]
    assert all(events[index - 1] == ("warm", events[index][1]) for index in of_pass)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "tensors"), [("identity", 2), ("v_mean", 2), ("softmax", 4)])
def test_what_a_mechanism_does_not_read_need_not_be_moved(name, tensors, causal, small):
    """The output is written."""
    settings = config(name, {"name": "roofline", "min_sample_ms": 0.0}, causal=causal, repeats=2)
    context = CellContext(settings, None)
    attention, inputs = context.attention(), context.inputs()
    assert measure(context)["bytes"] == tensors * inputs[0].nbytes
    read = (x if which in attention.info.reads else x * np.nan for which, x in zip(NAMES, inputs, strict=True))
    assert torch.equal(attention(*read), attention(*inputs))


@pytest.mark.parametrize(("slow", "bound"), [(1, torch.float16), (100, torch.float32)])
def test_a_cpu_without_products_of_16_bits_is_bounded_by_those_of_32(slow, bound, small, monkeypatch):
    time = Device.time
    of_dtype = {torch.float16: slow, torch.float32: 2}
    monkeypatch.setattr(Device, "time", lambda self, one: time(self, one) * of_dtype.get(self.result.dtype, 1))
    peaks = Peaks(torch.float16)
    peaks.prepare(Device(CPU))
    assert peaks.peaks["gemm"].run(None).dtype == bound


@pytest.mark.parametrize(("faster", "precision", "rate"), [(2, "highest", GEMM), (8, "high", 8 * GEMM / 3)])
def test_a_gpu_multiplies_float32_as_three_products_in_tf32_where_that_is_faster(
    faster, precision, rate, small, monkeypatch
):
    product, mm, seen = of_device.product, torch.mm, []

    def noted(left, right, out):
        seen.append(torch.get_float32_matmul_precision())
        return mm(left, right, out=out)

    def time(self, one):
        one.run(None)
        return 1e9 * 2 * 64**3 / GEMM / (faster if seen[-1] == "high" else 1)

    monkeypatch.setattr(torch, "mm", noted)
    monkeypatch.setattr(of_device, "product", lambda side, kind, device: product(side, kind, CPU))
    monkeypatch.setattr(Device, "time", time)
    stopwatch = Device(CPU)
    stopwatch.device = torch.device("cuda")
    bound = of_device._fastest_product("float32", stopwatch)
    assert 1e9 * bound.work / stopwatch.time(bound) == pytest.approx(rate, rel=1e-4) and seen[-1] == precision


def test_every_round_has_one_sample_of_each_that_lasts_as_long_as_asked(small):
    stopwatch, beside = Device(CPU), Peaks(torch.float64, every=True)
    beside.prepare(stopwatch)
    names = ["gemm", "copy", "gemm_float32", "exponentials", "exponentials_float32"]
    dtypes = [torch.float64, torch.int32, torch.float32, torch.float64, torch.float32]
    assert list(beside.peaks) == names and [beside.peaks[name].run(None).dtype for name in names] == dtypes
    stopwatch.timed.clear()
    for _ in range(3):
        beside.sample(stopwatch)
    assert stopwatch.timed == [*beside.peaks.values()] * 3
    assert all(len(one["samples"]) == 3 and one["calls_per_sample"] == 1 for one in beside.measured().values())
    own = Peaks(torch.float64, 1.0)
    own.prepare(stopwatch)
    work = 2 * 64**3
    assert list(own.peaks) == ["gemm", "copy"] and own.peaks["gemm"].work == work
    assert own.peaks["gemm"].calls_per_sample == min(1000, -(-1e6 // (work / 100)))


def test_a_gpu_multiplies_in_more_ways(small, monkeypatch):
    """TF32 while it is measured, and not for what is measured beside it."""
    seen, mm = [], torch.mm

    def noted(left, right, out):
        seen.append((left.dtype, torch.get_float32_matmul_precision()))
        return mm(left, right, out=out)

    monkeypatch.setattr(torch, "mm", noted)
    monkeypatch.setitem(of_device.OTHER_PRODUCTS, "cpu", of_device.OTHER_PRODUCTS["cuda"])
    stopwatch, beside = Device(CPU), Peaks(torch.bfloat16, every=True)
    beside.prepare(stopwatch)
    products = [name for name in beside.peaks if name.startswith("gemm")]
    assert products == ["gemm", "gemm_float16", "gemm_tf32", "gemm_float32"]
    seen.clear()
    beside.sample(stopwatch)
    assert seen == [
        (torch.bfloat16, "highest"), (torch.float16, "highest"), (torch.float32, "high"), (torch.float32, "highest"),
    ]  # fmt: skip
    assert {beside.peaks[name].work for name in products} == {2 * 64**3}
    assert len(list(roofline.rates(beside.measured()))) == 7


def test_exponentials_of_a_gpu(monkeypatch):
    pytest.importorskip("triton")
    from bench.measures.kernels.exponentials import BLOCK

    monkeypatch.setattr(of_device, "CHAINS", 2 * BLOCK)
    monkeypatch.setattr(of_device, "CHAINED", 5)
    chained = of_device.chained_exponentials(torch.device("cuda") if torch.cuda.is_available() else CPU)
    out = chained.run(None)
    expected = torch.arange(BLOCK, dtype=torch.float64) / BLOCK
    for _ in range(5):
        expected = 2**-expected
    assert chained.work == 2 * BLOCK * 5
    torch.testing.assert_close(out.cpu().double(), expected.repeat(2), rtol=1e-5, atol=0)


def test_a_latency_is_a_latency_and_ceilings_stand_beside_its_forward_pass_where_they_are_asked_for(small):
    bench = {"name": "latency", "passes": ["forward", "backward"], "min_sample_ms": 0.0}
    alone, asked = (measured(bench={**bench, "beside": beside}, repeats=2) for beside in (None, ["ceilings"]))
    assert alone.keys() == {"passes", "tokens"} and asked.keys() == {"passes", "tokens", "flops", "bytes"}
    timed = {"unit", "samples", "calls_per_sample", "warmup_calls", "method", "cache"}
    assert alone["passes"]["forward"].keys() == asked["passes"]["backward"].keys() == timed
    assert set(asked["passes"]["forward"]["ceilings"]) == {"gemm", "copy"}
    assert said("latency", alone).keys() == {"latency", "latency_per_token", "spread"}


def test_a_short_call_is_warm_again_when_it_is_timed():
    stopwatch, calls = Stopwatch(CPU), []
    one = Pass("forward", Sleeping(0.001, order=calls), (torch.zeros(1, 1, 2, 2),) * 3)
    stopwatch.rewarm(one, LONG_CALL_NS)
    assert not calls, "a long call needs no warming"
    stopwatch.rewarm(one, 1e6)
    assert 1 <= len(calls) <= 3
    stopwatch.flush, calls[:] = torch.zeros(1), []
    stopwatch.rewarm(one, 1e6)
    assert not calls, "what is timed with a cold cache stays cold"


@pytest.mark.gpu
@pytest.mark.parametrize("name, own", [("roofline", {}), ("latency", {"passes": ["forward"], "beside": ["ceilings"]})])
def test_a_cell_on_a_gpu(name, own):
    sizes = {"seq_len": 4096, "head_dim": 64, "num_heads": 16}
    found = measured("flash", {"name": name, **own}, dtype="bfloat16", device="cuda", **sizes)
    timed = found if name == "roofline" else found["passes"]["forward"]
    assert set(timed["ceilings"]) >= {"gemm", "copy"}
    assert all(len(one["samples"]) == len(timed["samples"]) for one in timed["ceilings"].values())
    share = said(name, found)["share"]
    assert 5 < np.median(share.raw) < 105 and share.verdict.endswith("compute")
