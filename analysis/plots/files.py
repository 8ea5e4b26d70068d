"""Write figures to files: pictures, captions, and the numbers that they show."""

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from PIL import Image

from analysis.formats import write_files
from analysis.plots.layout import Picture

RESOLUTION = 130  # dots per inch of the PNG
COLOURS = 256
FEW = 3  # points of a seed's curve that are written as numbers
_NOTHING_OF_TODAY: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
FORMATS = (*_NOTHING_OF_TODAY, "csv")
DEFAULT = ("png", "svg")

COLUMNS = ("panel", "series", "line", "x", "x_low", "x_high", "y", "y_low", "y_high", "status", "x_axis", "y_axis")


def save(figure: Picture, out_dir: str | Path, name: str, formats: Sequence[str] = DEFAULT) -> list[Path]:
    """Write the figure as `name` in each format; `csv` has its numbers. The same figure gives the same bytes.

    A caption that is not part of the picture is written to `name`.txt.

    Returns:
        The files written.

    Raises:
        OSError: a file cannot be written.
    """
    contents = {suffix: _content(figure, suffix) for suffix in formats}
    if not figure.captioned:
        contents["txt"] = f"{figure.caption}\n".encode()
    return write_files(Path(out_dir), {f"{name}.{suffix}": content for suffix, content in contents.items()})


def numbers(figure: Picture) -> pd.DataFrame:
    """The numbers of all panels: one row for each point of each series, in the units of the axes.

    Returns:
        `COLUMNS`: the panel's title, the series, its `line` (`seed` or `median` if it has several), the point with the
        ends of its bars or the status of a failed cell, and the labels of the axes. A horizontal line has no x, a
        vertical one no y. Curves of single seeds (over `FEW` points) are left out: they are in the records.
    """
    rows = [
        {
            "panel": axes.get_title() or str(axes.get_label()),
            "x_axis": axes.get_xlabel(),
            "y_axis": _shared_label(axes),
            **row,
        }
        for axes in figure.axes
        if axes.axison
        for rows in (_bars, _lines, _levels, _gaps)
        for row in rows(axes)
    ]
    points = pd.DataFrame(rows, columns=list(COLUMNS))
    # A wrapped name goes on after its underscore.
    unwrapped = {r"(?<=_)\n": "", r"\s": " "}
    return points.replace(dict.fromkeys(("panel", "series", "x_axis", "y_axis"), unwrapped), regex=True)


def png(figure: Picture, resolution: int = RESOLUTION) -> bytes:
    """The bytes of a PNG at `resolution` dots per inch; the same figure gives the same bytes."""
    buffer, smaller = io.BytesIO(_printed(figure, "png", resolution)), io.BytesIO()
    # A palette of 256 colours makes the file four times smaller without a visible change.
    picture = Image.open(buffer).convert("RGB")
    coloured = picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    coloured.save(smaller, "PNG", optimize=True, dpi=(resolution, resolution))
    return smaller.getvalue()


def _content(figure: Picture, suffix: str) -> bytes:
    if suffix == "csv":
        return numbers(figure).to_csv(index=False, float_format="%.7g").encode()
    return png(figure) if suffix == "png" else _printed(figure, suffix, RESOLUTION)


def _printed(figure: Picture, suffix: str, resolution: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=suffix, dpi=resolution, metadata=_NOTHING_OF_TODAY[suffix])
    return buffer.getvalue()


def _bars(axes: Axes) -> Iterator[dict[str, Any]]:
    """Points with error bars."""
    for container in axes.containers:
        if not isinstance(container, ErrorbarContainer):
            continue
        points, _, bars = container
        names = [name for name, drawn in (("x", container.has_xerr), ("y", container.has_yerr)) if drawn]
        ends = {name: [path.vertices[:, "xy".index(name)] for path in bar.get_paths()]
                for name, bar in zip(names, bars, strict=True)}  # fmt: skip
        for i, (x, y) in enumerate(np.asarray(points.get_xydata())):
            both = {f"{name}_{end}": ends[name][i][side] for name in names for side, end in enumerate(("low", "high"))}
            yield {"series": container.get_label(), "x": x, "y": y, **both}


def _lines(axes: Axes) -> Iterator[dict[str, Any]]:
    """Points without error bars."""
    for line in axes.lines:
        points, gid = np.asarray(line.get_xydata()), line.get_gid()
        is_long = gid == "seed" and len(points) > FEW
        if not str(line.get_label()).startswith("_") and gid not in ("gap", "level", "upright") and not is_long:
            for x, y in points:
                yield {"series": line.get_label(), "line": gid, "x": x, "y": y}


def _levels(axes: Axes) -> Iterator[dict[str, Any]]:
    """Horizontal and vertical lines, each with the ends of its band."""
    for gid, axis in (("level", "y"), ("upright", "x")):
        lines = [line for line in axes.lines if line.get_gid() == gid]
        bands = [patch for patch in axes.patches if patch.get_gid() == gid]
        for line, band in zip(lines, bands, strict=True):
            at = np.asarray(line.get_xydata())[0, "xy".index(axis)]
            low, high = getattr(band.get_bbox(), f"interval{axis}")  # type: ignore[attr-defined]
            yield {"series": line.get_label(), axis: at, f"{axis}_low": low, f"{axis}_high": high}


def _gaps(axes: Axes) -> Iterator[dict[str, Any]]:
    """Marks of failed cells, with their status."""
    lines = [line for line in axes.lines if line.get_gid() == "gap"]
    words = [text for text in axes.texts if text.get_gid() == "gap"]
    # A mark without a line (a word only) has no x.
    for line, word in zip(lines, words, strict=False):
        for x, _ in np.asarray(line.get_xydata()):
            yield {"series": line.get_label(), "x": x, "status": word.get_text()}


def _shared_label(axes: Axes) -> str:
    labels = (other.get_ylabel() for other in axes.get_shared_y_axes().get_siblings(axes))
    return axes.get_ylabel() or next((label for label in labels if label), "")
