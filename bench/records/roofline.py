"""The roofline model (Williams, Waterman and Patterson 2009): a time beside the least that the device's ceilings allow.

A forward pass of so many FLOPs and compulsory bytes takes at least `max(FLOPs / gemm, bytes / copy)`; its share of the
ceiling is that over its time. All are taken in the same rounds, so that what slows a whole round cancels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.records.metrics import Metric, interval_kind, median
from bench.records.statistics import ratio_interval

# Unit of a ceiling, and the one in which people read it.
UNITS = {
    "gemm": ("FLOP/s", ("GFLOP/s", 1e-9)),
    "copy": ("bytes/s", ("GB/s", 1e-9)),
    "exponentials": ("1/s", ("G/s", 1e-9)),
}

# Verdicts of what no share is told of: no ceiling that was measured bounds it.
BEYOND = {
    "beyond memory": "beyond main memory's ceiling: it stays in caches",
    "beyond compute": "beyond the products' ceiling",
}


def rates(ceilings: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Each ceiling by its name, as work per second; those in another dtype than the cell's are `gemm_float32`, ..."""
    for name, ceiling in ceilings.items():
        unit, shown = UNITS[name.partition("_")[0]]
        per_second = [1e9 * ceiling["work"] / ns for ns in ceiling["samples"]]
        yield median(name, per_second, unit, shown=shown)


def throughput(flops: float, latency: Metric) -> Iterator[Metric]:
    """`flops` of a forward pass, and its `throughput`."""
    yield Metric("flops", flops, "FLOP", measured_pass="forward", shown=None)
    rate, tracked = flops / latency.value / 1e3, "tflop_per_s.forward"
    yield Metric("throughput", rate, "TFLOP/s", measured_pass="forward", name=tracked, shown=None)


def share(
    samples: Sequence[float], ceilings: Mapping[str, Mapping[str, Any]], flops: float, compulsory_bytes: float
) -> Metric:
    """The `share` of the ceiling of a forward pass in percent, with its interval over rounds.

    Its verdict is which ceiling binds, `compute` or `memory`. None is above 100 %: it is bounded by that where its
    interval reaches below, and NaN with a verdict of `BEYOND` where all of it is above, as of inputs in a cache.

    Args:
        samples: nanoseconds of the pass, one for each round; raises ValueError where rounds do not pair up.
        ceilings: by name `{"work": of a call, "samples": [ns per call, one for each round]}`; `gemm` and `copy`.
        flops: of the pass, at least one, as `compulsory_bytes`.
        compulsory_bytes: that it moves at least.
    """
    # The nanoseconds in which the device does the work, in each round.
    compute, memory = (
        np.asarray(ceilings[name]["samples"], dtype=float) * work / ceilings[name]["work"]
        for name, work in (("gemm", flops), ("copy", compulsory_bytes))
    )
    least = np.array([max(one) for one in zip(compute, memory, strict=True)])
    ratio = ratio_interval(least, samples)
    bound = "compute" if np.median(compute) >= np.median(memory) else "memory"
    value, low, high = (min(100 * one, 100.0) for one in (ratio.median, ratio.low, ratio.high))
    if ratio.low > 1:
        value, low, high, bound = math.nan, math.nan, math.nan, f"beyond {bound}"
    raw = 100 * least / np.asarray(samples, dtype=float)
    words: dict[str, Any] = {"verdict": bound, "name": "share_pct.forward", "shown": ("%", 1.0)}
    return Metric("share", value, "%", low, high, interval_kind(raw), raw, "forward", **words)


def words(share: Metric) -> str:
    """A share for people, or why there is none."""
    return BEYOND.get(str(share.verdict), f"{share.value:.3g} % of the ceiling")
