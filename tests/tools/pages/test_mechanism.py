"""The page of a mechanism says what the code knows, whole, and every mechanism has one."""

import re

import pytest

import attention_zoo
from bench.plan.conf import CONF
from tools.pages import mechanism

HAND = ("Formula", "Cost", "Measured", "When to take it", "When not", "Example", "Paper")


def test_every_own_mechanism_has_a_page_and_no_page_is_of_another():
    pages = {path.stem for path in (mechanism.DOCS / "mechanisms").glob("*.md")}
    assert pages == {*mechanism.own(), "index", mechanism.SHARED}


@pytest.mark.parametrize("name", mechanism.own())
def test_a_page_has_all_parts_and_its_own_facts(name):
    text = (mechanism.DOCS / mechanism.page(name)).read_text()
    by_hand = re.sub(r"(<!-- made: .*? -->).*?<!-- /made -->", r"\1", text, flags=re.DOTALL)
    assert tuple(re.findall(r"^## (.+)$", by_hand, re.MULTILINE)) == HAND
    made = re.findall(r"<!-- made: (\w+) (\w+) -->", text)
    assert made == [("facts", name), ("measured", name), ("settings", name)]
    assert "$$" in text


def test_every_variant_is_on_exactly_one_page():
    parts = [mechanism.settings(name).partition("## Variants")[2] for name in mechanism.own()]
    parts += [part.partition("\n##")[0] for part in mechanism.packages().split("Variants:")[1:]]
    listed = re.findall(r"^\| `(\w+)` \| .* \| .*\S.* \|$", "\n".join(parts), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in (CONF / "attention").glob("*.yaml"))


def test_every_class_is_in_the_reference_under_a_heading_of_its_own():
    text = mechanism.classes()
    modules = [attention_zoo.attention_class(name).__module__ for name in attention_zoo.list_attentions()]
    assert text.count("autoclass::") == sum(module.startswith("attention_zoo") for module in modules)
    for name in mechanism.own():
        assert f"## {name}\n\n```{{eval-rst}}\n.. autoclass:: attention_zoo." in text
    assert ":members:" not in text
