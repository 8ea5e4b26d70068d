"""The page of the zoo is current, and every row of the papers' tables has its variant."""

from collections import Counter

import pytest

import attention_zoo
from bench.plan.conf import CONF
from bench.published.papers import ROWS
from tools.pages.zoo import PAGE, page

VARIANTS = {path.stem for path in (CONF / "attention").glob("*.yaml")}


def test_the_page_is_current():
    assert PAGE.read_text() == page(), "make docs writes it anew"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.paper[:6]}-{row.row}")
def test_every_row_of_a_paper_is_a_variant_or_says_why_not(row):
    assert row.variant in VARIANTS if row.variant else row.note


def test_no_row_is_listed_twice():
    assert max(Counter((row.paper, row.where, row.row) for row in ROWS).values()) == 1


def test_every_variant_says_what_it_is():
    for name in VARIANTS:
        assert (CONF / "attention" / f"{name}.yaml").read_text().startswith("# "), name


def test_every_mechanism_and_variant_is_on_the_page():
    text = PAGE.read_text()
    for name in {*attention_zoo.list_attentions(), *VARIANTS}:
        assert f"| `{name}` |" in text
