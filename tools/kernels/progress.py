"""What was done, so that long work that was interrupted continues where it stopped."""

import contextlib
import json
from pathlib import Path
from typing import Any


class Progress:
    """A log of JSON lines.

    Args:
        file: where the log is; it may hold lines of other origins.
        origin: what a result depends on beside its line, such as the GPU or the code.
    """

    def __init__(self, file: Path, origin: str) -> None:
        self.file, self.origin = file, origin
        file.parent.mkdir(parents=True, exist_ok=True)

    def add(self, **line: Any) -> None:
        """Append one line."""
        with self.file.open("a") as file:
            file.write(json.dumps({"origin": self.origin, **line}) + "\n")

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        """The lines of this origin with these values; an incomplete line of a killed process is ignored."""
        found = []
        for text in self.file.read_text().splitlines() if self.file.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):
                line = json.loads(text)
                if {"origin": self.origin, **wanted}.items() <= line.items():
                    found.append(line)
        return found
