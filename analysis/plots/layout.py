"""Layout of figures: column widths of papers, panels that fit, readable text sizes, legends and captions."""

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
"""Inches of one column and of both in ICML's style; others are within a tenth (ACL 3.03, AAAI 3.3, IEEE 3.5)."""
HIGHEST = 8.8
"""Highest figure in inches: the text of an ICML page (9) without one line."""
SMALLEST = 6.5
"""Smallest font size in points: still above 6 if scaled to the narrowest of these columns."""
PANEL = (3.4, 2.7)  # width and height of a panel in inches, without legend and caption, if no width is set
LEAST = 1.5  # least width of a panel in a column, in inches
LOW = 1.75  # its least height in inches
LEGEND_LINES, LEGEND_LINE_INCHES = 3, 0.17
CAPTION_POINTS = 7
LONGEST_NAME = 80  # characters
LONGEST_LABEL = 2.4  # longest line of a legend's label, in inches
SQUARE: dict[str, Any] = {"solid_capstyle": "projecting"}
"""Style of lines that are not curves, such as the line at 0."""
_LETTER = 0.6  # about the mean width of a letter, relative to the font size

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
        # TrueType: many venues refuse Type 3 fonts.
        "pdf.fonttype": 42,
        "svg.hashsalt": "attention-zoo",
        # A $ in the name of a mechanism must not start a formula.
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
    """The page that figures are drawn for; see `page`."""

    width: float | None = None
    captions: bool = True
    papers_names: bool = False


_PAGE = ContextVar("page", default=Page())  # noqa: B039 - it cannot be changed


@contextmanager
def page(width: float | str | None = None, captions: bool = True, names: str = "code") -> Iterator[None]:
    """Context manager: figures made inside are laid out for this page.

    Args:
        width: `single` or `double` (one column or both), or inches; None: as wide as the panels need.
        captions: True draws the caption below the panels; False lets `files.save` write it to a text file.
        names: names of mechanisms: `code`, or `papers` for the names in the papers' tables.

    Raises:
        ValueError: an invalid width or kind of names.
    """
    if names not in ("code", "papers"):
        raise ValueError(f"names={names!r}: must be code or papers")
    token = _PAGE.set(Page(None if width is None else inches(width), captions, names == "papers"))
    try:
        yield
    finally:
        _PAGE.reset(token)


def inches(width: float | str) -> float:
    """A width in inches, from a name in `WIDTHS` or a number; raises `ValueError` for anything else."""
    try:
        number = WIDTHS[width] if isinstance(width, str) and width in WIDTHS else float(width)
    except ValueError:
        number = math.nan
    if not 2 <= number <= 20:
        raise ValueError(f"width={width!r}: must be {', '.join(WIDTHS)} or inches from 2 to 20")
    return number


class Picture(Figure):
    """A matplotlib figure with its caption and the width of its panels, always saved in the style of the page."""

    caption = ""
    captioned = True
    panel_width = PANEL[0]

    @property
    def fits(self) -> bool:
        """Whether the figure is no higher than a page; always True if the page has no width (on a screen)."""
        return not in_a_column() or self.get_figheight() <= HIGHEST

    def savefig(self, *arguments: Any, **keywords: Any) -> None:
        """Like `Figure.savefig`, in the style of the page."""
        with styled():
            super().savefig(*arguments, **keywords)


@contextmanager
def styled() -> Iterator[None]:
    """Context manager and decorator (`@styled()`): draw with the matplotlib settings of the page."""
    with mpl.rc_context(_RC | _IN_A_COLUMN if in_a_column() else _RC):
        yield


def in_a_column() -> bool:
    """Whether the page has a width, so that figures are laid out for a paper's column."""
    return _PAGE.get().width is not None


def shown(name: str) -> str:
    """The name to display, shortened if it is very long; with `names="papers"`, the papers' name of the variant."""
    if _PAGE.get().papers_names:
        variant, space, settings = name.partition(" ")
        name = NAMES.get(variant, variant) + space + settings
    return bounded(name, LONGEST_NAME)


def beside(count: int, least: float = LEAST) -> int:
    """How many of `count` panels fit beside each other, if each is at least `least` inches wide."""
    width = _PAGE.get().width
    return count if width is None else max(1, min(count, int(width / least)))


def height(asked: float, columns: int) -> float:
    """Height in inches of a row of `columns` panels: as asked, but limited by the panels' width if the page has one."""
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

    A row that is too wide for the page is wrapped into several lines. `share_y`: the panels of a row share their
    vertical axis. In inches: `heights` of the rows, `width` of a panel on a page without a width, and `least` width of
    a panel on a page with one.
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


def grid(count: int, columns: int = 3, **look: Any) -> tuple[Picture, list[Axes]]:
    """`count` panels, at most `columns` beside each other, each with its own axes; `look` is as in `panels`."""
    columns = beside(min(count, columns), look.get("least", LEAST))
    figure, axes = panels(math.ceil(count / columns), columns, **{"share_y": False, **look})
    for unused in axes.flat[count:]:
        unused.remove()
    return figure, list(axes.flat[:count])


def title(axes: Axes, text: str, points_above: float = 6) -> None:
    """Set the title of one panel, wrapped if it is wider than the panel."""
    # Narrower than the panel, whose axes are right of its middle.
    size, width = float(mpl.rcParams["axes.titlesize"]), 0.9 * picture(axes).panel_width
    text = bounded(text, LONGEST_NAME)
    is_wide = not in_a_column() and _LETTER * size * len(text) > 72 * width
    axes.set_title(wrapped(text, width, size) if is_wide else fitted(text, 0.9 * width, size), pad=points_above)


def titles(axes: Axes, text: str, small: str) -> None:
    """Set the title of one panel, and a smaller subtitle, wrapped if it is wide."""
    width = 0.65 * picture(axes).panel_width  # beside the names of rows
    words = wrapped(small, width, SMALLEST) if _LETTER * SMALLEST * len(small) > 72 * width else small
    axes.text(0.5, 1.02, words, transform=axes.transAxes, ha="center", va="bottom", fontsize=SMALLEST)
    title(axes, text, 5 + 10 * (words.count("\n") + 1))


def finish(figure: Picture, properties: dict[str, dict[str, Any]], *sentences: str) -> Picture:
    """Add a legend above the panels (for `properties`, if any) and the caption, and return the figure.

    The caption joins the sentences that are not empty. It is wrapped below the panels, unless the page has none.
    """
    if properties:
        _legend(figure, properties)
    figure.caption, figure.captioned = " ".join(filter(None, sentences)), _PAGE.get().captions
    # Wrap labels of axes to the panels, and repeat shared vertical labels in each line of a wrapped row.
    for axes in figure.axes if in_a_column() else ():
        axes.set_xlabel(fitted(axes.get_xlabel(), 0.75 * figure.panel_width, 7))
        labels = [label for other in axes.get_shared_y_axes().get_siblings(axes) if (label := other.get_ylabel())]
        if labels and not axes.get_ylabel() and axes.get_subplotspec().is_first_col():  # type: ignore[union-attr]
            axes.set_ylabel(labels[0])
    if figure.captioned:
        _caption(figure)
    return figure


def handles(properties: dict[str, dict[str, Any]], **line: Any) -> list[Line2D]:
    """Legend handles of the series; `line` gives defaults for properties that a series does not set."""
    return [Line2D([], [], **{"label": shown(name), **line, **own}) for name, own in properties.items()]


def _legend(figure: Picture, properties: dict[str, dict[str, Any]]) -> None:
    """Add one legend for the whole figure, and make the figure higher if the legend has many lines."""
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
    """Write the caption below the panels, and make the figure higher by its height."""
    width, height = figure.get_size_inches()
    lines = textwrap.wrap(figure.caption, int(width * 72 / (CAPTION_POINTS * 0.56)))
    needed = (len(lines) + 1) * CAPTION_POINTS * 1.35 / 72
    figure.set_size_inches(width, height + needed)
    bottom = needed / (height + needed)
    figure.get_layout_engine().set(rect=(0, bottom, 1, 1 - bottom))  # type: ignore[union-attr, call-arg]
    look: dict[str, Any] = {"fontsize": CAPTION_POINTS, "color": "black", "va": "top", "linespacing": 1.3}
    figure.text(0.08 / width, bottom * 0.9, "\n".join(lines), gid="caption", **look)


def picture(axes: Axes) -> Picture:
    """The figure of a panel."""
    assert isinstance(axes.figure, Picture)
    return axes.figure


def fitted(text: str, width: float, points: float) -> str:
    """The text, wrapped to `width` inches if the page has a width."""
    return wrapped(text, width, points) if in_a_column() else text


def wrapped(text: str, width: float, points: float) -> str:
    """The text, wrapped to `width` inches at a font size of `points`."""
    letters = max(8, int(width * 72 / (_LETTER * points)))
    return _Names(width=letters, break_on_hyphens=False).fill(text.replace(" = ", "\xa0=\xa0"))


class _Names(textwrap.TextWrapper):
    """A `TextWrapper` that also breaks lines after the underscores of a name."""

    wordsep_simple_re = re.compile(r"([ \n]+)|(?<=_)")
