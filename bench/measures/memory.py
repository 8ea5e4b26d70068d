"""Peak memory of one call, and the largest batch or length that fits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bench.measures.timing import Pass
from bench.measures.workbench import Workbench
from bench.records.outcomes import classify


def measure(workbench: Workbench) -> dict[str, Any]:
    """Peak bytes over what was allocated before the call: inputs and parameters are the baseline.

    On a CPU the peak is the running sum of the allocator's own events, on a GPU the allocator's high-water mark.

    Returns:
        `{"passes": {name: {"peak_bytes", "baseline_bytes"}}, "method", "largest": None or {"axis", "value",
        "limit_bytes", "tried": {value: fits}}}`.
    """
    settings = workbench.config["bench"]
    attention, inputs = workbench.attention(), workbench.inputs()
    gate, label = workbench.gate(inputs), workbench.config["label"]
    gate.admit(label, attention, settings["passes"])
    baseline = sum(x.nbytes for x in (*inputs, *attention.parameters(), *attention.buffers()))
    on_gpu = workbench.device.type == "cuda"
    peak = _peak_on_gpu if on_gpu else _peak_on_cpu
    passes = {}
    workbench.enter("measure")
    for done, name in enumerate(settings["passes"]):
        bytes_over, result = peak(Pass(name, attention, inputs, gate.gradient).run_unprepared)
        gate.first(label, name, result)
        del result
        passes[name] = {"peak_bytes": bytes_over, "baseline_bytes": baseline}
        workbench.progress(done + 1, len(settings["passes"]))
    gate.close()
    del attention, inputs, gate
    return {
        "passes": passes,
        "method": "cuda max_memory_allocated" if on_gpu else "cpu allocator events",
        "largest": _largest(workbench) if settings["largest"] else None,
    }


def _peak_on_gpu(call: Callable[[], Any]) -> tuple[int, Any]:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result


def _peak_on_cpu(call: Callable[[], Any]) -> tuple[int, Any]:
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    allocated = peak = 0
    for _, change in changes:
        allocated += change
        peak = max(peak, allocated)
    return peak, result


def _largest(workbench: Workbench) -> dict[str, Any]:
    """Double until something does not fit, then bisect between the last that did and the first that did not."""
    settings = workbench.config["bench"]
    axis, name, limit = settings["largest"], settings["passes"][-1], settings["largest_limit"]
    tried: dict[int, bool] = {}

    def fits(value: int) -> bool:
        tried[value] = _runs(workbench, axis, value, name)
        workbench.progress(len(tried), len(tried) + 1)
        return tried[value]

    low, high = 0, workbench.config[axis]
    while high <= limit and fits(high):
        low, high = high, min(2 * high, limit) if high < limit else limit + 1
    high = min(high, limit + 1)
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return {
        "axis": axis,
        "value": low,
        "limit_bytes": workbench.memory_limit,
        "tried": {str(value): fit for value, fit in sorted(tried.items())},
    }


def _runs(workbench: Workbench, axis: str, value: int, name: str) -> bool:
    # Leaving this frame, and with it the exception's, frees what a failed attempt had allocated.
    try:
        attention, inputs = workbench.attention(**{axis: value}), workbench.inputs(**{axis: value})
        Pass(name, attention, inputs).run_unprepared()
    except Exception as error:
        if classify(error)[0] != "oom":
            raise
        return False
    finally:
        gc.collect()
        if workbench.device.type == "cuda":
            torch.cuda.empty_cache()
    return True
