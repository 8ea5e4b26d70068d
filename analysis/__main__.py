"""`python -m analysis answer|figures|tables|table|list`: answers, figures and tables from the records of --results."""

import signal

from bench.common import signals

if __name__ == "__main__":
    signals.answer(signals.leave)  # the other imports take seconds

import argparse
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import advice, answer, formats, table, webpage
from analysis.frame import load
from analysis.plots import compare, files
from analysis.plots.layout import WIDTHS, Picture, inches, page, shown
from analysis.registry import FIGURES, PAGES, PARTS, TABLES, Made, claimed, explanation, made, parts
from analysis.selection import MissingRecords, choose, position, unless_quiet
from analysis.tables import people
from bench.common.errors import ConfigError, Parser, in_cell, named_path, one_line
from bench.records import plans
from bench.records.disk import is_file, write_atomically

ANSWER = "answer"
MOST_NOTES = 10_000


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return the exit status.

    0 if it wrote what was asked for, or at least one figure or table if all were asked for. 1 if records are missing or
    nothing could be made or written, 2 for wrong usage.
    """
    options = _parser().parse_args(arguments)
    try:
        if not options.results.is_dir():
            raise ConfigError(
                f"--results={str(options.results)!r}: is no folder; must be a results folder, such as runs"
            )
        plan = plans.find(options.results, options.sweep) if options.sweep else None
        frame = load(options.results, None if plan is None else {cell.cell_id for cell in plan.cells})
        with page(options.width, options.captions == "picture", options.names):
            return int(options.run(frame, options))
    except (ConfigError, MissingRecords, OSError) as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _parser() -> Parser:
    shared = Parser(add_help=False)
    shared.add_argument("--results", type=named_path, default=Path("runs"), metavar="DIR", help="default: runs")
    shared.add_argument("--sweep", metavar="ID", help="only what this sweep asked for: its id, or how that begins")
    parser = Parser(prog="python -m analysis", description="Records to figures and tables.")
    parser.set_defaults(mechanisms=None, names="code", width=None, captions="picture")
    commands = parser.add_subparsers(required=True, metavar="answer|figures|tables|table|list")

    def writing(kind: str, words: str, entries: Iterable[str], suffixes: Iterable[str], default: Iterable[str]) -> Any:
        command = commands.add_parser(kind, parents=[shared], help=f"write every {words}")
        also = " (of trained models also softmax and the controls)" if kind == "figures" else ""
        named = f"only these{also}, in this order: labels or variants; * is anything"
        command.add_argument("--mechanisms", nargs="+", metavar="NAME", help=named)
        command.add_argument("--names", choices=("code", "papers"), default="code", help="what mechanisms are called")
        command.add_argument("--out", type=named_path, metavar="DIR", help=f"default: RESULTS/{kind}")
        command.add_argument(f"--{kind.removesuffix('s')}", dest="only", choices=entries, help="only this one")
        some = f"some of {','.join(suffixes)}; default: {','.join(default)}"
        command.add_argument("--formats", type=_some_of([*suffixes]), default=default, metavar="FORMATS", help=some)
        return command

    figures = writing("figures", "figure", FIGURES, files.FORMATS, files.DEFAULT)
    widths = f"of the column in a paper: {', '.join(WIDTHS)}, or inches"
    figures.add_argument("--width", type=_inches, metavar="WIDTH", help=widths)
    figures.add_argument("--captions", choices=("picture", "txt"), default="picture", help="in it, or beside it")
    figures.set_defaults(run=_figures)
    tables = writing("tables", "paper's table", TABLES, formats.FORMATS, formats.DEFAULT)
    tables.set_defaults(run=_tables)
    said = "say which mechanism pays from which length on, and write one page with every figure that is drawn"
    answering = commands.add_parser("answer", parents=[shared], help=said)
    answering.set_defaults(run=_answer)
    cells = commands.add_parser("table", parents=[shared], help="print one row per cell, as Markdown")
    cells.add_argument("--csv", type=named_path, metavar="FILE", help="also write every number, unrounded")
    cells.set_defaults(run=_table)
    listing = commands.add_parser("list", parents=[shared], help="name the figures and tables and what they lack")
    listing.set_defaults(run=_list)
    return parser


def _some_of(formats: list[str]) -> Callable[[str], tuple[str, ...]]:
    """An argparse type: some of the formats, separated by commas."""

    def some(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        if unknown := [name for name in names if name not in formats]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}: must be some of {', '.join(formats)}")
        return names

    return some


def _inches(text: str) -> float:
    try:
        return inches(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _chosen(frame: pd.DataFrame, options: argparse.Namespace) -> pd.DataFrame:
    try:
        return choose(frame, options.mechanisms) if options.mechanisms else frame
    except MissingRecords as error:
        raise ConfigError(f"--{error}") from None


def _figures(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    frame = _chosen(frame, options)

    def save(drawn: dict[str, Picture], out: Path, name: str) -> list[Path]:
        columns = 0
        while columns < len(PARTS.get(name, ())) and not all(one.fits for one in drawn.values()):
            columns += 1
            drawn = dict(parts(name, frame, columns))
        for part, one in drawn.items():
            if not one.fits:
                print(f"{part}: higher than a page; choose by --mechanisms or --sweep")
        return [path for part, one in drawn.items() for path in files.save(one, out, part, options.formats)]

    return _write(frame, options, "figures", PAGES, save)


def _tables(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    def save(table: pd.DataFrame, out: Path, name: str) -> list[Path]:
        """Save a table with the rows of --mechanisms, in this order, and with names in the style of --names."""
        if "attention" in table and options.mechanisms:
            places = table["attention"].map(lambda label: position(label, options.mechanisms))
            table = table.loc[places[places < len(options.mechanisms)].sort_values(kind="stable").index]
            if table.empty:
                raise MissingRecords(f"has no row of --mechanisms {' '.join(options.mechanisms)}")
        if "attention" in table:
            table = table.assign(attention=table["attention"].map(shown))
        readable = partial(people.readable, says=explanation(name))
        return formats.write(table, out, name, options.formats, readable)

    _chosen(frame, options)  # a name that matches nothing is refused
    # Baselines, verdicts and corrections are those of all that was measured.
    return _write(frame, options, "tables", TABLES, save)


def _answer(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    with _noting(ANSWER):
        answers = answer.answers(frame)
    sentences, found = advice.sentences(answers), unless_quiet(answer.lines(answers))
    print("\n".join(sentences), formats.markdown(found), sep="\n\n")
    if (frame["bench"] == "spectral_norm").any() and not any(one.error for one in answers):
        print("answer: errors count with inputs=pretrained and the mask of the speeds", file=sys.stderr)
    folder = claimed(options.results, None, "figures", [*FIGURES, ANSWER], ("--results", "--out"))
    machines = ", ".join(sorted({one.device_name for one in answers}))
    path, title = folder / f"{ANSWER}.html", f"Which attention, on {machines}?"
    count = webpage.write(path, title, sentences, found, explanation(ANSWER))
    # Earlier commands drew the pictures, perhaps of fewer records.
    pictures = f"{count} picture{'' if count == 1 else 's'}"
    shows = f"with the {pictures} in its folder, as last drawn" if count else "as a page"
    none = "" if count else f" (it shows pictures after `python -m analysis figures --results {options.results}`)"
    print(f"\nthe same {shows}: {path}{none}")
    return 0


def _write(
    frame: pd.DataFrame,
    options: argparse.Namespace,
    kind: str,
    entries: dict[str, Callable[[pd.DataFrame], Made]],
    save: Callable[[Made, Path, str], list[Path]],
) -> int:
    out, wrote = claimed(options.results, options.out, kind, entries, ("--results", "--out")), False
    chosen = {options.only: entries[options.only]} if options.only else entries
    noted = {name: _noting(name)(make) for name, make in chosen.items()}
    for name, paths in made(frame, noted, lambda name, one: save(one, out, name)):
        if isinstance(paths, MissingRecords):
            print(f"{name}: skipped, {paths}")
        else:
            print(f"{name}: wrote {', '.join(map(str, paths))}")
            wrote = True
    return 0 if wrote else 1


@contextmanager
def _noting(name: str) -> Iterator[None]:
    """Print on stderr what the figure or table `name` logs that it leaves out; each sentence once."""
    log, handler = logging.getLogger("analysis"), BufferingHandler(MOST_NOTES)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        for message in dict.fromkeys(record.getMessage() for record in handler.buffer):
            print(f"{name}: {message}", file=sys.stderr)


def _table(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    for _, own in frame.groupby("bench", sort=True):
        cells, equal = table.shortened(table.by_cell(own))
        if equal:
            print(f"in all rows: {in_cell(equal)}", end="\n\n")
        print(formats.markdown(cells), end="\n\n")
    if "compare" in set(frame.loc[frame["status"] == "ok", "bench"]):
        crossovers = compare.crossovers(frame)
        print("Crossovers:", "none" if crossovers.empty else f"\n\n{formats.markdown(crossovers)}")
    if path := options.csv:
        content = frame.drop(columns=["raw", "config"]).to_csv(index=False).encode()
        # Overwrite only a table that this command wrote.
        header = content[: content.index(b"\n") + 1]
        if os.path.lexists(path) and not (is_file(path) and path.read_bytes().startswith(header)):
            raise ConfigError(f"--csv={str(path)!r}: is no table of cells, and stays as it is; must be a new name")
        write_atomically(path, content)
    return 0


def _list(frame: pd.DataFrame, options: argparse.Namespace) -> int:
    # A figure and a table may have the same name.
    kinds: tuple[dict[str, Callable[[pd.DataFrame], Any]], ...] = ({**FIGURES}, {**TABLES})
    for entries in kinds:
        for name, state in made(frame, entries, lambda name, one: "ready"):
            shows = (entries[name].__doc__ or "").partition("\n")[0].rstrip(".")
            print(f"{name}: {shows}: {state}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly if the reader of a pipe, such as head, has closed it
    sys.exit(signals.run(main))
