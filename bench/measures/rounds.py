"""Samples taken in rounds, one of each pass in turn and in alternating order: drift of the machine hits all alike."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench.measures.context import CellContext
from bench.measures.correctness import CorrectnessCheck
from bench.measures.peaks import Peaks
from bench.measures.timing import LAUNCHED, WARMUP_CALLS, Named, Stopwatch


def time_in_rounds(
    context: CellContext,
    checks: Mapping[str, CorrectnessCheck],
    passes: Mapping[str, Named],
    min_sample_ms: float,
    peaks: Peaks | None = None,
) -> dict[str, dict[str, Any]]:
    """Time passes of mechanisms that were checked before; their first and last results are checked here.

    Args:
        context: of the cell.
        checks: by label; mechanisms that share their inputs share one. What has none is not checked.
        passes: by label.
        min_sample_ms: how long a sample lasts at least, in milliseconds.
        peaks: sampled in every round, too.

    Returns:
        By label `{"unit": "ns", "samples": [...], "calls_per_sample", "warmup_calls", "method", "cache"}`; a sample is
        nanoseconds per call, the mean over `calls_per_sample` of them, one for each round (`repeats` of the cell).
        With peaks, which have a sample in each round too, also `"ceilings"`; on a GPU also what
        `Stopwatch.launched` says.

    Raises:
        IncorrectError: a result is wrong, or the last one is not the first.
    """
    stopwatch, rounds = Stopwatch(context.device), context.config["repeats"]
    context.enter("warmup")
    fastest = dict.fromkeys(passes, math.inf)
    for sign in (-1, 1):
        _set_sign(checks, sign)
        for label, measured in passes.items():
            fastest[label] = min(fastest[label], stopwatch.time(measured))
            if check := checks.get(label):
                check.check_first(label, measured.name, stopwatch.result)
    calls = {label: stopwatch.calibrate(measured, min_sample_ms, fastest[label]) for label, measured in passes.items()}
    if peaks:
        peaks.prepare(stopwatch)
    context.enter("measure")
    samples: dict[str, list[float]] = {label: [] for label in passes}
    for done in range(rounds):
        _set_sign(checks, -1 if done % 2 else 1)
        if peaks:
            peaks.sample(stopwatch)
        for label in list(passes)[:: -1 if done % 2 else 1]:
            if peaks:
                stopwatch.rewarm(passes[label], fastest[label])
            samples[label].append(stopwatch.sample(passes[label], calls[label]))
            if done >= rounds - 2 and (check := checks.get(label)):
                check.check_last(label, passes[label].name, stopwatch.result)
        context.progress(done + 1, rounds)
    common = {"unit": "ns", "warmup_calls": WARMUP_CALLS, **stopwatch.method}
    common |= {"ceilings": peaks.measured()} if peaks else {}
    return {
        label: {"samples": samples[label], "calls_per_sample": calls[label], **common, **stopwatch.launched(measured)}
        for label, measured in passes.items()
    }


def compared(timings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What `time_in_rounds` gave as the record of a comparison has it, of which the first label is the baseline.

    Returns:
        `{"labels": [baseline, ...], "samples": {label: [ns per call, one per round]}, "calls_per_sample": {label:
        calls}, "method", "cache"}`; on a GPU by label also what `Stopwatch.launched` says.
    """
    one = next(iter(timings.values()))
    keys = [key for key in ("samples", "calls_per_sample", *LAUNCHED) if key in one]
    columns = {key: {label: timing[key] for label, timing in timings.items()} for key in keys}
    method = {key: one[key] for key in ("method", "cache")}
    return {"labels": list(timings), **columns, **method}


def _set_sign(checks: Mapping[str, CorrectnessCheck], sign: int) -> None:
    for check in checks.values():
        check.set_sign(sign)
