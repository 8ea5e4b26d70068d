"""Several mechanisms in interleaved rounds of one process, so that drift of the machine hits all alike."""

from __future__ import annotations

from typing import Any

from bench.measures.rounds import time_in_rounds
from bench.measures.timing import Pass
from bench.measures.workbench import Workbench


def measure(workbench: Workbench) -> dict[str, Any]:
    """One sample of every mechanism per round, in alternating order.

    Returns:
        `{"pass": name, "labels": [baseline, ...], "samples": {label: [ns per call, one per round]},
        "calls_per_sample": {label: calls}, "method", "cache"}`.
    """
    settings, inputs, attentions = workbench.config["bench"], workbench.inputs(), workbench.attentions()
    gate, name = workbench.gate(inputs), settings["measured_pass"]
    for label, attention in attentions.items():
        gate.admit(label, attention, [name])
    passes = {label: Pass(name, attention, inputs, gate.gradient) for label, attention in attentions.items()}
    timed = time_in_rounds(workbench, gate, passes, settings["min_sample_ms"])
    gate.close()
    return {
        "pass": name,
        "labels": list(timed),
        "samples": {label: timing["samples"] for label, timing in timed.items()},
        "calls_per_sample": {label: timing["calls_per_sample"] for label, timing in timed.items()},
        **{key: next(iter(timed.values()))[key] for key in ("method", "cache")},
    }
