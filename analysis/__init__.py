"""Records -> one tidy DataFrame -> figures and tables. Needs neither torch nor a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_bench = importlib.util.find_spec("bench")
if _bench is not None and not _bench.submodule_search_locations:
    _reason = f"{_bench.origin}: hides the suite's package `bench`; rename it, or start in another folder"
    if sys.argv[:1] != ["-m"]:
        raise ImportError(_reason)
    print(f"error: {_reason}", file=sys.stderr)  # `python -m analysis` has no handler of errors yet
    sys.exit(2)


def load(results_dir: str | Path, *, wide: bool = False) -> pd.DataFrame:
    """Load a folder's records into a pandas frame: the newest finished record of each cell.

    For example `load("runs", wide=True).plot.scatter("seq_len", "latency forward (ms)")`.

    Args:
        results_dir: folder of the records.
        wide: True gives one row per mechanism and condition and one column per metric in a readable unit, such as
            `peak_memory forward (MiB)`. False gives one row per metric, in `value` and `unit`, with its interval, its
            samples (`raw`) and all conditions; `analysis.frame.COLUMNS` explains every column.

    Raises:
        MissingRecords: the folder has no records.
        OSError: the folder cannot be read.
    """
    from analysis import frame  # pandas takes a second

    return frame.widened(frame.load(results_dir)) if wide else frame.load(results_dir)


def figures(
    results_dir: str | Path, out_dir: str | Path | None = None, cell_ids: Collection[str] | None = None
) -> list[Path]:
    """Write every figure that the records support, each as PNG and SVG.

    Args:
        results_dir: folder of the records.
        out_dir: folder for the figures; None means `results_dir/figures`.
        cell_ids: use only the records of these cells.

    Returns:
        The files written; empty without records. A figure that cannot be drawn only gives a warning on stderr.

    Raises:
        ConfigError: the folder has files that the suite did not write.
        OSError: the records cannot be read.
    """
    from analysis.registry import FIGURES, claimed, draw  # matplotlib and seaborn take seconds

    results, out = Path(results_dir), Path(out_dir) if out_dir else None
    return draw(results, cell_ids, lambda: claimed(results, out, "figures", FIGURES, ("results_dir", "out_dir")))


def draw(results_dir: Path, folder: Path, cell_ids: Collection[str]) -> list[Path]:
    """Write the figures of a sweep's cells into its own folder of the results; otherwise like `figures`."""
    from analysis import registry

    return registry.draw(results_dir, cell_ids, lambda: folder)
