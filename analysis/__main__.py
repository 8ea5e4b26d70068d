"""`python -m analysis figures|tables|table|list`: what the records under --results say."""

from __future__ import annotations

from bench.common import signals

if __name__ == "__main__":
    signals.answer(signals.leave)  # the other imports take seconds

import argparse
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import table
from analysis.frame import MissingRecords, choose, load, turn
from analysis.plots import compare, files
from analysis.plots.page import WIDTHS, Picture, inches, page, shown
from analysis.registry import FIGURES, TABLES, Entry, Made, made
from bench.common.errors import ConfigError, Parser, named_path, one_line
from bench.records import own, plans
from bench.records.disk import is_file, write_atomically


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status.

    0 if it did what was asked, and that is where nothing in particular was asked: something. 1 if the records do not
    suffice or it could not be made or written, 2 for wrong usage.
    """
    options = _parser().parse_args(arguments)
    try:
        if not options.results.is_dir():
            raise ConfigError(f"--results={str(options.results)!r}: is no folder; must be one of results")
        plan = plans.load(options.results, options.sweep) if options.sweep else None
        frame = load(options.results, None if plan is None else {cell.cell_id for cell in plan.cells})
        return int(options.run(frame, options))
    except (ConfigError, MissingRecords, plans.PlanError, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _parser() -> Parser:
    shared = Parser(add_help=False)
    shared.add_argument("--results", type=named_path, default=Path("runs"), metavar="DIR", help="default: runs")
    shared.add_argument("--sweep", metavar="ID", help="only what this sweep asked for")
    parser = Parser(prog="python -m analysis", description="Records to figures and tables.")
    commands = parser.add_subparsers(required=True, metavar="figures|tables|table|list")
    chosen = Parser(add_help=False)
    chosen.add_argument(
        "--mechanisms", nargs="+", metavar="NAME", help="only these, in this order: labels or variants; * is anything"
    )
    chosen.add_argument("--names", choices=("code", "papers"), default="code", help="what mechanisms are called")
    figures = commands.add_parser("figures", parents=[shared, chosen], help="write every figure")
    figures.add_argument("--out", type=named_path, metavar="DIR", help="default: RESULTS/figures")
    figures.add_argument("--figure", choices=FIGURES, help="only this one")
    figures.add_argument("--formats", **_some_of(files.FORMATS, files.DEFAULT))
    figures.add_argument(
        "--width", type=_inches, metavar="WIDTH", help=f"of the column in a paper: {', '.join(WIDTHS)}, or inches"
    )
    figures.add_argument("--captions", choices=("picture", "txt"), default="picture", help="in it, or beside it")
    figures.set_defaults(run=_figures)
    tables = commands.add_parser("tables", parents=[shared, chosen], help="write every paper's table")
    tables.add_argument("--out", type=named_path, metavar="DIR", help="default: RESULTS/tables")
    tables.add_argument("--table", choices=TABLES, help="only this one")
    tables.add_argument("--formats", **_some_of(tuple(table.FORMATS), table.DEFAULT))
    tables.set_defaults(run=_tables)
    cells = commands.add_parser("table", parents=[shared], help="print one row per cell, as Markdown")
    cells.add_argument("--csv", type=named_path, metavar="FILE", help="also write every number, unrounded")
    cells.set_defaults(run=_table)
    listing = commands.add_parser("list", parents=[shared], help="name the figures and tables and what they lack")
    listing.set_defaults(run=_list)
    return parser


def _some_of(formats: tuple[str, ...], default: tuple[str, ...]) -> dict[str, Any]:
    """An option whose value is some of the formats, separated by commas."""

    def some(text: str) -> tuple[str, ...]:
        asked = tuple(text.split(","))
        if unknown := [one for one in asked if one not in formats]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be some of {', '.join(formats)}")
        return asked

    known = f"some of {','.join(formats)}; default: {','.join(default)}"
    return {"type": some, "default": default, "metavar": "FORMATS", "help": known}


def _inches(text: str) -> float:
    try:
        return inches(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _figures(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    chosen = _chosen(frame, options)

    def save(drawn: Picture, out: Path, name: str) -> list[Path]:
        pages, columns = {name: drawn}, 0
        while columns < len(FIGURES[name].by) and not all(one.fits for one in pages.values()):
            columns += 1
            pages = {f"{name}_{part}": one for part, one in FIGURES[name].parts(chosen, columns)}
        for its_name in (its_name for its_name, one in pages.items() if not one.fits):
            print(f"{its_name}: higher than a page; choose by --mechanisms or --sweep")
        return [path for its_name, one in pages.items() for path in files.save(one, out, its_name, options.formats)]

    with page(options.width, options.captions == "picture", options.names):
        return _write(chosen, FIGURES, options.figure, save, _Out(options, "figures", FIGURES))


def _tables(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    def write(made: pd.DataFrame, out: Path, name: str) -> list[Path]:
        return table.write(_called(made, options), out, name, options.formats)

    with page(names=options.names):
        return _write(_chosen(frame, options), TABLES, options.table, write, _Out(options, "tables", TABLES))


def _called(made: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    """The table in the order of the mechanisms chosen, each by the name that the page has for it."""
    if "attention" not in made:
        return made
    if options.mechanisms:
        places = made["attention"].map(lambda label: turn(label, options.mechanisms))
        made = made.loc[places.sort_values(kind="stable").index]
    return made.assign(attention=made["attention"].map(shown))


def _chosen(frame: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    try:
        return choose(frame, options.mechanisms) if options.mechanisms else frame
    except MissingRecords as error:
        raise ConfigError(f"--{error}") from None


class _Out:
    """Where figures or tables go: a folder in the results, or one that `--out` names, which is to be the suite's.

    Raises:
        ConfigError: it is somebody else's.
    """

    def __init__(self, options: argparse.Namespace, name: str, entries: Collection[str]) -> None:
        self._folder, self._kind = options.out or options.results / name, own.drawn(entries)
        self._results = None if options.out else options.results
        if self._results is not None:
            own.check(self._results, own.RESULTS, "--results")
        # What older versions have drawn gets its marker together with the results.
        if self._results is None or own.is_marked(self._results, own.RESULTS):
            own.check(self._folder, self._kind, "--out")

    def claim(self) -> Path:
        """The folder, before something is written there."""
        if self._results is not None:
            own.claim(self._results, own.RESULTS, "--results")
        own.claim(self._folder, self._kind, "--out")
        return self._folder


def _write(
    frame: pd.DataFrame,
    entries: dict[str, Entry[Made]],
    chosen: str | None,
    save: Callable[[Made, Path, str], list[Path]],
    out: _Out,
) -> int:
    wrote = False
    asked = {chosen: entries[chosen]} if chosen else entries
    for name, paths in made(frame, asked, lambda name, one: save(one, out.claim(), name)):
        if isinstance(paths, MissingRecords):
            print(f"{name}: skipped, {paths}")
        else:
            print(f"{name}: wrote {', '.join(map(str, paths))}")
            wrote = True
    return 0 if wrote else 1


def _table(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    for _, cells in frame.groupby("bench", sort=True):
        print(table.markdown(table.by_cell(cells)), end="\n\n")
    if "compare" in set(frame.loc[frame["status"] == "ok", "bench"]):
        crossovers = compare.crossovers(frame)
        print("Crossovers:", "none" if crossovers.empty else f"\n\n{table.markdown(crossovers)}")
    if options.csv:
        _write_csv(options.csv, frame.drop(columns="raw"))
    return 0


def _write_csv(path: Path, cells: pd.DataFrame) -> None:
    """Over nothing but what was written there before."""
    header, _, rows = cells.to_csv(index=False).partition("\n")
    if os.path.lexists(path) and not (is_file(path) and path.read_bytes().startswith(header.encode() + b"\n")):
        raise ConfigError(f"--csv={str(path)!r}: is no table of cells, and stays as it is; must be a new name")
    write_atomically(path, f"{header}\n{rows}".encode())


def _list(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    entries: dict[str, Entry[Any]] = {**FIGURES, **TABLES}
    for name, state in made(frame, entries, lambda name, one: "ready"):
        print(f"{name}: {entries[name].shows}: {state}")
    return 0


if __name__ == "__main__":
    sys.exit(signals.run(main))
