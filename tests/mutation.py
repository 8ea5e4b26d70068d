"""Plants one mistake after the other in a copy of the library, and sees whether the tests of its family notice.

`python tests/mutation.py [family ...]` runs the mutants of `tests/mutants/FAMILY.toml` and writes the table
`docs/mutants.md`. A family's tests are `tests/attention_zoo/test_FAMILY.py` and its cases in the contract tests.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tqdm import tqdm

ROOT = Path(__file__).parents[1]
MUTANTS = ROOT / "tests" / "mutants"
RESULTS = ROOT / "docs" / "mutants.json"
PAGE = ROOT / "docs" / "mutants.md"
TIMEOUT_S = 300
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
        if text.count(self.find) != 1:
            raise ValueError(
                f"{self.family}: {self.name!r}: `find` occurs {text.count(self.find)} times in {self.file}"
            )
        return text.replace(self.find, self.replace)


@dataclass(frozen=True)
class Outcome:
    """What the tests said: `caught` with the first failing test, `timeout` (caught too), `survived` or `broken`."""

    family: str
    name: str
    verdict: str
    test: str


def families() -> list[str]:
    """The families that have mutants."""
    return sorted(path.stem for path in MUTANTS.glob("*.toml"))


def mutants(family: str) -> list[Mutant]:
    """The planted mistakes of a family."""
    listed = tomllib.loads((MUTANTS / f"{family}.toml").read_text())["mutant"]
    return [Mutant(family, **one) for one in listed]


@contextmanager
def copied_library() -> Iterator[Path]:
    """A checkout of its own, without records and notebooks."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("attention_zoo", "tests"):
            shutil.copytree(ROOT / part, Path(folder) / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        yield Path(folder)


def run_tests(folder: Path, family: str) -> tuple[str, str]:
    """The verdict of the family's tests on the library in `folder`, and the first test that failed."""
    names = tomllib.loads((MUTANTS / f"{family}.toml").read_text()).get("contract", [family])
    # A name is followed by `-` or `]` in a test's id: polynomial must not select polynomial_square.
    contract = " or ".join(f"[{name}{end}" for name in names for end in "-]")
    own, shared = f"tests/attention_zoo/test_{family}.py", "tests/attention_zoo/test_contract.py"
    for selected in ([own], [shared, "-k", contract]) if names else ([own],):
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [*command, *selected], cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            return "timeout", ""
        failed = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
        if done.returncode == 1 and failed.startswith("FAILED"):
            return "caught", failed.split(" ")[1].removeprefix("tests/attention_zoo/")
        if done.returncode != 0:
            return "broken", failed or done.stdout[-200:] or done.stderr[-200:]
    return "survived", ""


def try_mutant(mutant: Mutant) -> Outcome:
    """Plant the mistake and run the tests."""
    with copied_library() as folder:
        (folder / mutant.file).write_text(mutant.source())
        return Outcome(mutant.family, mutant.name, *run_tests(folder, mutant.family))


def try_unchanged(family: str) -> None:
    """A suite that fails without a mutant catches nothing.

    Raises:
        SystemExit: it fails.
    """
    with copied_library() as folder:
        verdict, test = run_tests(folder, family)
    if verdict != "survived":
        raise SystemExit(f"{family}: its tests fail without a mutant ({verdict}: {test})")


def page(outcomes: list[Outcome]) -> str:
    """The table of `docs/mutants.md`."""
    by_family = Counter(outcome.family for outcome in outcomes)
    caught = Counter(outcome.family for outcome in outcomes if outcome.verdict in ("caught", "timeout"))
    lines = [
        "# Planted mistakes",
        "",
        "Each row is one mistake planted in a copy of the library (`tests/mutants/`), and the first test that failed.",
        "Made by `make mutants`; the test suite checks that the rows are those that are planted today.",
        "",
        f"{sum(caught.values())} of {len(outcomes)} caught.",
        "",
        "| family | mistake | verdict | first failing test |",
        "|---|---|---|---|",
    ]
    for outcome in outcomes:
        test = f"`{outcome.test}`" if outcome.test else ""
        lines.append(f"| {outcome.family} | {outcome.name} | {outcome.verdict} | {test} |".replace("  ", " "))
    lines += ["", "| family | planted | caught |", "|---|---|---|"]
    lines += [f"| {family} | {count} | {caught[family]} |" for family, count in sorted(by_family.items())]
    return "\n".join(lines) + "\n"


def load() -> list[Outcome]:
    """The outcomes of the last run."""
    return [Outcome(**one) for one in json.loads(RESULTS.read_text())] if RESULTS.exists() else []


def save(outcomes: list[Outcome]) -> None:
    """Write results and page."""
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n")
    PAGE.write_text(page(outcomes))


def main(chosen: list[str]) -> int:
    """Run the mutants of the chosen families, all by default; 1 if any was not caught."""
    chosen = chosen or families()
    planted = [mutant for family in chosen for mutant in mutants(family)]
    with ThreadPoolExecutor(WORKERS) as pool:
        list(tqdm(pool.map(try_unchanged, chosen), total=len(chosen), desc="unchanged"))
        outcomes = list(tqdm(pool.map(try_mutant, planted), total=len(planted), desc="mutants"))
    others = [outcome for outcome in load() if outcome.family not in chosen and outcome.family in families()]
    save(sorted([*others, *outcomes], key=lambda outcome: outcome.family))
    missed = [outcome for outcome in outcomes if outcome.verdict not in ("caught", "timeout")]
    for outcome in missed:
        print(f"{outcome.family}: {outcome.name}: {outcome.verdict} {outcome.test}")
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} caught; {PAGE.relative_to(ROOT)}")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
