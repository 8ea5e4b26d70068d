"""All figures and tables by name. To add one, write a function DataFrame -> Figure or DataFrame and add a line here.

`python -m analysis list` prints the first line of the function's docstring.
"""

import contextlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd

from analysis import answer, attribution, controls, equal_quality
from analysis.frame import load
from analysis.plots import attribution as branches
from analysis.plots import (
    by_distance,
    capacity,
    capacity_and_recall,
    compare,
    crossover,
    extrapolation,
    files,
    learning,
    lra,
    pareto,
    perplexity,
    quality_cost,
    recall_state,
    roofline,
    scaling,
    skeinformer,
    sketch_error,
    thesis,
)
from analysis.plots import controls as differences
from analysis.plots import equal_quality as faster
from analysis.plots.layout import Picture
from analysis.selection import MissingRecords
from analysis.tables import capacity as capacities
from analysis.tables import costs, peers, positions, settings, trained
from analysis.tables import lra as arena
from bench.common.errors import one_line
from bench.records import own

Made = TypeVar("Made", Picture, pd.DataFrame)
Done = TypeVar("Done")

FIGURES: dict[str, Callable[[pd.DataFrame], Picture]] = {
    "skeinformer_figure1": skeinformer.figure1,
    "skeinformer_figure1_relative": skeinformer.relative,
    "skeinformer_figure2": lra.figure2,
    "skeinformer_figure3": lra.figure3,
    "polysketchformer_figure1": scaling.latency,
    "sketch_error": sketch_error.figure,
    "memory": scaling.memory,
    "decode": scaling.decode,
    "learning": learning.figure,
    "copying_induction": learning.sudden,
    "recall": learning.recall,
    "recall_state": recall_state.figure,
    "thesis": thesis.figure,
    "perplexity": perplexity.figure,
    "perplexity_by_position": perplexity.by_position,
    "steps_per_second": scaling.steps_per_second,
    "quality_cost": quality_cost.figure,
    "controls": differences.figure,
    "attribution": branches.figure,
    "loss_by_distance": by_distance.figure,
    "extrapolation": extrapolation.figure,
    "equal_quality": faster.figure,
    "pareto": pareto.figure,
    "roofline": roofline.figure,
    "compare": compare.figure,
    "crossover": crossover.figure,
    "capacity": capacity.figure,
    "capacity_and_recall": capacity_and_recall.figure,
}
_BY_TASK = ("sketch_error", "learning", "copying_induction", "quality_cost", "recall_state", "controls")
PARTS = {**dict.fromkeys(_BY_TASK, ("inputs",)), "crossover": ("pass", "causal")}
"""Figures that are split if they are higher than a page: by the values of the first column, then of the next."""
APART = ("learning", "controls")
"""Figures that are always split by the first column of `PARTS`, because they have dozens of panels or rows."""
TABLES: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "answer": answer.table,
    "skeinformer_table3": costs.multiplications,
    "crossover_speeds": crossover.table,
    "trained": trained.trained,
    "polysketchformer_tables2_3": trained.perplexities,
    "polysketchformer_table4": scaling.steps_table,
    "polysketchformer_table5": trained.solved,
    "skeinformer_table1": arena.accuracies,
    "skeinformer_table2": costs.largest_batches,
    "lra_protocols": arena.protocols,
    "thesis_losses": trained.thesis,
    "paired": controls.control_comparisons,
    "paired_by_position": positions.table,
    "settings": settings.table,
    "attribution": attribution.table,
    "equal_quality": equal_quality.table,
    "peers": peers.peers,
    "gate_cost": costs.gate_cost,
    "roofline_shares": roofline.table,
    "sketch_error_exponents": sketch_error.exponents,
    "capacities": capacities.table,
    "capacity_and_recall": capacities.capacity_and_recall,
}


def explanation(name: str) -> str:
    """What stands above a table: its function's documentation, one line for each paragraph."""
    paragraphs = inspect.cleandoc(TABLES[name].__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def made(
    frame: pd.DataFrame, entries: Mapping[str, Callable[[pd.DataFrame], Made]], finish: Callable[[str, Made], Done]
) -> Iterator[tuple[str, Done | MissingRecords]]:
    """Make each figure or table; yield its name with the result of `finish(name, made)`, or with `MissingRecords`.

    Any other exception is a warning on stderr, and the entry is skipped.
    """
    for name, make in entries.items():
        try:
            yield name, finish(name, make(frame))
        except MissingRecords as missing:
            yield name, missing
        except Exception as error:  # drawing libraries and disks share no error class
            print(f"warning: {name}: cannot be made, {type(error).__name__}: {one_line(error)}", file=sys.stderr)


def parts(name: str, frame: pd.DataFrame, columns: int) -> Iterator[tuple[str, Picture]]:
    """Split a figure by the first `columns` of its `PARTS`; names are such as `crossover_forward_not_causal`."""
    by = [*PARTS[name][:columns]]
    for values, rows in frame.groupby(by, dropna=False):
        words = [
            f"{'' if value else 'not_'}{column}" if isinstance(value, bool | np.bool_) else str(value)
            for column, value in zip(by, values, strict=True)
        ]
        with contextlib.suppress(MissingRecords):
            yield "_".join([name, *words]), FIGURES[name](rows)


def pages(name: str, frame: pd.DataFrame) -> dict[str, Picture]:
    """The figure by its name; if it is in `APART` and there are several tasks, one figure for each."""
    some = dict(parts(name, frame, 1)) if name in APART else {}
    return some if len(some) > 1 else {name: FIGURES[name](frame)}


PAGES: dict[str, Callable[[pd.DataFrame], dict[str, Picture]]] = {name: partial(pages, name) for name in FIGURES}


def claimed(results: Path, out: Path | None, kind: str, entries: Collection[str], settings: tuple[str, str]) -> Path:
    """The folder for figures or tables (`out`, else `results`/`kind`), created and marked as the suite's.

    Raises:
        ConfigError: it has files that the suite did not write; the message begins with the setting that named it.
    """
    if out is None:
        own.claim(results, own.RESULTS, settings[0])
    folder = out or results / kind
    own.claim(folder, own.drawn(entries), settings[1])
    return folder


def draw(results_dir: Path, cell_ids: Collection[str] | None, folder: Callable[[], Path]) -> list[Path]:
    """Write all figures of these cells into `folder()`, which is called only if there are records."""
    try:
        frame = load(results_dir, cell_ids)
    except MissingRecords:
        return []
    out = folder()

    def save(_: str, drawn: dict[str, Picture]) -> list[Path]:
        return [path for name, one in drawn.items() for path in files.save(one, out, name)]

    drawn = made(frame, PAGES, save)
    return [path for _, paths in drawn if isinstance(paths, list) for path in paths]
