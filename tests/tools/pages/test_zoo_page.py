"""The page of the zoo is current, and every row of the papers' tables has its variant."""

from collections import Counter

from bench.plan.conf import CONF
from bench.published.papers import ROWS
from tools.pages.zoo import PAGE, page

VARIANTS = {path.stem for path in (CONF / "attention").glob("*.yaml")}


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "make docs writes it anew"


def test_every_row_of_a_paper_is_a_variant_or_says_why_not():
    assert [row for row in ROWS if not (row.variant in VARIANTS if row.variant else row.note)] == []


def test_no_row_is_listed_twice():
    assert max(Counter((row.paper, row.where, row.row) for row in ROWS).values()) == 1
