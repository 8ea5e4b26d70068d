"""One HTML page with the answer and every picture in a folder of figures."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import pandas as pd

from bench.records.disk import write_atomically

_STYLE = """body { font: 16px/1.5 sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; display: block; overflow-x: auto; } th, td { padding: .3em .8em; text-align: left; }
tr:nth-child(even) { background: #f4f4f4; } img { max-width: 100%; } figure { margin: 2em 0; }"""


def write(path: Path, title: str, sentences: Sequence[str], table: pd.DataFrame, explanation: str) -> int:
    """Write an HTML file that shows all PNG files of its folder, sorted by name; how many there are."""
    pictures = [escape(picture.stem) for picture in sorted(path.parent.glob("*.png"))]
    parts = [
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>\n<h1>{escape(title)}</h1>',
        *(f"<p>{escape(sentence)}</p>" for sentence in sentences),
        table.to_html(index=False, border=0),
        f"<p>{escape(explanation)}</p>",
        *(f'<figure><img src="{name}.png" alt="{name}"></figure>' for name in pictures),
    ]
    write_atomically(path, "\n".join(parts).encode() + b"\n")
    return len(pictures)
