"""Several mechanisms in interleaved rounds of one process, so that drift of the machine hits all alike."""

from __future__ import annotations

from typing import Any

from bench.measures.timing import Pass, Stopwatch
from bench.measures.workbench import Workbench


def measure(workbench: Workbench) -> dict[str, Any]:
    """One sample of every mechanism per round, in alternating order.

    Returns:
        `{"pass": name, "labels": [baseline, ...], "samples": {label: [ns per call, one per round]},
        "calls_per_sample": {label: calls}, "method", "cache"}`.
    """
    settings = workbench.config["bench"]
    inputs = workbench.inputs()
    stopwatch = Stopwatch(workbench.device)
    passes = {
        label: Pass(settings["measured_pass"], attention, inputs) for label, attention in workbench.attentions().items()
    }
    workbench.enter("warmup")
    calls = {label: stopwatch.calibrate(one, settings["min_sample_ms"]) for label, one in passes.items()}
    workbench.enter("measure")
    samples: dict[str, list[float]] = {label: [] for label in passes}
    rounds = workbench.config["repeats"]
    for done in range(rounds):
        for label in list(passes)[:: -1 if done % 2 else 1]:
            samples[label].append(stopwatch.sample(passes[label], calls[label]))
        workbench.progress(done + 1, rounds)
    return {
        "pass": settings["measured_pass"],
        "labels": list(passes),
        "samples": samples,
        "calls_per_sample": calls,
        **stopwatch.method,
    }
