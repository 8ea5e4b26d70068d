"""The numbers of the README are those of the records in the repository."""

from tools.pages import readme


def test_what_the_readme_says_is_made_from_the_records_whatever_stands_there():
    text = readme.PAGE.read_text()
    begin, end = text.index("<!-- answer -->"), text.index("<!-- /answer -->")
    made = readme.page(text[:begin] + "<!-- answer -->\nold\n" + text[end:])
    assert made == text, "write it again with `python -m tools.pages.readme`"


def test_the_readme_is_short_below_its_first_screen():
    _, below = readme.PAGE.read_text().split("\n## Try it\n")
    assert len(below.splitlines()) <= 150
