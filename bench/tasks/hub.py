"""The papers' language-modelling texts on the Hugging Face hub, and any other dataset there."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from attention_zoo.checks import require
from bench.inputs import models, texts

KEY = "task.text"


def _unchanged(document: str) -> str:
    return document


def without_markers(document: str) -> str:
    """A document of Wiki-40B without the markers of its structure, a line for each of its parts."""
    # In other languages than English the published files hold Python's notation of bytes, not texts.
    require(f"{KEY}: wiki40b", document[:20], not document.startswith(("b'", 'b"')), "a text, not the repr of bytes")
    document = re.sub(r"_START_(?:ARTICLE|SECTION|PARAGRAPH)_|_NEWLINE_", "\n", document)
    return "\n".join(line for line in map(str.strip, document.split("\n")) if line)


@dataclass(frozen=True)
class HubText:
    """A dataset, streamed; its documents end with a line end.

    Attributes:
        splits: by split of the task: the split there, and the first and the distance of the documents taken of it.
    """

    path: str
    config: str | None = None
    revision: str | None = None
    column: str = "text"
    splits: Mapping[str, tuple[str, int, int]] = field(
        default_factory=lambda: {split: (split, 0, 1) for split in ("train", "validation", "test")}
    )
    clean: Callable[[str], str] = _unchanged

    @property
    def source(self) -> str:
        """For records and figures."""
        config = f":{self.config}" if self.config else ""
        return f"{self.path}{config}@{self.revision or 'main'}"

    def identity(self, split: str) -> dict[str, Any]:
        """What pins a split down."""
        return {"dataset": self.source, "column": self.column, "split": self.splits[split]}

    def pieces(self, split: str) -> Iterator[str]:
        """The documents of a split, read no further than asked; raises as `bench.inputs.texts.rows`."""
        if not models.hub_answers():
            raise ConnectionError(f"{KEY}={self.path!r}: the Hugging Face hub cannot be reached")
        there, first, step = self.splits[split]
        rows = texts.rows(self.path, self.config, self.revision, there, self.column, KEY)
        for row in islice(rows, first, None, step):
            document = self.clean(row)
            yield document if document.endswith("\n") or not document else f"{document}\n"


# C4 has no test split: every other document of its validation split is one.
_C4_SPLITS = {"train": ("train", 0, 1), "validation": ("validation", 0, 2), "test": ("validation", 1, 2)}
# No commit of Wiki-40B is known here; task.text=wiki40b@COMMIT pins one.
KNOWN = {
    "pg19": HubText("emozilla/pg19", None, "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8"),
    "wiki40b": HubText("google/wiki40b", "en", clean=without_markers),
    "c4": HubText("allenai/c4", "en", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2", splits=_C4_SPLITS),
    "wikitext": HubText("Salesforce/wikitext", "wikitext-103-raw-v1", "b08601e04326c79dfdd32d625aee71d232d685c3"),
}


def named(name: str) -> HubText:
    """The text `path[:config][@revision]`; for a known path, short or whole, what is not given is as known."""
    path, config, revision = texts.dataset(name)
    known = KNOWN.get(path) or next((text for text in KNOWN.values() if text.path == path), HubText(path))
    return dataclasses.replace(known, config=config or known.config, revision=revision or known.revision)
