"""Peak memory of one call, and the largest batch or length that fits."""

import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.profiler import ProfilerActivity, profile

from bench.common.schema import setting
from bench.measures import Benchmark, register
from bench.measures.context import CellContext, held_bytes
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

    passes: list[str] = setting(
        list(PASSES), "passes whose peak memory is measured; each is a cell", choices=PASSES, condition=False
    )
    largest: str | None = setting(
        None, "also search for the largest size that fits", choices=("batch_size", "seq_len"), condition=False
    )
    largest_limit: int = setting(65536, "largest value that the search tries", minimum=1, condition=False)

    def measure(self, context: CellContext) -> dict[str, Any]:
        """Peak bytes over what was allocated before the call: inputs and parameters are the baseline.

        On a CPU the peak is computed from the allocator's events, on a GPU it is the allocator's high-water mark.

        Returns:
            `{"passes": {name: {"peak_bytes", "baseline_bytes"}}, "method", "largest": None or {"axis", "value",
            "limit_bytes", "tried": {value: fits}}}`.
        """
        label, attention, inputs = context.config["label"], context.attention(), context.inputs()
        check = context.correctness_check(inputs)
        check.check_before(label, attention, self.passes)
        baseline = sum(x.nbytes for x in inputs) + held_bytes(attention)
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
        del attention, inputs, check, call
        largest = None if self.largest is None else self.bisect(context, self.largest)
        return {"passes": passes, "method": METHODS[context.device.type], "largest": largest}

    def bisect(self, context: CellContext, axis: str) -> dict[str, Any]:
        """`largest_fitting` for the record, starting from the cell's own size, on random numbers."""
        tried: dict[int, bool] = {}

        def fits(value: int) -> bool:
            tried[value] = fits_in_memory(context.device, lambda: run_at(context, self.passes[-1], {axis: value}))
            context.progress(len(tried), len(tried) + 1)
            return tried[value]

        value = largest_fitting(fits, context.config[axis], self.largest_limit)
        by_text = {str(value): fit for value, fit in sorted(tried.items())}
        return {"axis": axis, "value": value, "limit_bytes": context.memory_limit, "tried": by_text}

    @classmethod
    def quantities(cls, measurements: Mapping[str, Any]) -> Iterator[Metric]:
        """For each pass `peak_memory` in bytes; `largest_batch_size` or `largest_seq_len` for the last pass."""
        for name, peak in measurements["passes"].items():
            tracked = f"peak_mib.{name}"
            yield Metric("peak_memory", peak["peak_bytes"], "bytes", measured_pass=name, name=tracked, shown=MIB)
        if largest := measurements.get("largest"):
            axis = largest["axis"]
            yield Metric(f"largest_{axis}", largest["value"], axis, measured_pass=name, name=f"largest.{axis}")

    @classmethod
    def headline(cls, quantities: Sequence[Metric]) -> str:
        """The peak of each pass, and the largest size that fits."""
        return ", ".join(
            f"{one.measured_pass} {one.text}" if one.metric == "peak_memory" else f"largest {one.unit} {one.value}"
            for one in quantities
        )


def run_at(context: CellContext, name: str, sizes: Mapping[str, int]) -> None:
    """Run a pass of the cell's mechanism on random numbers, with another `batch_size` or `seq_len`.

    They are drawn on the device in the cell's dtype: the host may not have room for three such tensors in float32.
    """
    shape = [{**context.config, **sizes}[key] for key in ("batch_size", "num_heads", "seq_len", "head_dim")]
    attention = context.attention(max_seq_len=shape[2])
    generator = torch.Generator(context.device).manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, device=context.device, dtype=context.dtype) for _ in range(3)
    )
    Pass(name, attention, (query, key, value)).run_unprepared()


def largest_fitting(fits: Callable[[int], bool], first: int, limit: int) -> int:
    """The largest size that fits, at most `limit`; exact up to 128, to 1/64 above that; 0 if none fits.

    Doubles from `first` on until a size does not fit, then bisects; tries each size once.
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
    """Whether a call has enough memory; frees what it allocated, and raises errors that are not about memory."""
    # The memory of a failed attempt is freed when this frame, and with it the exception's, is left.
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


def peak_bytes(device: torch.device, call: Callable[[], Any]) -> tuple[int, Any]:
    """The largest number of bytes that a call allocated at once, over those before the call, and its result."""
    if device.type == "cuda":
        # The first call allocates what libraries keep, such as cuBLAS's workspace in autograd's own thread.
        call()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before, result
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate((change for _, change in changes), initial=0)), result
