"""Which version of the suite is running."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import subprocess
from pathlib import Path
from typing import Any

# Records may be tracked too: a new one changes nothing that is measured.
MEASURING = (":/attention_zoo", ":/bench", ":/conf")
# `git archive` writes the commit into it, for machines that have neither git nor a checkout.
ARCHIVED = Path(__file__).parent / "commit.txt"


@functools.cache
def code_identity() -> dict[str, Any]:
    """The package's version, its commit and, in a git checkout, whether what measures was changed since."""
    if archived := _archived():
        return {"suite_version": _suite_version(), "git_sha": archived, "git_dirty": None}
    status = _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURING)
    return {
        "suite_version": _suite_version(),
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": None if status is None else bool(status),
    }


def _archived() -> str | None:
    """The commit that this is an archive of; None in a checkout."""
    text = ARCHIVED.read_text().strip() if ARCHIVED.exists() else ""
    return text if re.fullmatch("[0-9a-f]{40}", text) else None


def _suite_version() -> str | None:
    try:
        return importlib.metadata.version("attention-zoo")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return None


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
