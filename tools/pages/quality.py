"""What docs/quality.md shows of the records in results/quality, and in results/more_tokens of longer steps."""

from collections.abc import Callable

import pandas as pd

from analysis import formats
from tools.pages import language, readings, small_tasks

KINDS: dict[str, Callable[[pd.DataFrame], str]] = {
    "verdicts": language.verdicts,
    "faster": language.faster,
    "positions": language.by_position,
    "lengths": lambda frame: language.by_length(frame, readings.records("more_tokens")),
    "branches": language.branches,
    "answers": small_tasks.table,
    "foretold": small_tasks.foretold,
    "arena": small_tasks.arena,
}


def made(kind: str, n: str = "") -> str:
    """A table or sentences; the kind `losses` is a table for each length `n`."""
    frame = readings.records("quality")
    return formats.markdown(language.losses(frame, int(n))) if kind == "losses" else KINDS[kind](frame)
