"""The page of a figure: the width of a column, panels that fit into it, text that can be read there, the caption."""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bench.common.errors import bounded
from bench.published.papers import NAMES

WIDTHS = {"single": 3.25, "double": 6.75}
"""Inches of one column and of both, as ICML has them; others are within a tenth (ACL 3.03, AAAI 3.3, IEEE 3.5)."""
HIGHEST = 8.8
"""Inches of a page of text, as ICML has it (9), with a line between."""
SMALLEST = 6.5
"""Points of the smallest text: above 6 in the narrowest of these columns."""
PANEL = (3.4, 2.7)  # inches, without legend and caption, where no width is asked for
LEAST = 1.5  # inches of a panel in a column
LOW = 1.75  # inches of its height
LEGEND_LINES, LEGEND_LINE_INCHES = 3, 0.17
CAPTION_POINTS = 7
LONGEST_NAME = 80  # characters
LONGEST_LABEL = 2.4  # inches of a line in a legend
SQUARE: dict[str, Any] = {"solid_capstyle": "projecting"}
"""Of lines that stand for no curve."""
_LETTER = 0.6  # of its size, a letter's width, or a little less

_RC = (
    sns.axes_style("ticks", {"axes.grid": True, "grid.color": ".9", "grid.linewidth": 0.6})
    | sns.plotting_context("paper", font_scale=0.85)
    | {
        "font.family": ["DejaVu Sans"],
        "axes.linewidth": 0.8,
        "axes.titlesize": 8.5,
        "lines.linewidth": 1.3,
        "xtick.major.width": 0.8,
        "ytick.major.width": 0.8,
        # Venues refuse Type 3 fonts.
        "pdf.fonttype": 42,
        "svg.hashsalt": "attention-zoo",
        # A $ in the name of a mechanism is a dollar.
        "text.parse_math": False,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)
_IN_A_COLUMN = {
    "axes.labelsize": 7,
    "axes.titlesize": 7.5,
    "legend.fontsize": 7,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "lines.linewidth": 1.1,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.major.pad": 2.5,
    "ytick.major.pad": 2.5,
    "axes.labelpad": 2.5,
}


class Page(NamedTuple):
    """The page that figures are drawn for, see `page`."""

    width: float | None = None
    captions: bool = True
    papers_names: bool = False


_PAGE = ContextVar("page", default=Page())  # noqa: B039 - it cannot be changed


@contextmanager
def page(width: float | str | None = None, captions: bool = True, names: str = "code") -> Iterator[None]:
    """Figures that are made within are made for this page.

    Args:
        width: `single` or `double` (a column, or both), or inches; None is as wide as the panels are.
        captions: whether the caption stands under the picture; `files.save` writes it beside the picture if not.
        names: `code`, or `papers`: a mechanism that a paper's table names is called what that calls it.

    Raises:
        ValueError: a width or names that there are not.
    """
    if names not in ("code", "papers"):
        raise ValueError(f"names={names!r}: must be code or papers")
    token = _PAGE.set(Page(None if width is None else inches(width), captions, names == "papers"))
    try:
        yield
    finally:
        _PAGE.reset(token)


def inches(width: float | str) -> float:
    """The width of a column by its name in `WIDTHS`, or as it is; raises `ValueError` for neither."""
    try:
        number = WIDTHS[width] if isinstance(width, str) and width in WIDTHS else float(width)
    except ValueError:
        number = math.nan
    if not 2 <= number <= 20:
        raise ValueError(f"width={width!r}: must be {', '.join(WIDTHS)} or inches from 2 to 20")
    return number


class Picture(Figure):
    """A figure that knows its caption and how wide its panels are, and is always saved in the style of the page."""

    caption = ""
    captioned = True
    panel_width = PANEL[0]

    @property
    def fits(self) -> bool:
        """Whether it is no higher than a page; a screen has no end."""
        return not in_a_column() or self.get_figheight() <= HIGHEST

    def savefig(self, *arguments: Any, **keywords: Any) -> None:
        """As of `Figure`."""
        with styled():
            super().savefig(*arguments, **keywords)


@contextmanager
def styled() -> Iterator[None]:
    """Figures are drawn with the settings of matplotlib that this page has; also a decorator, as `@styled()`."""
    with mpl.rc_context(_RC | _IN_A_COLUMN if in_a_column() else _RC):
        yield


def in_a_column() -> bool:
    """Whether the page has a width."""
    return _PAGE.get().width is not None


def shown(name: str) -> str:
    """A name as a panel or a legend has room for it: on a page with the papers' names, that of its variant."""
    if _PAGE.get().papers_names:
        variant, space, settings = name.partition(" ")
        name = NAMES.get(variant, variant) + space + settings
    return bounded(name, LONGEST_NAME)


def beside(count: int, least: float = LEAST) -> int:
    """How many of so many panels stand beside each other, where each has at least so many inches."""
    width = _PAGE.get().width
    return count if width is None else max(1, min(count, int(width / least)))


def height(asked: float, columns: int) -> float:
    """Inches of a row of so many panels: as asked, but on a page with a width neither flat nor higher than wide."""
    return min(asked, max(LOW, 0.68 * (_PAGE.get().width or math.inf) / columns))


def panels(
    rows: int,
    columns: int,
    *,
    share_y: bool = True,
    heights: Sequence[float] | None = None,
    width: float = PANEL[0],
    least: float = LEAST,
) -> tuple[Picture, np.ndarray]:
    """A figure of `rows` x `columns` panels (an array of that shape) with room for a legend and a caption.

    Where a row does not fit into the page's column, it goes on below itself. `share_y`: the panels of a row have one
    vertical axis. In inches: `heights` of each row, the `width` of a column on a page without a width, and the `least`
    that a panel needs on a page with one.
    """
    lines = math.ceil(columns / beside(columns, least))
    fit = math.ceil(columns / lines)
    whole = _PAGE.get().width or max(width * columns, 4.6)
    high = [inches for inches in heights or [height(PANEL[1], fit)] * rows for _ in range(lines)]
    figure = Picture(figsize=(whole, sum(high)), layout="constrained")
    shared: Any = "row" if share_y and lines == 1 else False
    axes = figure.subplots(rows * lines, fit, squeeze=False, sharey=shared, height_ratios=high)
    figure.panel_width = whole / fit
    by_row = axes.reshape(rows, lines * fit)
    for unused in by_row[:, columns:].flat:
        unused.remove()
    by_row = by_row[:, :columns]
    for row in by_row if share_y and lines > 1 else ():
        for place, panel in enumerate(row[1:], 1):
            panel.sharey(row[0])
            panel.tick_params(labelleft=place % fit == 0)
    return figure, by_row


def grid(count: int, columns: int = 3) -> tuple[Picture, list[Axes]]:
    """A figure of `count` panels, so many beside each other, each with axes of its own."""
    columns = beside(min(count, columns))
    figure, axes = panels(math.ceil(count / columns), columns, share_y=False)
    for unused in axes.flat[count:]:
        unused.remove()
    return figure, list(axes.flat[:count])


def title(axes: Axes, text: str, points_above: float = 6) -> None:
    """The title of one panel, in lines where it is wider than the panel."""
    size, width = float(mpl.rcParams["axes.titlesize"]), picture(axes).panel_width
    text = bounded(text, LONGEST_NAME)
    is_wide = not in_a_column() and _LETTER * size * len(text) > 72 * width
    axes.set_title(wrapped(text, width, size) if is_wide else fitted(text, 0.8 * width, size), pad=points_above)


def titles(axes: Axes, text: str, small: str) -> None:
    """The title of one panel, and smaller words below it."""
    words = fitted(small, 0.65 * picture(axes).panel_width, SMALLEST)
    axes.text(0.5, 1.02, words, transform=axes.transAxes, ha="center", va="bottom", fontsize=SMALLEST)
    title(axes, text, 5 + 10 * (words.count("\n") + 1))


def finish(figure: Picture, properties: dict[str, dict[str, Any]], *sentences: str) -> Picture:
    """The figure with a legend above the panels, where there are properties for one, and with its caption.

    The caption is the sentences that are not empty: under the picture and wrapped to its width, or beside it.
    """
    if properties:
        _legend(figure, properties)
    figure.caption, figure.captioned = " ".join(filter(None, sentences)), _PAGE.get().captions
    # Names of axes no wider than the panels, and those of vertical axes again where a row went on below itself.
    for axes in figure.axes if in_a_column() else ():
        axes.set_xlabel(fitted(axes.get_xlabel(), 0.75 * figure.panel_width, 7))
        labels = [label for other in axes.get_shared_y_axes().get_siblings(axes) if (label := other.get_ylabel())]
        if labels and not axes.get_ylabel() and axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            axes.set_ylabel(labels[0])
    if figure.captioned:
        _caption(figure)
    return figure


def handles(properties: dict[str, dict[str, Any]], **line: Any) -> list[Line2D]:
    """What a legend shows of each series, as a `line` where the properties do not say how."""
    return [Line2D([], [], **{"label": shown(name), **line, **own}) for name, own in properties.items()]


def _legend(figure: Picture, properties: dict[str, dict[str, Any]]) -> None:
    """One legend for the whole figure, which grows by what the legend has beyond a few lines."""
    width, height = figure.get_size_inches()
    letter, line, free = (0.055, 0.14, 0) if in_a_column() else (0.058, LEGEND_LINE_INCHES, LEGEND_LINES)
    lines = handles(properties, linewidth=1.5, **SQUARE)
    for handle in lines:
        handle.set_label(fitted(str(handle.get_label()), LONGEST_LABEL, 7))
    texts = [str(handle.get_label()).split("\n") for handle in lines]
    longest = max(len(text) for parts in texts for text in parts)
    columns = max(1, min(len(lines), int(width / (0.6 + letter * longest))))
    more = math.ceil(sum(map(len, texts)) / columns) - free
    figure.set_size_inches(width, height + max(0, more) * line)
    spacing = {"handlelength": 2.6, "columnspacing": 1.2, "labelspacing": 0.3} if in_a_column() else {"handlelength": 3}
    figure.legend(handles=lines, loc="outside upper center", ncols=columns, frameon=False, **spacing)


def _caption(figure: Picture) -> None:
    """Under the panels, for which the figure grows."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(figure.caption, int(width * 72 / (CAPTION_POINTS * 0.56)))
    needed = (len(lines) + 1) * CAPTION_POINTS * 1.35 / 72
    figure.set_size_inches(width, height + needed)
    bottom = needed / (height + needed)
    figure.get_layout_engine().set(rect=(0, bottom, 1, 1 - bottom))  # type: ignore[union-attr, call-arg]
    look: dict[str, Any] = {"fontsize": CAPTION_POINTS, "color": "black", "va": "top", "linespacing": 1.3}
    figure.text(0.08 / width, bottom * 0.9, "\n".join(lines), gid="caption", **look)


def picture(axes: Axes) -> Picture:
    """The figure that a panel is part of."""
    assert isinstance(axes.figure, Picture)
    return axes.figure


def fitted(text: str, width: float, points: float) -> str:
    """The text, on a page with a width in lines of so many inches."""
    return wrapped(text, width, points) if in_a_column() else text


def wrapped(text: str, width: float, points: float) -> str:
    """The text in lines of so many inches."""
    letters = max(8, int(width * 72 / (_LETTER * points)))
    return _Names(width=letters, break_on_hyphens=False).fill(text.replace(" = ", "\xa0=\xa0"))


class _Names(textwrap.TextWrapper):
    """Breaks lines after the underscores of a name, too."""

    wordsep_simple_re = re.compile(r"([ \n]+)|(?<=_)")
