"""Tables as text and files: Markdown, CSV, and LaTeX that fits across both columns of a page."""

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from bench.common.errors import bounded, in_cell
from bench.records.disk import write_atomically

LINES = 48
"""Most lines of text in one `tabular`, so that it fits on a page."""
LONG = 24
"""Longest text in characters that is set in one line."""

# pandas' Styler escapes only some of these, and does not break long names.
_SIGNS = str.maketrans(
    {
        **{sign: rf"\{sign}" for sign in "&%$#{}"},
        "_": r"\_\allowbreak{}",  # names are long
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "µ": r"\textmu{}",
    }
)
_PART = r"""% Needs \usepackage{{array,booktabs,graphicx}}.
{{\footnotesize\setlength{{\tabcolsep}}{{3pt}}%
\resizebox{{\ifdim\width>\linewidth\linewidth\else\width\fi}}{{!}}{{%
{}}}{}}}"""
_LOW = re.compile(r"(^|[_ ])(low|lowest)($|[_ ])|^from$")
_HIGH = re.compile(r"(^|[_ ])(high|highest|largest|to)($|[_ ])")
_ANSWER = re.compile(r"^(difference \(.*|verdict|loss is|equal from)$")


def number(value: object) -> str:
    """A float with four significant digits, or as an integer from 1000 on; other values unchanged."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def markdown(table: pd.DataFrame) -> str:
    """The table in GitHub Markdown."""
    cells = [[_cell(value) for value in row] for row in table.to_numpy(object)]
    rows = [list(table.columns), ["---"] * len(table.columns), *cells]
    return "\n".join(f"| {' | '.join(in_cell(cell) for cell in row)} |" for row in rows)


def latex(table: pd.DataFrame) -> list[str]:
    """LaTeX for the `table*` of a two-column paper; needs the packages array, booktabs and graphicx.

    Values that all rows share are printed once, below the rows. An interval is printed after its number. A table wider
    than the text is scaled down; one higher than a page is split into several parts.
    """
    numeric = [name for name in table if pd.api.types.is_numeric_dtype(table[name]) and table[name].dtype != bool]
    text = pd.DataFrame({name: table[name].astype(object).map(_cell) for name in table}, dtype=object)
    text, shared = _without_shared(with_intervals(text))
    note = f"\n\\par\\smallskip In all rows: {_escaped(', '.join(shared))}.\\par" if shared else ""
    lines = [max(math.ceil(len(cell) / LONG) for cell in ["x", *row]) for row in text.to_numpy(object)]
    pages = [(end - 1) // LINES for end in itertools.accumulate(lines)]
    parts = [rows for _, rows in text.groupby(pages)] if pages else [text]
    return [_PART.format(_tabular(part, numeric), note) for part in parts]


FORMATS: dict[str, Callable[[pd.DataFrame], list[str]]] = {
    "md": lambda table: [markdown(table)],
    "csv": lambda table: [table.to_csv(index=False, float_format="%.7g").removesuffix("\n")],
    "tex": latex,
}
"""Formats of files and their writers; CSV has seven digits, as the CSV of figures."""
DEFAULT = ("md", "csv")


def write(
    table: pd.DataFrame,
    out_dir: str | Path,
    name: str,
    formats: Sequence[str] = DEFAULT,
    readable: Callable[[str, pd.DataFrame], str] | None = None,
) -> list[Path]:
    """Write the table as `name` in some of `FORMATS`, numbered if it has several parts; returns the files.

    `readable`, if given, makes the Markdown from the name and the table.
    """
    contents = {}
    for suffix in formats:
        parts = [readable(name, table)] if suffix == "md" and readable is not None else FORMATS[suffix](table)
        for i, text in enumerate(parts, 1):
            numbered = f"{name}_{i}" if len(parts) > 1 else name
            contents[f"{numbered}.{suffix}"] = f"{text}\n".encode()
    return write_files(Path(out_dir), contents)


def write_files(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write each content atomically to its name in the folder, which is created."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def _cell(value: object) -> str:
    return "" if pd.isna(value) else number(value)


def with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Merge the two columns with the ends of an interval into the column before them."""
    names = list(table)
    for value, low, high in zip(names, names[1:], names[2:], strict=False):
        if _LOW.search(str(low)) and _HIGH.search(str(high)) and not _LOW.search(str(value)):
            ends = zip(table[value], table[low], table[high], strict=True)
            table[value] = [f"{middle} [{least}, {most}]" if least or most else middle for middle, least, most in ends]
            table = table.drop(columns=[low, high])
    return table


def foldable(table: pd.DataFrame) -> list[str]:
    """The columns that may be said once for all rows: not the first, nor an answer, for which a reader looks there."""
    return [str(name) for name in list(table)[1:] if len(table) > 1 and not _ANSWER.match(str(name))]


def _without_shared(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without columns that are equal in all rows; and the name and value of each that is not empty."""
    same = [name for name in foldable(table) if table[name].nunique() == 1]
    return table.drop(columns=same), [f"{name} {table[name].iloc[0]}" for name in same if table[name].iloc[0]]


def _tabular(table: pd.DataFrame, numeric: Collection[Hashable]) -> str:
    widths = {name: max([len(text) for text in table[name]], default=0) for name in table}
    sides = {name: "r" if name in numeric else "l" for name in table}
    lines = rf">{{\raggedright\arraybackslash}}p{{{LONG / 2 + 1:.0f}em}}"
    columns = "".join(lines if widths[name] > LONG and side == "l" else side for name, side in sides.items())

    def head(name: str) -> str:
        """The header, broken into lines so that it is no wider than its column."""
        parts = textwrap.wrap(name.replace("_", " "), max(min(widths[name], LONG), 6), break_long_words=False)
        stacked = r"\\".join(map(_escaped, parts))
        return rf"\shortstack[{sides[name]}]{{{stacked}}}" if len(parts) > 1 else stacked

    rows = table.style.hide(axis="index").format(_escaped).format_index(head, axis=1)
    return rows.to_latex(hrules=True, column_format=f"@{{}}{columns}@{{}}").rstrip()


def _escaped(text: str) -> str:
    return bounded(text).translate(_SIGNS)
