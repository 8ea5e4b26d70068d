"""Run the notebooks on the committed records and store their outputs: `python -m tools.pages.notebooks`.

The same records give the same bytes. Cells with the tag `measured` take times, so their stored outputs are kept until
their code changes. `python -m tools.pages.notebooks one_cell` measures them anew in that notebook.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from analysis.notebook import COMMITTED, RESULTS_DIR
from bench.records.disk import write_atomically
from bench.records.store import Store

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
RESULTS = [ROOT / "results" / name for name in COMMITTED]
MEASURED = "measured"
LONGEST = 600
"""Timeout of a cell in seconds."""


def of_results() -> str:
    """A hash of the committed records and tables: of what notebooks read, and of how our code shows it.

    Records contain the hashes of their samples.
    """
    records = [Store(folder).records_dir / name for folder in RESULTS for name in Store(folder).names()]
    tables = [table for folder in RESULTS for table in sorted((folder / "tables").glob("*.md"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in [*records, *tables])).hexdigest()


def run(path: Path, results: Sequence[Path], folder: Path = FOLDER) -> NotebookNode:
    """Run a notebook and return it with its outputs, without times and versions.

    Args:
        path: path of the notebook; the file is not changed.
        results: folders of the records.
        folder: working directory of the notebook.

    Raises:
        CellExecutionError: a cell failed.
    """
    notebook = nbformat.read(path, as_version=4)
    names = {RESULTS_DIR: os.pathsep.join(map(str, results))}
    packages = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    client = NotebookClient(
        notebook,
        timeout=LONGEST,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, **names, "PYTHONPATH": packages})
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def kept(new: NotebookNode, old: NotebookNode) -> NotebookNode:
    """The new notebook with the old outputs of all `measured` cells, if none of their code has changed."""
    before, now = (
        [cell for cell in notebook.cells if cell.cell_type == "code" and MEASURED in cell.metadata.get("tags", [])]
        for notebook in (old, new)
    )
    if [cell.source for cell in before] == [cell.source for cell in now] and any(cell.outputs for cell in before):
        for cell, stored in zip(now, before, strict=True):
            cell.outputs = stored.outputs
    return new


def main(names: Sequence[str]) -> None:
    """Run these notebooks, or all of them, on the committed records, and store their outputs."""
    for path in [FOLDER / f"{name}.ipynb" for name in names] or sorted(FOLDER.glob("*.ipynb")):
        new = run(path, RESULTS)
        notebook = new if names else kept(new, nbformat.read(path, as_version=4))
        notebook.metadata["results"] = of_results()
        write_atomically(path, f"{nbformat.writes(notebook)}\n".encode())
        print(path.relative_to(ROOT), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
