"""Peak memory of one call, and the largest batch or length that fits."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext
from bench.measures.timing import Pass
from bench.records.metrics import Metric
from bench.records.outcomes import classify

PASSES = ("forward", "forward_backward")
METHODS = {"cuda": "cuda max_memory_allocated", "cpu": "cpu allocator events"}
MIB = ("MiB", 2.0**-20)


@register
@dataclass
class Memory(Benchmark):
    """Peak bytes over the baseline, and the largest batch or length that fits. Each pass is a cell."""

    name: ClassVar[str] = "memory"
    cell_per: ClassVar[str | None] = "passes"

    passes: list[str] = setting(list(PASSES), choices=PASSES, condition=False)
    largest: str | None = setting(None, choices=("batch_size", "seq_len"), condition=False)  # also bisect for it
    largest_limit: int = setting(65536, minimum=1, condition=False)  # where the bisection stops looking

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Peak bytes over what was allocated before the call: inputs and parameters are the baseline.

        On a CPU the peak is the running sum of the allocator's own events, on a GPU the allocator's high-water mark.

        Returns:
            `{"passes": {name: {"peak_bytes", "baseline_bytes"}}, "method", "largest": None or {"axis", "value",
            "limit_bytes", "tried": {value: fits}}}`.
        """
        label, attention, inputs = context.config["label"], context.attention(), context.inputs()
        check = context.correctness_check(inputs)
        check.check_before(label, attention, self.passes)
        baseline = sum(x.nbytes for x in (*inputs, *attention.parameters(), *attention.buffers()))
        passes = {}
        context.enter("measure")
        for done, name in enumerate(self.passes):
            call = Pass(name, attention, inputs, check.gradient).run_unprepared
            bytes_over, result = peak_bytes(context.device, call)
            check.check_first(label, name, result)
            del result
            passes[name] = {"peak_bytes": bytes_over, "baseline_bytes": baseline}
            context.progress(done + 1, len(self.passes))
        check.finish()
        del attention, inputs, check
        return {
            "passes": passes,
            "method": METHODS[context.device.type],
            "largest": self.bisect(context) if self.largest else None,
        }

    def bisect(self, context: CellContext) -> dict[str, Any]:
        """As `largest_fitting`, from the cell's own size on."""
        assert self.largest is not None
        axis, name, limit = self.largest, self.passes[-1], self.largest_limit
        tried: dict[int, bool] = {}

        def fits(value: int) -> bool:
            tried[value] = _pass_fits(context, axis, value, name)
            context.progress(len(tried), len(tried) + 1)
            return tried[value]

        return {
            "axis": axis,
            "value": largest_fitting(fits, context.config[axis], limit),
            "limit_bytes": context.memory_limit,
            "tried": {str(value): fit for value, fit in sorted(tried.items())},
        }

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """Of each pass its `peak_memory` in bytes; `largest_batch_size` or `largest_seq_len` of the last one."""
        for name, peak in measurements["passes"].items():
            yield Metric(
                "peak_memory", peak["peak_bytes"], "bytes", measured_pass=name, name=f"peak_mib.{name}", shown=MIB
            )
        if largest := measurements.get("largest"):
            axis = largest["axis"]
            yield Metric(f"largest_{axis}", largest["value"], axis, measured_pass=name, name=f"largest.{axis}")

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The peak of each pass, and what is the largest that fits."""
        return ", ".join(
            f"{one.measured_pass} {one.text}" if one.metric == "peak_memory" else f"largest {one.unit} {one.value}"
            for one in quantities
        )


def peak_bytes(device: torch.device, call: Callable[[], Any]) -> tuple[int, Any]:
    """The most that a call had allocated at once, over what there was before, and what it returned."""
    return (_peak_on_gpu if device.type == "cuda" else _peak_on_cpu)(call)


def largest_fitting(fits: Callable[[int], bool], first: int, limit: int) -> int:
    """Double until a size does not fit, then bisect between the last that did and the first that did not.

    Exact up to 128, and to a 64th above it.

    Args:
        fits: whether a size does; each is asked once.
        first: where the doubling starts.
        limit: no larger size is tried.

    Returns:
        The size; 0 where none fits.
    """
    low, high = 0, first
    while high <= limit and fits(high):
        low, high = high, min(2 * high, limit) if high < limit else limit + 1
    high = min(high, limit + 1)
    while high - low > max(1, low // 64):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fits_in_memory(device: torch.device, call: Callable[[], Any]) -> bool:
    """Whether a call has memory enough; frees what it allocated either way, and raises what is not about memory."""
    # Leaving this frame, and with it the exception's, frees what a failed attempt had allocated.
    try:
        call()
    except Exception as error:
        if classify(error)[0] != "oom":
            raise
        return False
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def _peak_on_gpu(call: Callable[[], Any]) -> tuple[int, Any]:
    # What libraries allocate once, such as the workspace of cuBLAS in autograd's own thread, is no call's.
    call()
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


def _pass_fits(context: CellContext, axis: str, value: int, name: str) -> bool:
    def call() -> None:
        attention, inputs = context.attention(**{axis: value}), _random_inputs(context, {axis: value})
        Pass(name, attention, inputs).run_unprepared()

    return fits_in_memory(context.device, call)


def _random_inputs(context: CellContext, sizes: Mapping[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Drawn on the device in the cell's dtype: what fits there need not fit three times in the host's float32."""
    shape = [{**context.config, **sizes}[key] for key in ("batch_size", "num_heads", "seq_len", "head_dim")]
    generator = torch.Generator(context.device).manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, device=context.device, dtype=context.dtype) for _ in range(3)
    )
    return query, key, value
