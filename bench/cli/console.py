"""`attention-zoo COMMAND ...`: the suite's commands under one name; each also works with `python -m`.

Unlike with `python -m`, files in the current folder cannot hide a package.
"""

import importlib.metadata
import os
import re
import runpy
import sys
from collections.abc import Iterator

from bench.plan.conf import about

PACKAGES = ("attention_zoo", "bench", "analysis")
# How a file in conf/attention names the package that it needs.
PACKAGE = re.compile(r"package ([a-z][\w-]*)|the (?!package)([a-z][\w-]*) package")
# The module to run with the command's arguments, the extra that it needs besides torch, and a description.
COMMANDS = {
    "bench": ("bench", "bench", "measure: one cell, a sweep or an experiment"),
    "figures": ("analysis", "analysis", "draw all figures that the records support"),
    "tables": ("analysis", "analysis", "write the papers' tables that the records support"),
    "ui": ("bench.tracking.ui", "bench,tracking", "show the runs in MLflow, on this machine only"),
    "status": ("bench.status", "bench", "say how a sweep goes, whoever runs it"),
    "wait": ("bench.cli.wait", "bench", "wait for the jobs of a sweep"),
    "merge": ("bench.merge", "bench", "add the records of other folders to one"),
}
_LINES = "\n".join(f"  {name:8} {says}" for name, (_, _, says) in COMMANDS.items())
USAGE = f"""usage: attention-zoo COMMAND ...

Efficient attention mechanisms, and a benchmark suite that compares them honestly.

{_LINES}
  list     say what every mechanism and variant is, and which package it lacks here

Examples:
  attention-zoo bench attention=flash,performer seq_len=1024,4096 num_heads=4
  attention-zoo figures --results runs
  eval "$(attention-zoo -sc install=bash)"     completion of the shell; or fish
  attention-zoo bench --help; each command has its own --help; --version says which version this is"""


def main() -> int:
    """Run one command; returns the exit status."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(USAGE)
    elif name == "--version":
        print(f"attention-zoo {importlib.metadata.version('attention-zoo')}")
    elif name == "list" and not rest:
        try:
            print("\n".join(_mechanisms()), flush=True)
        except BrokenPipeError:  # `head` has read enough, and Python writes once more when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    elif name == "-sc":  # shell completion; Hydra only supports programs without subcommands
        from bench.cli import main as application

        os.environ["COMP_LINE"] = os.environ.get("COMP_LINE", "").replace(" bench ", " ", 1)
        application.main()
    elif name in COMMANDS:
        return _run(name, rest)
    else:
        known = f"must be one of {', '.join((*COMMANDS, 'list'))}"
        return _refused(f"list {' '.join(rest)}: must be `list` alone" if name == "list" else f"{name}: {known}")
    return 0


def _mechanisms() -> Iterator[str]:
    """A line for each mechanism and variant: its description, and its package if that is not installed."""
    for name, says in about("attention").items():
        found = PACKAGE.search(says)
        package = found and (found[1] or found[2])
        is_missing = package and not any(importlib.metadata.distributions(name=package))
        yield f"{name:37}{says}" + (f" [not installed: pip install {package}]" if is_missing else "")


def _run(name: str, rest: list[str]) -> int:
    """Run a command's module as `python -m` does; the module ends the process."""
    module, extra, _ = COMMANDS[name]
    sys.argv = [sys.argv[0], *([name] if module == "analysis" else []), *rest]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in PACKAGES:
            raise
        return _refused(f"{error.name}: not installed; in a checkout of attention-zoo: pip install -e '.[{extra}]'")
    return 0


def _refused(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
