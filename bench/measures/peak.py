"""The peak memory of one call."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

METHODS = {"cuda": "cuda max_memory_allocated", "cpu": "cpu allocator events"}
MIB = ("MiB", 2.0**-20)


def peak_bytes(device: torch.device, call: Callable[[], Any]) -> tuple[int, Any]:
    """The most that a call had allocated at once, over what there was before, and what it returned."""
    return (_peak_on_gpu if device.type == "cuda" else _peak_on_cpu)(call)


def _peak_on_gpu(call: Callable[[], Any]) -> tuple[int, Any]:
    import torch

    # What libraries allocate once, such as the workspace of cuBLAS in autograd's own thread, is no call's.
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result


def _peak_on_cpu(call: Callable[[], Any]) -> tuple[int, Any]:
    from torch.profiler import ProfilerActivity, profile

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
