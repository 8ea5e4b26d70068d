"""A page of the site for each notebook: its text, its code and its stored outputs."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = "notebook_pictures"
"""The folder of the notebooks' pictures among the static files of the site."""
Cell = dict[str, Any]


def page(name: str) -> str:
    """The notebook `name` as Markdown, for the page `notebooks/NAME`; links are relative to `docs`."""
    path = ROOT / "notebooks" / f"{name}.ipynb"
    return "\n\n".join(part for number, cell in enumerate(_cells(path)) for part in _shown(cell, f"{name}_{number}"))


def pictures(path: Path) -> Iterator[tuple[str, bytes]]:
    """File name and content of every picture of a notebook."""
    for number, cell in enumerate(_cells(path)):
        for place, output in enumerate(cell.get("outputs", [])):
            if encoded := output.get("data", {}).get("image/png"):
                yield _file(f"{path.stem}_{number}", place), base64.b64decode("".join(encoded))


def copy(app: Sphinx) -> None:
    """Copy the pictures of all notebooks to the static files."""
    static = Path(app.doctreedir) / "static"
    (static / PICTURES).mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        for name, content in pictures(path):
            (static / PICTURES / name).write_bytes(content)
    app.config.html_static_path.append(str(static))


def _cells(path: Path) -> list[Cell]:
    return list(json.loads(path.read_text())["cells"])


def _file(cell: str, place: int) -> str:
    return f"{cell}_{place}.png"


def _shown(cell: Cell, name: str) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        # `notebooks/` is beside `docs/`, while the page is inside it.
        yield source.replace("](../docs/", "](")
        return
    yield f"```python\n{source}\n```"
    for place, output in enumerate(cell["outputs"]):
        data = output.get("data", {"text/plain": output.get("text", [])})
        if "image/png" in data:
            file = f"../_static/{PICTURES}/{_file(name, place)}"
            alt = output["metadata"].get("image/png", {}).get("alt", "")
            yield f'<a href="{file}"><img src="{file}" alt="{alt}"></a>'
        elif "text/markdown" in data:
            yield "".join(data["text/markdown"])
        elif "text/html" in data:
            yield f"```{{raw}} html\n{_table(''.join(data['text/html']))}\n```"
        else:
            yield f"```text\n{''.join(data['text/plain']).rstrip()}\n```"


def _table(html: str) -> str:
    """The HTML table of a pandas frame in the style of the site's other tables."""
    html = re.sub(r"<style.*?</style>\s*", "", html, flags=re.DOTALL)
    html = html.replace('border="1" class="dataframe"', 'class="docutils"')
    return html.replace("<div>", '<div class="table-wrapper">')
