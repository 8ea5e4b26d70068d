"""Every figure and table by name: adding one is a function DataFrame -> Figure or DataFrame, and an entry here."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import pandas as pd

from analysis import trained
from analysis.batches import largest_batches
from analysis.frame import MissingRecords
from analysis.gate_cost import gate_cost
from analysis.peers import peers
from analysis.plots import (
    compare,
    crossover,
    decode,
    learning,
    memory,
    pareto,
    perplexity,
    polysketchformer,
    quality_cost,
    recall,
    roofline,
    skeinformer,
    sketch_error,
    thesis,
    train_step,
)
from analysis.plots.page import Picture
from bench.common.errors import one_line

Made = TypeVar("Made", Picture, pd.DataFrame)
Done = TypeVar("Done")


@dataclass(frozen=True)
class Entry(Generic[Made]):
    """One figure or table: how it is made, the benchmarks that it needs, and what it shows in one line.

    A figure that is higher than a page is made for each value of the first of the columns `by` on its own; where that
    is no help, of more of them.
    """

    make: Callable[[pd.DataFrame], Made]
    needs: tuple[str, ...]
    shows: str
    by: tuple[str, ...] = ()

    def __call__(self, frame: pd.DataFrame) -> Made:
        """Make it.

        Raises:
            MissingRecords: the frame does not hold what it needs.
        """
        recorded = set(frame["bench"])
        for bench in self.needs:
            if bench not in recorded:
                raise MissingRecords(f"needs records of bench={bench}")
        return self.make(frame)

    def parts(self, frame: pd.DataFrame, columns: int) -> Iterator[tuple[str, Made]]:
        """It for each value of so many of the columns `by`, with a name for that: `forward`, `forward_not_causal`."""
        first, own = [*self.by[:columns]], frame["bench"].isin(self.needs)
        for values, rows in frame[own].groupby(first, dropna=False):
            words = (_word(column, value) for column, value in zip(first, values, strict=True))
            with contextlib.suppress(MissingRecords):
                yield "_".join(words), self(pd.concat([rows, frame[~own]]))


def _word(column: str, value: object) -> str:
    return f"{'' if value else 'not_'}{column}" if isinstance(value, bool | np.bool_) else str(value)


def made(
    frame: pd.DataFrame, entries: Mapping[str, Entry[Made]], finish: Callable[[str, Made], Done]
) -> Iterator[tuple[str, Done | MissingRecords]]:
    """The names of the entries with what `finish` makes of a name and its figure or table, or with what is missing.

    One that cannot be made, whatever is raised, is a warning on stderr and not among them.
    """
    for name, entry in entries.items():
        try:
            yield name, finish(name, entry(frame))
        except MissingRecords as missing:
            yield name, missing
        except Exception as error:  # drawing libraries and disks share no error class
            print(f"warning: {name}: cannot be made, {type(error).__name__}: {one_line(error)}", file=sys.stderr)


FIGURES: dict[str, Entry[Picture]] = {
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
    "sketch_error": Entry(
        sketch_error.figure,
        ("sketch_error",),
        "error of sketched weights over r (PolySketchFormer, Theorem 1.1)",
        by=("inputs",),
    ),
    "memory": Entry(memory.figure, ("memory",), "peak memory over context length"),
    "decode": Entry(decode.figure, ("decode",), "time per token and size of the state over context length"),
    "learning": Entry(learning.figure, ("train",), "loss and right answers over the steps of training", by=("inputs",)),
    "copying_induction": Entry(
        learning.sudden,
        ("train",),
        "copying and induction over the steps of training (PolySketchFormer, Figure 5)",
        by=("inputs",),
    ),
    "recall": Entry(recall.figure, ("train",), "associative recall over the number of pairs, by length"),
    "thesis": Entry(thesis.figure, ("train",), "loss of sequence reversal (Reizin's thesis, Figures 5.1 to 5.8)"),
    "perplexity": Entry(
        perplexity.figure, ("train",), "test perplexity over context length (PolySketchFormer, Figure 2)"
    ),
    "perplexity_by_position": Entry(
        perplexity.by_position, ("train",), "test perplexity over the position in the context"
    ),
    "steps_per_second": Entry(
        train_step.figure, (), "training steps per second over context length (PolySketchFormer, Figure 4)"
    ),
    "quality_cost": Entry(
        quality_cost.figure, ("train",), "test loss over the measured time of a step of training", by=("inputs",)
    ),
    "pareto": Entry(pareto.figure, ("latency", "spectral_norm"), "latency per token against error"),
    "roofline": Entry(roofline.figure, ("roofline",), "FLOP/s over FLOP/byte under the roof of the device"),
    "compare": Entry(compare.figure, ("compare",), "speed-up from interleaved rounds, with crossovers"),
    "crossover": Entry(
        crossover.figure,
        ("compare",),
        "speed over the best exact softmax over context length, with crossovers",
        by=("pass", "causal"),
    ),
}

TABLES: dict[str, Entry[pd.DataFrame]] = {
    "skeinformer_table3": Entry(
        skeinformer.table3, ("flops",), "multiplications beside the paper's leading terms (Skeinformer, Table 3)"
    ),
    "crossover_speeds": Entry(
        crossover.table, ("compare",), "speed over flash and over the best exact softmax, and from which length on"
    ),
    "trained": Entry(trained.trained, ("train",), "loss and right answers of trained models, over their seeds"),
    "polysketchformer_tables2_3": Entry(
        trained.perplexities, ("train",), "test perplexity beside the papers' (PolySketchFormer, Tables 2 and 3)"
    ),
    "polysketchformer_table4": Entry(
        train_step.table, (), "training steps per second beside the papers' (PolySketchFormer, Table 4)"
    ),
    "polysketchformer_table5": Entry(
        trained.solved, ("train",), "copying and induction beside the paper's (PolySketchFormer, Table 5)"
    ),
    "skeinformer_table2": Entry(
        largest_batches, ("largest_batch",), "largest batches beside the paper's (Skeinformer, Table 2)"
    ),
    "thesis_losses": Entry(trained.thesis, ("train",), "loss of sequence reversal beside the thesis'"),
    "peers": Entry(peers, ("compare",), "the zoo's mechanisms beside the packages that have them"),
    "gate_cost": Entry(gate_cost, (), "what the correctness gate takes of the cells' time"),
    "roofline_shares": Entry(roofline.table, ("roofline",), "each mechanism's share of the ceiling of the device"),
    "sketch_error_exponents": Entry(
        sketch_error.exponents, ("sketch_error",), "how the error of sketched weights falls with r"
    ),
}
