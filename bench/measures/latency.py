"""Latency of forward, backward and forward+backward."""

from __future__ import annotations

from typing import Any

from bench.measures.rounds import time_in_rounds
from bench.measures.timing import Pass
from bench.measures.workbench import Workbench


def measure(workbench: Workbench) -> dict[str, Any]:
    """Raw samples per pass.

    Returns:
        `{"passes": {name: {"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method", "cache"}},
        "tokens": batch_size * seq_len, "flops": analytic forward FLOPs}`; a sample is nanoseconds per call.
    """
    settings, label = workbench.config["bench"], workbench.config["label"]
    attention, inputs = workbench.attention(), workbench.inputs()
    gate = workbench.gate(inputs)
    gate.admit(label, attention, settings["passes"])
    passes = {}
    for name in settings["passes"]:
        measured = {label: Pass(name, attention, inputs, gate.gradient)}
        passes[name] = time_in_rounds(workbench, gate, measured, settings["min_sample_ms"])[label]
    gate.close()
    batch_size, _, seq_len, _ = inputs[0].shape
    return {"passes": passes, "tokens": batch_size * seq_len, "flops": attention.flops(batch_size, seq_len)}
