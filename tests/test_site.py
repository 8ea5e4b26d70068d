"""The documentation builds without a warning: no broken link inside it, and every docstring can be read as markup."""

import ast
import functools
import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command import environment

import attention_zoo
from analysis.__main__ import _parser
from bench.api import planned
from bench.plan.load import Loader
from tools.pages.fill import MADE, MARK, OF_THE_SITE, filled

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# Rows of the page on the code: question, file, text with names.
WHERE = re.findall(r"^\| (?!question)(\w.+) \| (.+) \| (.+) \|$", (DOCS / "where.md").read_text(), re.MULTILINE)
pytestmark = pytest.mark.usefixtures("same_code")
RUN = [path for path in PAGES if path.parent.name == "mechanisms" or path.stem in ("choosing", "faq", "index")]


def name_of(path):
    return path.relative_to(DOCS).with_suffix("").as_posix()


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def made_once():
    """Whichever page and test asks, what is made of code and records is the same."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, make in MADE.items():
            patch.setitem(MADE, kind, functools.cache(make))
        yield


def test_help_of_create_describes_each_of_its_arguments():
    text = inspect.getdoc(attention_zoo.create)
    for name in inspect.signature(attention_zoo.create).parameters:
        assert re.search(rf"^    \**{name}: ", text, re.MULTILINE), name


def test_every_page_is_in_a_toctree():
    listed = {"index"}
    for path in PAGES:
        for entries in re.findall(r"^```\{toctree\}\n((?:[^`].*\n|\n)*)```", path.read_text(), re.MULTILINE):
            names = [line for line in entries.splitlines() if line and not line.startswith(":")]
            listed |= {name_of(path.parent / f"{name}.md") for name in names}
    assert listed == set(map(name_of, PAGES))


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_what_a_page_shows_and_links_exists_and_sphinx_can_serve_it(path):
    text = path.read_text()
    if any(mark[1] in OF_THE_SITE for mark in MARK.finditer(text)):  # all else stands in the page
        text = filled(text, name_of(path))
    pictures = re.findall(r"(?:^```\{(?:image|figure)\} |!\[[^]]*\]\()([^\s)]+)", text, re.MULTILINE)
    assert pictures or name_of(path) not in ("index", "gallery", "tutorials/read_a_figure")
    for link in [*pictures, *re.findall(r"\]\(((?!https?:|#)[^)#\s]+)", text)]:
        target = (path.parent / link).resolve()
        assert target.exists(), link
        # Sphinx takes Markdown for a page of its own.
        assert target.suffix != ".md" or target.is_relative_to(DOCS), link


def defined(body, before=""):
    """The names that statements define, those of classes' members with the class: `Store.write`."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield before + node.name
            yield from defined(node.body, f"{before}{node.name}.") if isinstance(node, ast.ClassDef) else ()
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(("question", "file", "text"), WHERE)
def test_the_page_on_the_code_names_files_and_names_that_exist(question, file, text):
    path = ROOT / file.strip("`")
    assert path.is_file()
    # The names up to the first other words are those of this file.
    names = re.findall(r"`([^`]+)`", re.split(r"; |, (?!`)", text)[0])
    assert names and set(names) <= {*defined(ast.parse(path.read_text()).body)}


def test_the_page_on_the_code_has_no_row_that_nobody_checks():
    assert len(WHERE) == (DOCS / "where.md").read_text().count("\n| ") - 1 > 30


@pytest.mark.parametrize("path", RUN, ids=name_of)
def test_the_examples_of_a_page_run(path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    examples = blocks(path.read_text(), "python")
    assert examples or path.parent.name != "mechanisms" or path.stem == "index"
    namespace = {}
    for example in examples:
        try:
            exec(compile(example, str(path), "exec"), namespace)
        except attention_zoo.UnsupportedError as error:  # another's package
            assert path.stem == "third_party", error
            pytest.skip(str(error))
    if path == DOCS / "index.md":
        assert blocks(path.read_text(), "text") == [capsys.readouterr().out]


@pytest.mark.parametrize("path", [path for path in RUN if path.stem != "index"], ids=name_of)
def test_the_commands_of_a_page_can_be_given(path):
    for line in "".join(blocks(path.read_text(), "sh")).splitlines():
        python, flag, module, *arguments = shlex.split(line)
        assert (python, flag) == ("python", "-m")
        if module == "bench":
            assert planned(Loader(), arguments).cells, line
        else:
            assert module == "analysis"
            _parser().parse_args(arguments)


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_what_a_page_takes_from_code_and_records_is_current(path):
    text = path.read_text()
    assert filled(text, name_of(path), of_the_site=False) == text, "write it again: `make docs`"


def test_a_mark_that_nobody_makes_is_a_mistake_and_a_nested_page_reaches_the_same_files():
    with pytest.raises(KeyError):
        filled("<!-- made: nothing -->", "index")
    deep, flat = (filled("<!-- made: measured performer -->", name) for name in ("mechanisms/performer", "x"))
    assert "](../gallery.md#crossover)" in deep and "](gallery.md#crossover)" in flat
    assert not any("made:" in MARK.sub("", path.read_text()) for path in PAGES)


@pytest.mark.commands
def test_the_site_builds_without_a_warning_and_has_docstrings_pictures_and_formulas(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", tmp_path / "cache", DOCS, site]
    built = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "<strong>head_dim</strong>" in (site / "reference" / "library.html").read_text()
    assert (site / "tutorials" / "first_sweep.html").exists()
    classes = (site / "reference" / "mechanisms.html").read_text()
    assert classes.count("<h2>") > 15 and "Alias for field" not in classes
    assert "<mfrac>" in (site / "mechanisms" / "performer.html").read_text()
    for page in site.rglob("*.html"):
        text = page.read_text()
        for source in re.findall(r'<img[^>]* src="([^"]+)"', text):
            assert (page.parent / source).is_file(), (page, source)
        assert not re.search(r'<(?:script|link)[^>]* (?:src|href)="https?:', text), f"{page}: needs a network"
    assert (site / "index.html").read_text().count("<img") == 1
    assert "copybutton" in (site / "index.html").read_text()
