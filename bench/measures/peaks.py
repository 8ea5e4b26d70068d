"""The peaks of a device: its fastest matrix products, copies and exponentials, timed beside a mechanism."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from bench.measures.timing import WARMUP_CALLS, Stopwatch, Timed

# The first size whose call takes this long is used, so that starting threads or kernels does not count.
LEAST_NS = 5e5
SIDES = (512, 1024, 2048, 4096, 8192)
# In bytes. Faster memory has larger caches in front of it, and needs a larger copy.
COPIED = (2**26, 2**27, 2**28, 2**29, 2**30)
# Products that are measured besides those in the mechanism's own dtype.
OTHER_PRODUCTS = {"cpu": ("float32",), "cuda": ("bfloat16", "float16", "tf32", "float32")}
# The kernels multiply float32 as this many products in TF32, `attention_zoo.ops.launching.precision`.
TF32_PRODUCTS = 3
# The numbers and their exponentials fit in the cache of the thread's core.
EXPONENTIALS_PER_THREAD = 2**16
# On a GPU: how many numbers, and how many exponentials of each.
CHAINS, CHAINED = 2**20, 2**11


@dataclass(eq=False)
class Peak(Timed):
    """A call with known work that runs the device at its fastest, to be timed."""

    work: int
    """FLOPs, bytes or exponentials per call."""
    call: Callable[[], Tensor]
    calls_per_sample: int = 1
    samples: list[float] = field(default_factory=list)

    def run(self, prepared: None) -> Tensor:
        """The timed call."""
        return self.call()


def product(side: int, kind: str, device: torch.device) -> Peak:
    """A product of two square matrices of normal numbers in a dtype: 2 side^3 FLOPs.

    With `tf32` the matrices are float32, and a GPU rounds them to TF32: 8 bits of exponent, 10 of mantissa.
    """
    dtype = torch.float32 if kind == "tf32" else getattr(torch, kind)
    left, right = (_normal((side, side), dtype, device, seed) for seed in (0, 1))
    out = torch.empty_like(left)

    def exact() -> Tensor:
        return torch.mm(left, right, out=out)

    def rounded() -> Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            return exact()
        finally:
            torch.set_float32_matmul_precision(before)

    return Peak(2 * side**3, rounded if kind == "tf32" else exact)


def copy(size: int, device: torch.device) -> Peak:
    """A copy of `size` bytes; bytes read and bytes written both count."""
    source = torch.arange(size // 4, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return Peak(2 * size, lambda: target.copy_(source))


def exponentials(count: int, dtype: torch.dtype, device: torch.device) -> Peak:
    """Exponentials of normal numbers."""
    numbers = _normal((count,), dtype, device, 0)
    out = torch.empty_like(numbers)
    return Peak(count, lambda: torch.exp(numbers, out=out))


def chained_exponentials(device: torch.device) -> Peak:
    """Float32 exponentials by a GPU's special function units, of numbers in registers; needs Triton."""
    from bench.measures.kernels.exponentials import exponentials

    out = torch.empty(CHAINS, device=device)
    return Peak(CHAINS * CHAINED, lambda: exponentials(out, CHAINED))


class Peaks:
    """The peaks of the stopwatch's device, with one sample of each beside every sample of a mechanism.

    `gemm` (in the mechanism's dtype, or what is faster in its place: `_fastest_product`) and `copy` bound a mechanism
    by its FLOPs and its bytes. With `every` also `exponentials`, and for dtypes other than float32 `gemm_float32` and
    `exponentials_float32`. On a GPU also `gemm_bfloat16`, `gemm_float16` and `gemm_tf32`; its exponentials are in
    float32 only, and need Triton.

    Calls are repeated until a sample lasts `sample_ms`; with 0, a sample is one call.
    """

    def __init__(self, dtype: torch.dtype, sample_ms: float = 0.0, *, every: bool = False) -> None:
        self.dtype, self.sample_ms, self.every = dtype, sample_ms, every
        self.peaks: dict[str, Peak] = {}

    def prepare(self, stopwatch: Stopwatch) -> None:
        """Choose each peak's size, on a device that is warm already."""
        own, device = str(self.dtype).removeprefix("torch."), stopwatch.device
        self.peaks["gemm"] = _fastest_product(own, stopwatch)
        self.peaks["copy"] = _long_enough((copy(size, device) for size in COPIED), stopwatch)
        for other in OTHER_PRODUCTS[device.type] if self.every else ():
            if other != own:
                self.peaks[f"gemm_{other}"] = _product(other, stopwatch)
        if self.every and device.type == "cpu":
            for name in dict.fromkeys((own, "float32")):
                count = EXPONENTIALS_PER_THREAD * torch.get_num_threads()
                one = exponentials(count, getattr(torch, name), device)
                self.peaks["exponentials" if name == own else f"exponentials_{name}"] = _long_enough([one], stopwatch)
        elif self.every:
            # Without Triton or its compiler, this peak is left out.
            with contextlib.suppress(Exception):
                chained = _long_enough([chained_exponentials(device)], stopwatch)
                self.peaks["exponentials" if own == "float32" else "exponentials_float32"] = chained
        for peak in self.peaks.values() if self.sample_ms else ():
            peak.calls_per_sample = stopwatch.calibrate(peak, self.sample_ms, stopwatch.time(peak))

    def sample(self, stopwatch: Stopwatch) -> None:
        """Take one sample of each peak."""
        for peak in self.peaks.values():
            peak.samples.append(stopwatch.sample(peak, peak.calls_per_sample))

    def measured(self) -> dict[str, dict[str, Any]]:
        """For the record: `{name: {"work": per call, "samples": [ns per call], "calls_per_sample"}}`."""
        keys = ("work", "samples", "calls_per_sample")
        return {name: {key: getattr(peak, key) for key in keys} for name, peak in self.peaks.items()}


def _fastest_product(own: str, stopwatch: Stopwatch) -> Peak:
    """The fastest product in this dtype or in its place.

    CPUs without 16-bit instructions widen to float32. On a GPU the kernels multiply float32 as three products in TF32.
    """
    products = [_product(own, stopwatch)]
    if stopwatch.device.type == "cpu" and own in ("bfloat16", "float16"):
        products.append(_product("float32", stopwatch))
    if stopwatch.device.type == "cuda" and own == "float32":
        rounded = _product("tf32", stopwatch)
        products.append(Peak(rounded.work // TF32_PRODUCTS, rounded.call))
    return max(products, key=lambda each: each.work / stopwatch.time(each))


def _product(kind: str, stopwatch: Stopwatch) -> Peak:
    return _long_enough((product(side, kind, stopwatch.device) for side in SIDES), stopwatch)


def _long_enough(peaks: Iterable[Peak], stopwatch: Stopwatch) -> Peak:
    """The first of ascending sizes whose call takes `LEAST_NS`, else the last; it has been warmed up."""
    for peak in peaks:
        if min(stopwatch.time(peak) for _ in range(WARMUP_CALLS)) >= LEAST_NS:
            break
    return peak


def _normal(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, seed: int) -> Tensor:
    # An own generator: the correctness check watches the process's random state.
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=dtype, device=device)
