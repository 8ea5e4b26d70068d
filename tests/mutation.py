"""Plants one mistake after the other in a copy of the library, and sees whether the tests of its family notice.

`python tests/mutation.py [family ...]` runs the mutants of `tests/mutants/FAMILY.toml`, at most five a family, and
writes `tests/mutants/outcomes.json` and the table `docs/mutants.md`; with `--changed` only those whose code or text is
not what it was when their outcome was written. A family's tests are `tests/attention_zoo/test_FAMILY.py`, its cases in
the contract tests and, where its file says `fused = true`, those in the tests of the fast paths, unless its file names
others.
"""

import argparse
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from tqdm import tqdm

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "tests" / "mutants"
OUTCOMES = MUTANTS / "outcomes.json"
PAGE = ROOT / "docs" / "mutants.md"
TIMEOUT_S = 600
WORKERS = 2


@dataclass(frozen=True)
class Mutant:
    """One planted mistake: `find`, which occurs exactly once in `file`, becomes `replace`."""

    family: str
    name: str
    file: str
    find: str
    replace: str

    def source(self) -> str:
        """The file's text with the mistake in it."""
        text = (ROOT / self.file).read_text()
        if (count := text.count(self.find)) != 1:
            raise ValueError(f"{self.family}: {self.name!r}: `find` occurs {count} times in {self.file}")
        return text.replace(self.find, self.replace)

    def code(self) -> str:
        """A hash of the file with the mistake in it: another one where the file or the mistake has changed."""
        return hashlib.sha256(self.source().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Outcome:
    """What the tests said: `caught` with the first failing test, `survived`, or `broken`: could not be run.

    `code` is that of the mutant when it was run; empty where that was not written down.
    """

    family: str
    name: str
    verdict: str
    test: str
    code: str = ""


def families() -> list[str]:
    """The families that have mutants."""
    return sorted(path.stem for path in MUTANTS.glob("*.toml"))


def mutants(family: str) -> list[Mutant]:
    """The planted mistakes of a family."""
    listed = tomllib.loads((MUTANTS / f"{family}.toml").read_text())["mutant"]
    return [Mutant(family, **one) for one in listed]


def try_mutant(mutant: Mutant) -> Outcome:
    """Plant the mistake in a copy and run the tests."""
    return Outcome(mutant.family, mutant.name, *run_tests(mutant.family, mutant), mutant.code())


def run_tests(family: str, mutant: Mutant | None = None) -> tuple[str, str]:
    """The verdict of the family's tests on a copy of the library, and the first test that failed.

    For a process of its own, which has not imported the library yet.
    """
    with tempfile.TemporaryDirectory() as folder:
        for part in ("attention_zoo", "analysis", "bench", "conf", "examples", "tests", "tools"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        if mutant is not None:
            (Path(folder) / mutant.file).write_text(mutant.source())
        os.chdir(folder)
        sys.dont_write_bytecode = True
        signal.signal(signal.SIGPROF, _out_of_time)
        # Of the processor: a process that was stopped for a while has not caught a mistake.
        signal.setitimer(signal.ITIMER_PROF, TIMEOUT_S)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return _run_selected(selections(family))


def selections(family: str) -> list[list[str]]:
    """What is given to pytest, one call after the other: the family's own tests, then its cases in the shared ones."""
    settings = tomllib.loads((MUTANTS / f"{family}.toml").read_text())
    if "tests" in settings:
        return [settings["tests"]]
    selected = [[f"tests/attention_zoo/test_{family}.py"]]
    if settings.get("fused", False):
        # Without those that compile: they take seconds each.
        chosen = f"([{family}- or -{family}-) and not compiler"
        selected.append(["tests/attention_zoo/test_fused.py", "-k", chosen])
    if names := settings.get("contract", [family]):
        # In a test's id `-` or `]` follows a name: polynomial must not select polynomial_square.
        contract = " or ".join(f"[{name}{end}" for name in names for end in "-]")
        files = ("test_contract", "test_contract_gradients", "test_contract_refusals")
        selected.append([*(f"tests/attention_zoo/{file}.py" for file in files), "-k", contract])
    return selected


def _run_selected(selected: list[list[str]]) -> tuple[str, str]:
    for arguments in selected:
        first = FirstFailure()
        command = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow and not gpu", *arguments]
        code = pytest.main(command, plugins=[first])
        if code == pytest.ExitCode.TESTS_FAILED and first.failed:
            return "caught", first.failed.removeprefix("tests/attention_zoo/")
        if code != pytest.ExitCode.OK:
            return "broken", first.error or code.name
    return "survived", ""


class FirstFailure:
    """A pytest plugin that remembers which test failed, and what could not even be collected or set up."""

    failed = error = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A phase of a test is over."""
        if report.failed and report.when == "call":
            self.failed = self.failed or report.nodeid
        elif report.failed:
            self.error = self.error or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module was collected."""
        if report.failed:
            self.error = self.error or report.nodeid


def _out_of_time(*_: object) -> None:
    raise TimeoutError(f"longer than {TIMEOUT_S} s")


def try_unchanged(family: str) -> None:
    """A suite that fails without a mutant catches nothing.

    Raises:
        RuntimeError: it fails.
    """
    verdict, test = run_tests(family)
    if verdict != "survived":
        raise RuntimeError(f"{family}: its tests fail without a mutant ({verdict}: {test})")


def page(outcomes: Sequence[Outcome]) -> str:
    """The table of `docs/mutants.md`."""
    planted = Counter(outcome.family for outcome in outcomes)
    caught = Counter(outcome.family for outcome in outcomes if outcome.verdict == "caught")
    lines = [
        "# Planted mistakes",
        "",
        "`make mutants` plants one mistake at a time in a copy of the library and runs the tests of its family;",
        "at least one must fail. The mistakes, and the list of tests that noticed each (`outcomes.json`), are in",
        "`tests/mutants/`. `make mutants CHANGED=1` runs only those whose code has changed since.",
        "",
        f"{sum(caught.values())} of {len(outcomes)} caught.",
        "",
        "| family | planted | caught |",
        "|---|---|---|",
        *(f"| {family} | {count} | {caught[family]} |" for family, count in sorted(planted.items())),
    ]
    return "\n".join(lines) + "\n"


def load() -> list[Outcome]:
    """The outcomes of the last run."""
    return [Outcome(**one) for one in json.loads(OUTCOMES.read_text())] if OUTCOMES.exists() else []


def save(outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes, a line each, and the page."""
    OUTCOMES.write_text("[\n" + ",\n".join(json.dumps(asdict(outcome)) for outcome in outcomes) + "\n]\n")
    PAGE.write_text(page(outcomes))


def changed(planted: Sequence[Mutant], outcomes: Sequence[Outcome]) -> list[Mutant]:
    """The mutants that were never run, or not with the code that they change now."""
    known = {(outcome.family, outcome.name): outcome.code for outcome in outcomes}
    return [mutant for mutant in planted if known.get((mutant.family, mutant.name)) != mutant.code()]


def processes() -> ProcessPoolExecutor:
    """A fresh process for every task, forked from one that has imported what takes seconds, and not the library."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers"])
    return ProcessPoolExecutor(WORKERS, mp_context=context, max_tasks_per_child=1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the mutants of the chosen families, all by default; 1 if any was not caught."""
    parser = argparse.ArgumentParser(prog="python tests/mutation.py")
    parser.add_argument("families", nargs="*", metavar="family", help="all by default")
    parser.add_argument("--changed", action="store_true", help="only those whose code has changed since they were run")
    options = parser.parse_args(arguments)
    if unknown := set(options.families) - set(families()):
        parser.error(f"{', '.join(sorted(unknown))}: must be of {', '.join(families())}")
    before = load()
    every = [mutant for family in families() for mutant in mutants(family)]
    planted = [mutant for mutant in every if mutant.family in options.families or not options.families]
    if options.changed:
        planted = changed(planted, before)
    own = sorted({mutant.family for mutant in planted})
    with processes() as pool:
        list(tqdm(pool.map(try_unchanged, own), total=len(own), desc="unchanged"))
        outcomes = list(tqdm(pool.map(try_mutant, planted), total=len(planted), desc="mutants"))
    newest = {(outcome.family, outcome.name): outcome for outcome in [*before, *outcomes]}
    save([newest[key] for mutant in every if (key := (mutant.family, mutant.name)) in newest])
    missed = [outcome for outcome in outcomes if outcome.verdict != "caught"]
    for outcome in missed:
        print(f"{outcome.family}: {outcome.name}: {outcome.verdict} {outcome.test}")
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} caught; {PAGE.relative_to(ROOT)}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
