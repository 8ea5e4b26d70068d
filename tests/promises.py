"""What the tests marked `faults` promise and measure, and the page that is made of it: `docs/reliability.md`.

Every run of `-m faults` writes the rows of the tests that it ran: `make test-faults` all of them.
"""

import os
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reliability.md"
KEY = "promise"
HEAD = """# What holds when things break

Each row has a promise, what was measured, and the test that measures it: `pytest TEST` runs one test, `make
test-faults` runs all and writes this page; what is run replaces its rows, so rows may be of several days. Numbers of
repeated tests are summed; for seconds the longest is given. Tests that were not run, or failed, are marked.

| promised | measured | test |
|---|---|---|
"""

COLLECTED = pytest.StashKey[set[str]]()
Figures = dict[str, int | float]


@pytest.fixture
def promise(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Says what a test marked `faults` has measured: `promise(kills=5, none="lost")`; its docstring is the promise.

    `none` names what there was none of. Whole numbers are counts, which parametrized tests add up; floats are seconds,
    of which the longest is shown. A test calls it once, at its end.
    """
    assert request.node.get_closest_marker("faults"), "only tests marked `faults` are on the page"

    def say(none: str = "", **figures: int | float) -> None:
        text = " ".join(request.function.__doc__.split())
        request.node.user_properties.append((KEY, (text, {**figures, **dict.fromkeys(none.split(), 0)})))

    return say


class Page:
    """Collects the reports of the tests, and writes the page at the end."""

    def __init__(self) -> None:
        self.reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what was measured, and what was left out."""
        if report.when == "call" or report.skipped:
            self.reports.append(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the rows of the tests that were run whole; a run of all of them leaves no other."""
        config = session.config
        are_whole = not config.option.keyword and "[" not in "".join(config.args)
        if self.reports and config.option.markexpr == "faults" and are_whole:
            everything = config.args_source == pytest.Config.ArgsSource.TESTPATHS
            rows = ({} if everything else rows_of(PAGE)) | dict(_rows(self.reports))
            lines = (f"| {row} | `{test}` |\n" for test, row in sorted(rows.items()))
            machine = f"{os.cpu_count()} processors, {platform.system()} {platform.release().partition('-')[0]}"
            PAGE.write_text(HEAD + "".join(lines) + f"\nMeasured on {machine}.\n")


def rows_of(page: Path) -> dict[str, str]:
    """What a page says of each test."""
    text = page.read_text() if page.exists() else ""
    return {test: row for row, test in re.findall(r"^\| (.*) \| `(tests/.+::\w+)` \|$", text, re.MULTILINE)}


def pytest_configure(config: pytest.Config) -> None:
    """Workers of xdist only measure: their reports arrive where they were started."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Page())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Remember the tests that belong on the page, before `-m` takes any away."""
    session.config.stash[COLLECTED] = {_test(item.nodeid) for item in items if item.get_closest_marker("faults")}


def _test(nodeid: str) -> str:
    """A test without its parameters."""
    return nodeid.partition("[")[0]


def _rows(reports: Iterable[pytest.TestReport]) -> Iterable[tuple[str, str]]:
    by_test: dict[str, list[pytest.TestReport]] = defaultdict(list)
    for report in reports:
        by_test[_test(report.nodeid)].append(report)
    for test, own in by_test.items():
        said = [value for report in own for key, value in report.user_properties if key == KEY]
        text = said[0][0] if said else test.rpartition("test_")[2].replace("_", " ")
        skipped = {report.longrepr[2] for report in own if report.skipped and isinstance(report.longrepr, tuple)}
        measured = [*_added([figures for _, figures in said]), f"{sum(report.duration for report in own):.0f} s in all"]
        measured += [f"not measured: {reason}" for reason in skipped]
        failed = any(report.failed for report in own)
        yield test, f"{text} | {'failed' if failed else '; '.join(measured)}"


def _added(said: list[Figures]) -> Iterable[str]:
    for name in {name: None for figures in said for name in figures}:
        values = [figures[name] for figures in said if name in figures]
        words = name.replace("_", " ")
        if all(isinstance(value, int) for value in values):
            yield f"{sum(values)} {words}"
        else:
            yield f"{words} {max(values):{'.1f' if max(values) >= 1 else '.2g'}} s"
