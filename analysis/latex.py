"""Tables for papers: LaTeX that fits across both columns of a page."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Collection, Hashable

import pandas as pd

from analysis.numbers import number
from bench.common.errors import bounded

LINES = 48
"""Of text in one `tabular`: no higher than a page."""
LONG = 24
"""Characters of a text, above which it is set in lines."""

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
_SMALL = r"\footnotesize\setlength{\tabcolsep}{3pt}"
_LOW = re.compile(r"(^|[_ ])(low|lowest|from)($|[_ ])")
_HIGH = re.compile(r"(^|[_ ])(high|highest|largest|to)($|[_ ])")


def latex(table: pd.DataFrame) -> list[str]:
    """The table with the packages array, booktabs and graphicx, each part for a `table*` of a paper in two columns.

    What all rows share stands once, under the rows; an interval stands behind its number; what is still wider than the
    text is made smaller. A table higher than a page is in several parts.
    """
    numeric = [name for name in table if pd.api.types.is_numeric_dtype(table[name]) and table[name].dtype != bool]
    table, shared = _without_shared(_with_intervals(_as_text(table)))
    note = f"\n\\par\\smallskip In all rows: {_escaped(', '.join(shared))}.\\par" if shared else ""
    lines = [max(math.ceil(len(text) / LONG) for text in ["x", *row]) for row in table.to_numpy(object)]
    pages = [(end - 1) // LINES for end in itertools.accumulate(lines)]
    parts = [rows for _, rows in table.groupby(pages)] if pages else [table]
    inside = (f"{_fitted(_tabular(part, numeric))}{note}" for part in parts)
    return [f"% Needs \\usepackage{{array,booktabs,graphicx}}.\n{{{_SMALL}%\n{text}}}" for text in inside]


def _as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Every value as it is shown."""
    shown = {name: ["" if pd.isna(value) else number(value) for value in table[name].astype(object)] for name in table}
    return pd.DataFrame(shown, index=table.index, columns=table.columns, dtype=object)


def _with_intervals(table: pd.DataFrame) -> pd.DataFrame:
    """Two columns of the ends of an interval in the one before them."""
    names = list(table)
    for value, low, high in zip(names, names[1:], names[2:], strict=False):
        if _LOW.search(str(low)) and _HIGH.search(str(high)) and not _LOW.search(str(value)):
            ends = zip(table[value], table[low], table[high], strict=True)
            table[value] = [f"{middle} [{least}, {most}]" if least or most else middle for middle, least, most in ends]
            table = table.drop(columns=[low, high])
    return table


def _without_shared(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The table without the columns that say the same in every row, or nothing; and those that say something."""
    same = [name for name in list(table)[1:] if len(table) > 1 and table[name].nunique() == 1]
    return table.drop(columns=same), [f"{name} {table[name].iloc[0]}" for name in same if table[name].iloc[0]]


def _tabular(table: pd.DataFrame, numeric: Collection[Hashable]) -> str:
    widths = {name: max([len(text) for text in table[name]], default=0) for name in table}
    sides = [_side(widths[name], name in numeric) for name in table]
    heads = (_head(str(name), widths[name], name in numeric) for name in table)
    rows = (" & ".join(map(_escaped, row)) for row in table.to_numpy(object))
    lines = [r"\toprule", " & ".join(heads) + r" \\", r"\midrule", *(f"{row} \\\\" for row in rows), r"\bottomrule"]
    return "\n".join([rf"\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}", *lines, r"\end{tabular}"])


def _side(width: int, is_number: bool) -> str:
    if width > LONG and not is_number:
        return rf">{{\raggedright\arraybackslash}}p{{{LONG / 2 + 1:.0f}em}}"
    return "r" if is_number else "l"


def _head(name: str, width: int, is_number: bool) -> str:
    """The name of a column in as many lines as keep it no wider than what stands below."""
    lines = textwrap.wrap(name.replace("_", " "), max(min(width, LONG), 6), break_long_words=False)
    side = "r" if is_number else "l"
    stacked = r"\\".join(map(_escaped, lines))
    return rf"\shortstack[{side}]{{{stacked}}}" if len(lines) > 1 else stacked


def _fitted(tabular: str) -> str:
    return f"\\resizebox{{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}}{{!}}{{%\n{tabular}}}"


def _escaped(text: str) -> str:
    return bounded(text).translate(_SIGNS)
