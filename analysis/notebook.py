"""For notebooks: load the records, and show every figure and table of the command line by its name.

If records for a figure or table are missing, one line says so, and the notebook goes on.
"""

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from IPython.display import Image, Markdown, display

from analysis.frame import load
from analysis.plots import files
from analysis.registry import PAGES, TABLES, Made, explanation
from analysis.selection import MissingRecords
from analysis.tables import people

RESULTS_DIR = "RESULTS_DIR"
"""The environment variable with the folders of the records, separated like those of `PATH`."""
COMMITTED = ("laptop", "quality")
"""Folders of `results/` that notebooks read if there are no records of your own."""
FOLDER = "folder"
"""The column of `records` with the folder that a row comes from."""
WIDTH = 80  # characters per line of text
RESOLUTION = 100  # dots per inch: as wide as a page of the site, and small enough to commit in a notebook


def records() -> pd.DataFrame:
    """Load the records from `RESULTS_DIR` if it is set, else from `runs/`, else those that come with the repository.

    `runs/` and `results/` are searched in the current folder and its parent. One line says what was found.

    Returns:
        The frame of `analysis.load` for all these folders, with the additional column `folder`.

    Raises:
        MissingRecords: none of the folders has records.
        OSError: a folder cannot be read.
    """
    if named := os.environ.get(RESULTS_DIR):
        places = [[Path(name) for name in named.split(os.pathsep)]]
    else:
        here = (Path.cwd(), Path.cwd().parent)
        places = [[folder / "runs"] for folder in here]
        places += [[folder / "results" / name for name in COMMITTED] for folder in here]
    for folders in places:
        found = {"/".join(folder.resolve().parts[-2:]): frame for folder in folders for frame in _loaded(folder)}
        if found:
            counts = (f"{frame['cell_id'].nunique()} cells of {name}" for name, frame in found.items())
            print(f"records: {', '.join(counts)}")
            frames = [frame.assign(**{FOLDER: name}) for name, frame in found.items()]
            return pd.concat(frames, ignore_index=True)
    tried = ", ".join(str(folder) for folders in places for folder in folders)
    raise MissingRecords(f"there are no records in {tried}; {RESULTS_DIR} names the folder that has them")


def _loaded(folder: Path) -> Iterator[pd.DataFrame]:
    """The records of a folder; nothing if it has none."""
    if folder.is_dir():
        try:
            yield load(folder)
        except MissingRecords:
            return


def figure(name: str, frame: pd.DataFrame) -> None:
    """Show a figure of `python -m analysis list`, in the width and style of `analysis.plots.layout.page` if one is set.

    Args:
        name: name of the figure, such as `memory`.
        frame: the records. If they come from several folders, the figure is drawn for each folder with enough records,
            or for all together if none has enough.

    Raises:
        ValueError: there is no figure with this name.
    """
    for drawn in _made(name, frame, PAGES):
        for part, one in drawn.items():
            display(Image(files.png(one, RESOLUTION), alt=part))
            if not one.captioned:
                print(textwrap.fill(one.caption, WIDTH))


def table(name: str, frame: pd.DataFrame) -> None:
    """Show a table of `python -m analysis list`; otherwise like `figure`."""
    for made in _made(name, frame, TABLES):
        display(Markdown(people.readable(name, made, explanation(name), linked=False)))


def _made(name: str, frame: pd.DataFrame, entries: dict[str, Callable[[pd.DataFrame], Made]]) -> list[Made]:
    """The figures or tables of a name; prints one line if there are none."""
    if name not in entries:
        raise ValueError(f"name={name!r}: must be one of {', '.join(entries)}")
    each = [rows for _, rows in frame.groupby(FOLDER, sort=False)] if FOLDER in frame else []
    made, missing = [], ""
    for parts in (each, [frame]):
        for rows in parts:
            try:
                made.append(entries[name](rows))
            except MissingRecords as error:
                missing = str(error)
        if made:
            return made
    print(f"{name}: skipped, {missing}")
    return []
