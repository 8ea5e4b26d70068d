"""The planted mistakes still apply, are few and of all families, and the table in the docs is of today's mistakes."""

from dataclasses import replace

import pytest
from mutation import PAGE, ROOT, Outcome, changed, families, load, mutants, page, selections

import attention_zoo

PLANTED = [mutant for family in families() for mutant in mutants(family)]


@pytest.mark.parametrize("mutant", PLANTED, ids=lambda m: f"{m.family}-{m.name}")
def test_a_mutant_changes_the_code(mutant):
    assert mutant.source() != (ROOT / mutant.file).read_text()
    compile(mutant.source(), mutant.file, "exec")


@pytest.mark.parametrize("family", families())
def test_the_tests_of_a_family_exist(family):
    given = [part for call in selections(family) for part in call if part.startswith("tests/")]
    assert given
    for file, _, name in (part.partition("::") for part in given):
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text() if name else (ROOT / file).exists()


def test_every_family_has_five_at_most():
    """A family is a module or a folder of modules that register mechanisms."""
    modules = {attention_zoo.attention_class(name).__module__ for name in attention_zoo.list_attentions()}
    of_the_zoo = {module.split(".")[-1] for module in modules if module.startswith("attention_zoo.")}
    counts = {family: len(mutants(family)) for family in families()}
    assert of_the_zoo <= set(counts)
    assert min(counts.values()) >= 1 and max(counts.values()) <= 5, counts


def test_the_table_is_that_of_the_planted_mistakes_and_all_were_caught():
    outcomes = load()
    assert [(o.family, o.name) for o in outcomes] == [(m.family, m.name) for m in PLANTED]
    assert all(outcome.verdict == "caught" for outcome in outcomes)
    assert PAGE.read_text() == page(outcomes)


def test_only_what_has_changed_is_run_again():
    mutant, other, new = PLANTED[:3]
    outcomes = [Outcome(m.family, m.name, "caught", "test", m.code()) for m in (mutant, other)]
    assert changed([mutant, other, new], outcomes) == [new]
    edited = replace(mutant, replace=f"{mutant.replace}  # another mistake")
    assert changed([edited, other], outcomes) == [edited]
    assert changed([mutant], [replace(outcomes[0], code="of another file")]) == [mutant]
