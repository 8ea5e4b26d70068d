"""Error classes, and how errors become one line of text."""

import argparse
import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from tqdm import tqdm

LONGEST_LINE = 700


class ConfigError(Exception):
    """A configuration that cannot run; the message is one line with the key, its value and what is allowed."""


class UnfinishedError(Exception):
    """Cells of a sweep have no record, through no fault of theirs; running the same command again continues."""


class NonFiniteError(Exception):
    """A result has NaN or infinity; the message says which result, how many values, and the first index."""


class IncorrectError(Exception):
    """The mechanism's output differs from its float64 reference, or its formula gives no FLOPs."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        """Print the error and exit with code 2."""
        self.exit(2, f"error: {bounded(message.removeprefix('argument '))}; `{self.prog} --help` lists what there is\n")


def named_path(text: str) -> Path:
    """A path from an argument; refuses an empty one (an unset variable, say), which would mean the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("'': must name a file or folder")
    return Path(text)


def message(error: BaseException) -> str:
    """An error's message, with only characters that can be printed and encoded; empty if there is none."""
    try:
        return str(error).strip().encode(errors="replace").decode()
    except Exception:  # another package's class may fail here
        return ""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, shortened; its type if there is none. OmegaConf's errors know their key."""
    key, line = getattr(error, "full_key", None), (message(error).splitlines() or [type(error).__name__])[0].strip()
    return bounded(f"{key}: {line}" if key else line)


def say(line: str) -> None:
    """Print a line to stderr, above the progress bar if there is one."""
    tqdm.write(line, file=sys.stderr)


def bounded(text: str, longest: int = LONGEST_LINE) -> str:
    """The text as one printable line of limited length, for terminals, tables and figures; `?` for other characters."""
    text = text if len(text) <= longest else f"{text[:longest]} ..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def in_cell(text: str) -> str:
    """A text for a cell of a Markdown table: one line, with the characters that Markdown or HTML would use escaped."""
    return bounded(text).replace("|", "\\|").replace("<", "\\<")


def is_secret(key: str) -> bool:
    """Whether a key's name says that its value is secret: `hub.api_key`, `hfToken`; not `tokens_per_batch`."""
    return _SECRET.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()) is not None


def scrubbed(text: str) -> str:
    """The text as records may store it: without home folders, and without credentials in URLs."""
    own = os.path.expanduser("~").rstrip("/")
    if own not in ("", "~"):
        text = re.sub(rf"{re.escape(own)}(?![\w.-])", "~", text)
    return without_credentials(_ANY_HOME.sub("~", text))


def without_credentials(text: str) -> str:
    """The text without user names, passwords, tokens and keys in its URLs."""
    text = _BEFORE_A_HOST.sub("", text)
    return _IN_A_QUERY.sub(lambda found: f"{found[1]}..." if is_secret(found[1]) else found[0], text)


def package(module: str, setting: str, install: str) -> Any:
    """Import a module of an optional package.

    Raises:
        ModuleNotFoundError: one line with the setting that needs it and what to `pip install`.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        name = module.partition(".")[0]
        raise ModuleNotFoundError(f"{setting}: {name} is missing; pip install {install}") from None


# Matches whole words only.
_SECRET = re.compile(
    r"(?<![a-z])(?:token|password|passwd|passphrase|pwd|secrets?|credentials?|auth|authorization|signature|apikey"
    r"|(?:api|access|account|private|secret|ssh|encryption)[^a-z0-9]?key)(?![a-z])"
)
_ANY_HOME = re.compile(r"(?:/home/|/Users/|\b[A-Z]:\\Users\\)[^\s/\\:'\",;)]+")
# User name and password, which stand between :// and @ and contain no slash.
_BEFORE_A_HOST = re.compile(r"(?<=://)[^\s/'\"]*@")
_IN_A_QUERY = re.compile(r"([?&][\w.-]{1,80}=)[^\s&'\"#]+")
