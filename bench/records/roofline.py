"""The roofline model (Williams, Waterman and Patterson 2009): a time compared with the device's lower bound for it.

A forward pass with given FLOPs and compulsory bytes takes at least `max(FLOPs / gemm, bytes / copy)`. Its share of the
ceiling is this bound over its time. All are measured in the same rounds, so what slows a whole round cancels.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bench.records.metrics import Metric, interval_kind, median
from bench.records.statistics import ratio_interval

# The unit of each ceiling, and the one shown to people.
UNITS = {
    "gemm": ("FLOP/s", ("GFLOP/s", 1e-9)),
    "copy": ("bytes/s", ("GB/s", 1e-9)),
    "exponentials": ("1/s", ("G/s", 1e-9)),
}

# Verdicts if there is no share, because no measured ceiling bounds the time, or the pass has no place under the roof.
BEYOND = {
    "no operations": "without operations: it only copies",
    "beyond memory": "beyond main memory's ceiling: it stays in caches",
    "beyond compute": "beyond the products' ceiling",
}


def rates(ceilings: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    """Each ceiling by its name, as work per second; in another dtype than the cell's it is `gemm_float32`, ..."""
    for name, ceiling in ceilings.items():
        unit, shown = UNITS[name.partition("_")[0]]
        per_second = [1e9 * ceiling["work"] / ns for ns in ceiling["samples"]]
        yield median(name, per_second, unit, shown=shown)


def throughput(flops: float, latency: Metric) -> Iterator[Metric]:
    """The `flops` of a forward pass, and its `throughput`."""
    yield Metric("flops", flops, "FLOP", measured_pass="forward", shown=None)
    rate, tracked = flops / latency.value / 1e3, "tflop_per_s.forward"
    yield Metric("throughput", rate, "TFLOP/s", measured_pass="forward", name=tracked, shown=None)


def share(
    samples: Sequence[float], ceilings: Mapping[str, Mapping[str, Any]], flops: float, compulsory_bytes: float
) -> Metric:
    """The forward pass's `share` of the ceiling in percent, with its interval over rounds.

    The verdict is the ceiling that limits, `compute` or `memory`. Values are at most 100 %: clipped if the interval
    reaches below, NaN with a verdict of `BEYOND` if all of it is above, as for inputs in a cache, or without FLOPs.

    Args:
        samples: nanoseconds of the pass, one per round; raises ValueError if rounds do not pair up.
        ceilings: by name `{"work": of a call, "samples": [ns per call, one per round]}`; needs `gemm` and `copy`.
        flops: FLOPs of the pass; 0 if it only copies.
        compulsory_bytes: bytes that the pass must move at least, one or more.
    """
    # The nanoseconds that the device needs for the work, in each round.
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
    if not flops:
        value, low, high, bound = math.nan, math.nan, math.nan, "no operations"
    raw = 100 * least / np.asarray(samples, dtype=float)
    words: dict[str, Any] = {"verdict": bound, "name": "share_pct.forward", "shown": ("%", 1.0)}
    return Metric("share", value, "%", low, high, interval_kind(raw), raw, "forward", **words)


def words(share: Metric) -> str:
    """A share as text, or why there is none."""
    return BEYOND.get(str(share.verdict), f"{share.value:.3g} % of the ceiling")
