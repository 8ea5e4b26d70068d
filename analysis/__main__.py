"""`python -m analysis figures|table|list`: what the records under --results say."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from analysis import compare
from analysis.frame import MissingRecords, load
from analysis.registry import FIGURES
from analysis.style import save
from analysis.table import by_cell, markdown


def main(arguments: list[str] | None = None) -> int:
    """Run one command; 0 if it did what was asked, 1 if the records do not suffice, 2 for wrong usage."""
    options = _parser().parse_args(arguments)
    try:
        frame = load(options.results)
        return int(options.run(frame, options))
    except (MissingRecords, OSError) as error:
        print(f"analysis: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--results", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    parser = argparse.ArgumentParser(prog="python -m analysis", description="Records to figures and tables.")
    commands = parser.add_subparsers(required=True, metavar="figures|table|list")
    figures = commands.add_parser("figures", parents=[shared], help="write every figure as PNG and SVG")
    figures.add_argument("--out", type=Path, metavar="DIR", help="default: RESULTS/figures")
    figures.add_argument("--figure", choices=FIGURES, help="only this one")
    figures.set_defaults(run=_figures)
    table = commands.add_parser("table", parents=[shared], help="print one row per cell, as Markdown")
    table.add_argument("--csv", type=Path, metavar="FILE", help="also write every number, unrounded")
    table.set_defaults(run=_table)
    listing = commands.add_parser("list", parents=[shared], help="name the figures and what they lack")
    listing.set_defaults(run=_list)
    return parser


def _figures(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    wrote = False
    for name in [options.figure] if options.figure else FIGURES:
        try:
            figure = FIGURES[name](frame)
        except MissingRecords as missing:
            print(f"{name}: skipped, {missing}")
            continue
        paths = save(figure, options.out or options.results / "figures", name)
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
    for name, entry in FIGURES.items():
        try:
            entry(frame)
            state = "ready"
        except MissingRecords as missing:
            state = str(missing)
        print(f"{name}: {entry.shows}: {state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
