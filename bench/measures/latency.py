"""Latency of forward, backward and forward+backward."""

from __future__ import annotations

from typing import Any

from bench.timing import WARMUP_CALLS, Pass, Stopwatch, repeat
from bench.workbench import Workbench


def measure(workbench: Workbench) -> dict[str, Any]:
    """Raw samples per pass.

    Returns:
        `{"passes": {name: {"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method", "cache"}},
        "tokens": batch_size * seq_len, "flops": analytic forward FLOPs}`; a sample is nanoseconds per call.
    """
    settings = workbench.config["bench"]
    attention, inputs = workbench.attention(), workbench.inputs()
    stopwatch = Stopwatch(workbench.device)
    passes = {}
    for name in settings["passes"]:
        measured = Pass(name, attention, inputs)
        workbench.enter("warmup")
        calls = stopwatch.calibrate(measured, settings["min_sample_ms"])
        workbench.enter("measure")
        samples = repeat(
            workbench.config["repeats"], lambda: stopwatch.sample(measured, calls), workbench.progress
        )  # noqa: B023
        passes[name] = {
            "unit": "ns",
            "samples": samples,
            "calls_per_sample": calls,
            "warmup_calls": WARMUP_CALLS,
            **stopwatch.method,
        }
    batch_size, _, seq_len, _ = inputs[0].shape
    return {"passes": passes, "tokens": batch_size * seq_len, "flops": attention.flops(batch_size, seq_len)}
