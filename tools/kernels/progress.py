"""What was done, so that long work that was interrupted continues where it stopped."""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def kernel_code() -> str:
    """What the machine code of kernels depends on: the sources and Triton's version."""
    import triton

    sources = sorted(path for folder in ("attention_zoo", "tools/kernels") for path in (ROOT / folder).rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return f"{digest[:16]}, triton {triton.__version__}"


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
