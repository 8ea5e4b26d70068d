"""For notebooks: the records that are there, and every figure and table of the command line by its name.

A name that the records do not support is one line of text, and the notebook goes on.
"""

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
from IPython.display import Image, Markdown, display

from analysis.frame import load
from analysis.plots import files
from analysis.registry import FIGURES, TABLES, Made, apart
from analysis.selection import MissingRecords
from analysis.tables import people

RESULTS_DIR = "RESULTS_DIR"
"""The environment variable that names the folders of the records, separated as those of `PATH`."""
COMMITTED = ("laptop", "quality")
"""Folders of `results/` that a notebook starts from where nothing was measured."""
FOLDER = "folder"
"""The column of `records` that says which folder a row is from."""
WIDTH = 80  # characters of a line of text
RESOLUTION = 100  # dots per inch: as wide as a page of the site, and small enough to be kept in a notebook


def records() -> pd.DataFrame:
    """The records that `RESULTS_DIR` names, else your own in `runs/`, else those that came with the repository.

    `runs/` and `results/` are looked for here and in the folder above. One line says what was found.

    Returns:
        What `analysis.load` returns, of all the folders, with one more column, `folder`.

    Raises:
        MissingRecords: there are none.
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
    """The records of a folder; none where it has none."""
    if folder.is_dir():
        try:
            yield load(folder)
        except MissingRecords:
            return


def figure(name: str, frame: pd.DataFrame) -> None:
    """Show a figure of `python -m analysis list`, on the page of `analysis.plots.layout.page` where there is one.

    Args:
        name: of the figure, such as `memory`.
        frame: the records. Of several folders it is drawn for each of them that has enough, and of all together where
            none has.

    Raises:
        ValueError: there is no figure of this name.
    """
    for rows, picture in _made(name, frame, FIGURES):
        for part, one in apart(name, rows, picture).items():
            display(Image(files.png(one, RESOLUTION), alt=part))
            if not one.captioned:
                print(textwrap.fill(one.caption, WIDTH))


def table(name: str, frame: pd.DataFrame) -> None:
    """Show a table of `python -m analysis list`, as `figure` does a figure."""
    for _, made in _made(name, frame, TABLES):
        display(Markdown(people.readable(name, made, linked=False)))


def _made(
    name: str, frame: pd.DataFrame, entries: dict[str, Callable[[pd.DataFrame], Made]]
) -> list[tuple[pd.DataFrame, Made]]:
    """The figures or tables of a name, each with the rows it is made of; a line of text where there is none."""
    if name not in entries:
        raise ValueError(f"name={name!r}: must be one of {', '.join(entries)}")
    each = [rows for _, rows in frame.groupby(FOLDER, sort=False)] if FOLDER in frame else []
    made, missing = [], ""
    for parts in (each, [frame]):
        for rows in parts:
            try:
                made.append((rows, entries[name](rows)))
            except MissingRecords as error:
                missing = str(error)
        if made:
            return made
    print(f"{name}: skipped, {missing}")
    return []
