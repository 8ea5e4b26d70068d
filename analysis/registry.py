"""Every figure by name: adding one is a module with a function DataFrame -> Figure and an entry here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pandas as pd
from matplotlib.figure import Figure

from analysis import compare, memory, pareto, polysketchformer, skeinformer
from analysis.frame import MissingRecords


@dataclass(frozen=True)
class Entry:
    """One figure: how it is drawn, the benchmarks that it needs, and what it shows in one line."""

    draw: Callable[[pd.DataFrame], Figure]
    needs: tuple[str, ...]
    shows: str

    def __call__(self, frame: pd.DataFrame) -> Figure:
        """Draw it.

        Raises:
            MissingRecords: the frame does not hold what it needs.
        """
        recorded = set(frame["bench"])
        for bench in self.needs:
            if bench not in recorded:
                raise MissingRecords(f"needs records of bench={bench}")
        return self.draw(frame)


FIGURES: dict[str, Entry] = {
    "skeinformer_figure1": Entry(
        skeinformer.figure1, ("spectral_norm",), "spectral norm error over d (Skeinformer, Figure 1)"
    ),
    "skeinformer_figure1_relative": Entry(
        partial(skeinformer.figure1, metric="relative"),
        ("spectral_norm",),
        "the same, relative to the norm of the exact output",
    ),
    "polysketchformer_figure1": Entry(
        polysketchformer.figure1,
        ("latency",),
        "latency per token over context length (PolySketchFormer, Figure 1)",
    ),
    "memory": Entry(memory.figure, ("memory",), "peak memory over context length"),
    "pareto": Entry(pareto.figure, ("latency", "spectral_norm"), "latency per token against error"),
    "compare": Entry(compare.figure, ("compare",), "speed-up from interleaved rounds, with crossovers"),
}
