"""Errors, and how they are said in one line."""

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
    """A configuration that cannot be run: one line that names the key, its value and what is allowed."""


class UnfinishedError(Exception):
    """Cells of a sweep have no record, for no fault of theirs; the same command goes on."""


class NonFiniteError(Exception):
    """A result holds NaN or infinity; the message names it, how many values, and the first index."""


class IncorrectError(Exception):
    """The mechanism's output is not that of its float64 reference, or its formula gives no FLOPs."""


class Parser(argparse.ArgumentParser):
    """Arguments of a command; what is wrong with them is one line."""

    def error(self, message: str) -> NoReturn:
        """End the process with exit code 2."""
        self.exit(2, f"error: {bounded(message.removeprefix('argument '))}; `{self.prog} --help` lists what there is\n")


def named_path(text: str) -> Path:
    """A path that an argument names; an empty one, such as a variable that is not set, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("'': must name a file or folder")
    return Path(text)


def message(error: BaseException) -> str:
    """An error's message, of characters that every file and terminal takes; empty where it has none to give."""
    try:
        return str(error).strip().encode(errors="replace").decode()
    except Exception:  # whatever a foreign class does: it must not cost the error
        return ""


def one_line(error: BaseException) -> str:
    """The first line of an error's message, bounded; its type where there is none. OmegaConf's know their key."""
    key, line = getattr(error, "full_key", None), (message(error).splitlines() or [type(error).__name__])[0].strip()
    return bounded(f"{key}: {line}" if key else line)


def say(line: str) -> None:
    """Print a line to stderr, above the progress bar where one is shown."""
    tqdm.write(line, file=sys.stderr)


def bounded(text: str, longest: int = LONGEST_LINE) -> str:
    """The text as one line that terminals, tables and figures take: bounded, `?` for what is no character to print."""
    text = text if len(text) <= longest else f"{text[:longest]} ..."
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in text)


def in_cell(text: str) -> str:
    """A text for a cell of a Markdown table: one line, and nothing that Markdown or HTML would act upon."""
    return bounded(text).replace("|", "\\|").replace("<", "\\<")


def is_secret(key: str) -> bool:
    """Whether a value of that name is nobody's business: `hub.api_key`, `hfToken`; not `tokens_per_batch`."""
    return _SECRET.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", key).lower()) is not None


def scrubbed(text: str) -> str:
    """The text as records may keep it: no home folder, no credentials in URLs."""
    own = os.path.expanduser("~").rstrip("/")
    if own not in ("", "~"):
        text = re.sub(rf"{re.escape(own)}(?![\w.-])", "~", text)
    return without_credentials(_ANY_HOME.sub("~", text))


def without_credentials(text: str) -> str:
    """The text without names and passwords, tokens and keys in its URLs."""
    text = _BEFORE_A_HOST.sub("", text)
    return _IN_A_QUERY.sub(lambda found: f"{found[1]}..." if is_secret(found[1]) else found[0], text)


def package(module: str, setting: str, install: str) -> Any:
    """A module of an optional package.

    Raises:
        ModuleNotFoundError: in one line, which setting needs it and what `pip install` is given to get it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        name = module.partition(".")[0]
        raise ModuleNotFoundError(f"{setting}: {name} is missing; pip install {install}") from None


# Whole words only.
_SECRET = re.compile(
    r"(?<![a-z])(?:token|password|passwd|passphrase|pwd|secrets?|credentials?|auth|authorization|signature|apikey"
    r"|(?:api|access|account|private|secret|ssh|encryption)[^a-z0-9]?key)(?![a-z])"
)
_ANY_HOME = re.compile(r"(?:/home/|/Users/|\b[A-Z]:\\Users\\)[^\s/\\:'\",;)]+")
# What may stand between :// and @: a name, a password, neither with a slash in it.
_BEFORE_A_HOST = re.compile(r"(?<=://)[^\s/'\"]*@")
_IN_A_QUERY = re.compile(r"([?&][\w.-]{1,80}=)[^\s&'\"#]+")
