"""`python -m analysis figures|tables|table|list`: what the records under --results say."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frame import MissingRecords, load
from analysis.plots import compare
from analysis.plots.style import save
from analysis.registry import FIGURES, TABLES, Entry, Made, made
from analysis.table import by_cell, markdown, write
from bench.errors import one_line
from bench.records import plans


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status.

    0 if it did what was asked, and that is where nothing in particular was asked: something. 1 if the records do not
    suffice or it could not be made or written, 2 for wrong usage.
    """
    options = _parser().parse_args(arguments)
    try:
        plan = plans.load(options.results, options.sweep) if options.sweep else None
        frame = load(options.results, None if plan is None else {cell.cell_id for cell in plan.cells})
        return int(options.run(frame, options))
    except (MissingRecords, plans.PlanError, OSError) as error:
        print(f"analysis: {one_line(error)}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--results", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    shared.add_argument("--sweep", metavar="ID", help="only what this sweep asked for")
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Records to figures and tables.")
    commands = parser.add_subparsers(required=True, metavar="figures|tables|table|list")
    figures = commands.add_parser("figures", parents=[shared], help="write every figure as PNG and SVG")
    figures.add_argument("--out", type=Path, metavar="DIR", help="default: RESULTS/figures")
    figures.add_argument("--figure", choices=FIGURES, help="only this one")
    figures.set_defaults(run=_figures)
    tables = commands.add_parser("tables", parents=[shared], help="write every paper's table as Markdown and CSV")
    tables.add_argument("--out", type=Path, metavar="DIR", help="default: RESULTS/tables")
    tables.add_argument("--table", choices=TABLES, help="only this one")
    tables.set_defaults(run=_tables)
    table = commands.add_parser("table", parents=[shared], help="print one row per cell, as Markdown")
    table.add_argument("--csv", type=Path, metavar="FILE", help="also write every number, unrounded")
    table.set_defaults(run=_table)
    listing = commands.add_parser("list", parents=[shared], help="name the figures and tables and what they lack")
    listing.set_defaults(run=_list)
    return parser


def _figures(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    return _write(frame, FIGURES, options.figure, save, options.out or options.results / "figures")


def _tables(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    return _write(frame, TABLES, options.table, write, options.out or options.results / "tables")


def _write(
    frame: pd.DataFrame,
    entries: dict[str, Entry[Made]],
    chosen: str | None,
    save: Callable[[Made, Path, str], list[Path]],
    out: Path,
) -> int:
    wrote = False
    asked = {chosen: entries[chosen]} if chosen else entries
    for name, paths in made(frame, asked, lambda name, one: save(one, out, name)):
        if isinstance(paths, MissingRecords):
            print(f"{name}: skipped, {paths}")
        else:
            print(f"{name}: wrote {', '.join(map(str, paths))}")
            wrote = True
    return 0 if wrote else 1


def _table(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    for _, cells in frame.groupby("bench", sort=True):
        print(markdown(by_cell(cells)), end="\n\n")
    if "compare" in set(frame.loc[frame["status"] == "ok", "bench"]):
        crossovers = compare.crossovers(frame)
        print("Crossovers:", "none" if crossovers.empty else f"\n\n{markdown(crossovers)}")
    if options.csv:
        frame.drop(columns="raw").to_csv(options.csv, index=False)
    return 0


def _list(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    entries: dict[str, Entry[Any]] = {**FIGURES, **TABLES}
    for name, state in made(frame, entries, lambda name, one: "ready"):
        print(f"{name}: {entries[name].shows}: {state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
