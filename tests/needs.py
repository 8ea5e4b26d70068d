"""What a test may need beside what the README names, and what becomes of a test that does not have it.

`@pytest.mark.needs("chromium")` skips a test where there is none, and the end of a run says so in one line for each
need. With `--extras`, as in `make test-extras`, these tests alone run, and where something is missing the run fails.
The mark `gpu` says the same of a CUDA device.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.terminal import TerminalReporter  # public from pytest 8.4 on


def programs(*names: str) -> bool:
    """Whether all of them are in the PATH."""
    return all(shutil.which(name) for name in names)


def package(name: str) -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec(name) is not None


def cuda() -> bool:
    """Whether PyTorch finds a CUDA device."""
    import torch

    return torch.cuda.is_available()


def postgresql() -> Path | None:
    """The folder of the server's programs, which Debian keeps out of the PATH; None without a client in it."""
    found = [*map(Path, filter(None, [shutil.which("initdb")])), *Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return found[0].parent if found and programs("psql") else None


def chromium() -> str | None:
    """The browser's program."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def two_cores() -> bool:
    """Whether this process may be bound to either of two."""
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) >= 2


def memory_groups() -> bool:
    """Whether this process may limit the memory of another, by control groups of version 1."""
    return os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK)


def strace() -> bool:
    """Whether it may watch a process."""
    return programs("strace") and subprocess.run(["strace", "true"], capture_output=True).returncode == 0


class Need(NamedTuple):
    """What is missing where a test is skipped, and how that is seen."""

    words: str
    there: Callable[[], object]


NEEDS = {
    "cc": Need("a C compiler", lambda: programs("cc")),
    "chromium": Need("Chromium and playwright", lambda: chromium() and package("playwright")),
    "flash_attn": Need("flash-attn", lambda: package("flash_attn")),
    "gpu": Need("a CUDA device", cuda),
    "memory_groups": Need("root and control groups of version 1", memory_groups),
    "pdflatex": Need("pdflatex", lambda: programs("pdflatex")),
    "postgresql": Need("PostgreSQL and psycopg2", lambda: postgresql() and package("psycopg2")),
    "retention": Need("retention", lambda: package("retention")),
    "root": Need("root", lambda: os.geteuid() == 0),
    "slurm": Need("Slurm and munge", lambda: programs("munged", "slurmctld", "slurmd", "sbatch")),
    "strace": Need("strace", strace),
    "two_cores": Need("two cores that processes can be bound to", two_cores),
    "xformers": Need("xformers", lambda: package("xformers")),
}


@functools.cache
def missing(name: str) -> str | None:
    """What is missing of a need, as the run's last lines say it."""
    need = NEEDS[name]
    return None if need.there() else f"needs {need.words}"


def needs_of(item: pytest.Item) -> list[str]:
    """The names of what a test needs."""
    named = [name for mark in item.iter_markers("needs") for name in mark.args]
    return named + ["gpu"] * (item.get_closest_marker("gpu") is not None)


def reason_of(report: pytest.TestReport) -> str:
    """Why a test was skipped."""
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return words.removeprefix("Skipped: ")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--extras`."""
    parser.addoption("--extras", action="store_true", help="run what needs more than the README names, or fail")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--extras`, nothing else is run."""
    for item in items:
        for name in needs_of(item):
            assert name in NEEDS, f"{item.nodeid} needs {name}: one of {', '.join(NEEDS)}"
    if config.getoption("extras"):
        others = [item for item in items if not needs_of(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if needs_of(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures, which may take what is not there."""
    for name in needs_of(item):
        if reason := missing(name):
            pytest.skip(reason)


def skipped(reporter: TerminalReporter) -> tuple[Counter[str], int]:
    """How many tests miss what, and how many were skipped for another reason, such as what a mechanism refuses."""
    reasons = Counter(reason_of(report) for report in reporter.stats.get("skipped", []))
    lacking = Counter({reason: n for reason, n in reasons.items() if reason.startswith(("needs ", "could not import"))})
    return lacking, reasons.total() - lacking.total()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With `--extras`, whatever is missing is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("extras") and reporter and skipped(reporter)[0] and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """One line for each reason."""
    lacking, others = skipped(terminalreporter)
    for reason, count in sorted(lacking.items()):
        terminalreporter.write_line(f"skipped {count}: {reason}")
    if others:
        terminalreporter.write_line(f"skipped {others}: not asked of what they would try (-rs lists them)")
