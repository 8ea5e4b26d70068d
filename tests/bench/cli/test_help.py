"""Help says of every setting and of every name that can be chosen what it is."""

import dataclasses

import pytest

import attention_zoo
from bench import measures, models, tasks
from bench.cli.help import GROUPS, typed
from bench.common import schema
from bench.inputs import SOURCES
from bench.plan import config
from bench.plan.conf import about
from bench.plan.executors import EXECUTORS

NAMES = {
    "config": [None],
    "training": [None],
    "tracking": ["mlflow"],
    "attention": attention_zoo.list_attentions(),
    "bench": measures.list_benchmarks(),
    "inputs": list(SOURCES),
    "model": list(models.MODELS),
    "task": list(tasks.TASKS),
    "hydra.launcher": list(EXECUTORS),
}


@pytest.mark.parametrize(("group", "name"), [(group, name) for group, names in NAMES.items() for name in names])
def test_every_setting_has_a_meaning(group, name):
    meanings = config.meanings(group, name)
    own = [key for key in config.defaults(group, name) if key != "name" and group != "config"]
    own += [field.name for field in dataclasses.fields(config.Config) if group == "config"][7:]
    assert all(meanings.get(key) for key in own), [key for key in own if not meanings.get(key)]


@pytest.mark.parametrize("group", [group for group in GROUPS if "/" not in group] + ["attention"])
def test_every_file_begins_with_what_it_is(group):
    assert all(len(says) > 10 for says in about(group).values()), about(group)
    assert len(set(about(group).values())) == len(about(group))


def test_values_are_shown_as_they_are_typed():
    shown = [typed(value) for value in (True, None, 1e-3, "auto", ["forward", "backward"], [])]
    assert shown == ["true", "null", "0.001", "auto", "[forward,backward]", "[]"]


def test_the_first_sentence_of_an_argument_is_its_meaning():
    docstring = """Does it.

    Args:
        degree: p, a power of two. Degree 2
            needs none.
        scale: factor; None is
            1/sqrt(head_dim) for softmax
        sliding: tokens before it (e.g. keys) and
            after it (both). It is slow.

    Raises:
        ValueError: degree: is odd.
    """
    sliding = "tokens before it (e.g. keys) and after it (both)"
    found = schema.documented("\n".join(line.removeprefix("    ") for line in docstring.splitlines()))
    assert found == {
        "degree": "p, a power of two",
        "scale": "factor; null is 1/sqrt(head_dim) for softmax",
        "sliding": sliding,
    }
