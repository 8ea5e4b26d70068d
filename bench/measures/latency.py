"""Latency of forward, backward and forward+backward."""

from __future__ import annotations

from typing import Any

from bench.measures.timing import WARMUP_CALLS, Pass, Stopwatch
from bench.measures.workbench import Workbench


def measure(workbench: Workbench) -> dict[str, Any]:
    """Raw samples per pass.

    Returns:
        `{"passes": {name: {"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method", "cache"}},
        "tokens": batch_size * seq_len, "flops": analytic forward FLOPs}`; a sample is nanoseconds per call.
    """
    attention, inputs = workbench.attention(), workbench.inputs()
    stopwatch = Stopwatch(workbench.device)
    passes = {
        name: _time(workbench, stopwatch, Pass(name, attention, inputs)) for name in workbench.config["bench"]["passes"]
    }
    batch_size, _, seq_len, _ = inputs[0].shape
    return {"passes": passes, "tokens": batch_size * seq_len, "flops": attention.flops(batch_size, seq_len)}


def _time(workbench: Workbench, stopwatch: Stopwatch, measured: Pass) -> dict[str, Any]:
    workbench.enter("warmup")
    calls = stopwatch.calibrate(measured, workbench.config["bench"]["min_sample_ms"])
    workbench.enter("measure")
    samples = []
    for done in range(workbench.config["repeats"]):
        samples.append(stopwatch.sample(measured, calls))
        workbench.progress(done + 1, workbench.config["repeats"])
    return {
        "unit": "ns",
        "samples": samples,
        "calls_per_sample": calls,
        "warmup_calls": WARMUP_CALLS,
        **stopwatch.method,
    }
