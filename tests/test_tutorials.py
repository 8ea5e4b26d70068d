"""The tutorials run as they are copied, each in an empty folder; `bash` blocks need a cluster, and have tests there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
FILE = re.compile(r"^```\{code-block\} \w+\n:caption: (\S+)\n\n(.*?)^```", re.DOTALL | re.MULTILINE)
# The others take longer, and use nothing that these do not.
QUICK = ("add_a_benchmark", "first_sweep", "in_a_model")


def marked(page):
    return pytest.param(page, id=page.stem, marks=pytest.mark.commands if page.stem in QUICK else pytest.mark.slow)


def printed(line, out):
    """Whether a line was printed, whatever stands where the page has `…`; columns may be wider or narrower."""
    line, out = (re.sub(r"(?<=[ -])[ -]+", "", text) for text in (line, out))
    pattern = ".*".join(re.escape(part.strip(" ")) + " *" for part in line.split("…"))
    return re.search(pattern, out) is not None


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES])
def test_a_tutorial_runs_from_top_to_bottom(tmp_path, page):
    for name, text in FILE.findall(page.read_text()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": search, "PYTHONPATH": str(ROOT)}
    commands, code = ("\n".join(blocks(page, language)) for language in ("sh", "python"))
    out = ""
    for program in (["bash", "-e", "-c", commands], [sys.executable, "-c", code]):
        ran = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
        out += ran.stdout
    expected = "".join(blocks(page, "text")).splitlines()
    assert [line for line in expected if not printed(line, out)] == [], out[-3000:]


@pytest.mark.parametrize(
    ("line", "out", "shown"),
    [
        ("| ok | flash | forward … ms |", "| ok     | flash | forward 1.5 ms [disturbed: load] |", False),
        ("| ok | flash | forward … ms … |", "| ok     | flash | forward 1.5 ms [disturbed: load] |", True),
        ("| ok  | flash | forward … ms  |", "|--|\n| ok | flash  | forward 1.5 ms      |", True),
        ("| ok | flash | forward … ms |", "| ok | flash | forward\n1.5 ms |", False),
        ("sweep …: 6 cells", "sweep 0123: 7 cells", False),
    ],
)
def test_a_line_is_printed_or_not(line, out, shown):
    assert printed(line, out) == shown


def test_every_tutorial_is_in_the_index_and_runs_something():
    index = (ROOT / "docs" / "index.md").read_text()
    for page in PAGES:
        assert f"tutorials/{page.stem}\n" in index
        assert blocks(page, "sh") or blocks(page, "python")
