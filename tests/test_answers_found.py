"""Ten questions of a newcomer have an answer, and what leads to it is there: links, headings, so many lines."""

import re
from pathlib import Path

import pytest

from tools.pages.fill import MARK, filled

DOCS = Path(__file__).parents[1] / "docs"
FAQ = DOCS / "faq.md"
NOTEBOOKS = DOCS / "notebooks" / "index.md"
ROW = re.compile(r"^\| (?P<question>.+\?) \| \[.+\]\((?P<link>\S+)\) \| (?P<takes>.+) \|$", re.MULTILINE)
LINK = re.compile(r"\[[^]]+\]\((?!https?:)([^)\s]+)\)")


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def sections(text):
    """The text of each section by the anchor of its heading, as GitHub and MyST make it."""
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"): body
            for title, body in zip(parts[1::2], parts[2::2], strict=True)}  # fmt: skip


def target(page, link):
    """The file that a link of a page leads to, and the section of it that it names, if it names one."""
    name, _, anchor = link.partition("#")
    path = (page.parent / name).resolve() if name else page
    assert path.is_file(), f"{page.name}: {link}"
    if not anchor:
        return path, None
    text = path.read_text()
    known = sections(without_code(text))
    if anchor not in known and MARK.search(text):
        known = sections(without_code(filled(text, path.relative_to(DOCS).with_suffix("").as_posix())))
    assert anchor in known, f"{page.name}: {link}: headings are {', '.join(known)}"
    return path, anchor


@pytest.mark.parametrize("page", [FAQ, NOTEBOOKS, DOCS / "index.md"], ids=lambda page: page.parent.name + page.stem)
def test_every_link_leads_to_a_heading_that_is_there(page):
    links = LINK.findall(without_code(page.read_text()))
    assert len(links) > 4
    for link in links:
        target(page, link)


def test_ten_questions_take_at_most_two_clicks_and_two_lines():
    rows = ROW.findall(FAQ.read_text())
    assert len(rows) == 10
    for question, link, takes in rows:
        clicks, lines = (re.search(rf"(\d) {word}", takes) for word in ("click", "line"))
        assert clicks and int(clicks[1]) <= 2 and (lines is None or int(lines[1]) <= 2), question
        path, anchor = target(FAQ, link)
        if lines:
            text = path.read_text() if anchor is None else sections(path.read_text())[anchor]
            block = re.search(r"^```(?:sh|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
            assert block, question
            used = [line for line in block[1].splitlines() if re.match("python|.*attention_zoo", line)]
            assert len(used) == int(lines[1]), question


def test_a_link_to_nothing_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Here it is\n\n```sh\n# No heading\n```\n")
    assert target(page, "#here-it-is") == (page, "here-it-is")
    for link in ("#no-heading", "other.md"):
        with pytest.raises(AssertionError):
            target(page, link)
