"""The page of parameter counts is current, and the counts are the papers'."""

from types import SimpleNamespace

import pytest

from bench.models import build
from tools.pages import parameters
from tools.pages.parameters import PAGE, counts, page


def of_two_layers(config, vocabulary):
    """The parameters of a model, of which two layers are built: the others are like the second."""
    layers = config["model"]["layers"]
    model = build({**config, "model": {**config["model"], "layers": 2}}, vocabulary)
    return SimpleNamespace(parameters=lambda: [*model.parameters(), *[*model.blocks[1].parameters()] * (layers - 2)])


@pytest.fixture(scope="module")
def counted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parameters, "build", of_two_layers)
        return list(counts())


def test_the_page_is_current(counted, monkeypatch):
    monkeypatch.setattr(parameters, "counts", lambda: iter(counted))
    assert PAGE.read_text() == page(), "make docs writes it anew"


def test_counts_are_the_papers_but_where_one_contradicts_itself(counted):
    off = {(c.model, c.mechanism) for c in counted if abs(c.difference) > 0.5}
    assert off == {("transformer_medium", name) for name in ("softmax", "polynomial_p4", "polynomial_p8")}
    assert all(c.note for c in counted if (c.model, c.mechanism) in off)
    assert {(c.model, c.paper) for c in counted if c.note} == {("transformer_medium", 337)}


def test_a_count_is_the_closed_form(counted):
    """V d + V + 2 d, and in each layer 4 d^2 + 3 d hid + 4 d; a learned sketch has 2 (8 h r + 24 r^2 + 2 h + 2 r)."""
    ours = {(c.model, c.mechanism): c.ours for c in counted}
    layers = {"small": (12, 768, 2048), "medium": (24, 1024, 2728), "large": (36, 1280, 3408)}
    for size, (count, d, hidden) in layers.items():
        plain = 32000 * d + 32000 + 2 * d + count * (4 * d**2 + 3 * d * hidden + 4 * d)
        assert ours[f"transformer_{size}", "softmax"] == plain
        if size == "small":
            assert parameters.parameters("transformer_small", "softmax", 32000) == plain, "with every layer built"
    for r in (32, 64):
        sketches = 12 * 2 * (8 * 64 * r + 24 * r**2 + 2 * 64 + 2 * r)
        assert ours["transformer_small", f"polysketch_learned_r{r}"] == ours["transformer_small", "softmax"] + sketches
