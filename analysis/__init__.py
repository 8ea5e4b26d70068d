"""Records -> one tidy DataFrame -> figures and tables. Needs neither torch nor a GPU."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Collection
from pathlib import Path

_bench = importlib.util.find_spec("bench")
if _bench is not None and not _bench.submodule_search_locations:
    _reason = f"{_bench.origin}: hides the suite's package `bench`; rename it, or start in another folder"
    if sys.argv[:1] != ["-m"]:
        raise ImportError(_reason)
    print(f"error: {_reason}", file=sys.stderr)  # `python -m analysis` has no handler of errors yet
    sys.exit(2)


def figures(
    results_dir: str | Path, out_dir: str | Path | None = None, cell_ids: Collection[str] | None = None
) -> list[Path]:
    """Write every figure that the records support, each as PNG and SVG.

    Args:
        results_dir: folder of the records.
        out_dir: where the figures go; None is `results_dir/figures`.
        cell_ids: draw from these cells only.

    Returns:
        The files written; none where there are no records. A figure that cannot be drawn is a warning on stderr.

    Raises:
        ConfigError: the folder is somebody else's.
        OSError: the records cannot be read.
    """
    from analysis.registry import FIGURES
    from bench.records import own

    results, out = Path(results_dir), Path(out_dir or Path(results_dir) / "figures")

    def claim() -> None:
        if out_dir is None:
            own.claim(results, own.RESULTS, "results_dir")
        own.claim(out, own.drawn(FIGURES), "out_dir")

    return draw(results, out, cell_ids, claim)


def draw(
    results_dir: Path, out: Path, cell_ids: Collection[str] | None, claim: Callable[[], None] = lambda: None
) -> list[Path]:
    """As `figures`; `claim` is called before something is written, and raises where that must not be."""
    # Drawing needs matplotlib and seaborn.
    from analysis.frame import load
    from analysis.plots.files import save
    from analysis.registry import FIGURES, made
    from analysis.selection import MissingRecords

    try:
        frame = load(results_dir, cell_ids)
    except MissingRecords:
        return []
    claim()
    drawn = made(frame, FIGURES, lambda name, figure: save(figure, out, name))
    return [path for _, paths in drawn if isinstance(paths, list) for path in paths]
