"""What may be asked of a model: files, defaults, and one line for each mistake."""

import pytest
import yaml
from model_cases import VOCABULARY, config
from refusals import refused

from bench.models import build, settings
from bench.plan.conf import CONF

FILES = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((CONF / "model").glob("*.yaml"))}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_of_a_size_and_fits(name):
    given = FILES[name]
    assert set(given) == {"model", "num_heads", "head_dim", "causal"}
    assert set(given["model"]) == {"name", "layers"}
    settings(given["model"]).require_fits({**given, "attention": {"name": "identity"}, "seq_len": 64})
    first, second, *_ = (CONF / "model" / f"{name}.yaml").read_text().splitlines()
    assert first == "# @package _global_" and second.startswith("# ")


@pytest.mark.parametrize("name", ["transformer_small", "encoder", "classifier", "bag_of_tokens", "convolution"])
def test_the_first_file_of_a_model_has_its_defaults(name):
    model = FILES[name]["model"]
    assert settings(model) == settings({"name": model["name"]})


def test_sizes_are_those_of_the_papers():
    sizes = {name: (f["model"]["layers"], f["num_heads"], f["head_dim"]) for name, f in FILES.items()}
    del sizes["transformer_tiny"]
    assert sizes == {
        "encoder": (1, 1, 32),
        "classifier": (2, 2, 32),
        "bag_of_tokens": (0, 2, 32),
        "convolution": (3, 2, 32),
        "transformer_small": (12, 12, 64),
        "transformer_small_13": (13, 12, 64),
        "transformer_medium": (24, 16, 64),
        "transformer_medium_26": (26, 16, 64),
        "transformer_large": (36, 20, 64),
        "transformer_large_39": (39, 20, 64),
        "transformer_large_v1": (24, 24, 64),
        "transformer_copying": (2, 8, 16),
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "model.name=None: must be one of transformer, encoder, classifier, bag_of_tokens, convolution"),
        ({"name": "bert"}, "model.name='bert': must be one of transformer, "),
        ({"name": "transformer", "depth": 2}, "model.depth=2: unknown; known are layers, dropout, sinusoidal, short"),
        ({"name": "encoder", "dropout": 0.1}, "model.dropout=0.1: unknown; known are layers"),
        ({"name": "transformer", "layers": 0}, "model.layers=0: must be a number of at least 1"),
        ({"name": "encoder", "layers": 10**9}, "model.layers=1000000000: must be a number of at most 1000"),
        ({"name": "transformer", "dropout": 1.5}, "model.dropout=1.5: must be a number of at most 1"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(values, message):
    with refused(message):
        settings(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"causal": False}, "causal=false: must be true with model.name=transformer"),
        ({"model": "encoder", "causal": True}, "causal=true: must be false with model.name=encoder"),
        ({"head_dim": 7}, "head_dim=7: must be even, rotary positions turn pairs of coordinates"),
        ({"head_dim": 2, "num_heads": 1}, "num_heads=1: num_heads * head_dim=2 must be at least 4"),
        ({"model": "encoder", "head_dim": 7, "num_heads": 3}, "num_heads=3: num_heads * head_dim=21 must be even, "),
        (
            {"name": "performer", "attention": {"redraw_interval": 10}, "settings": {"activation_checkpointing": True}},
            "model.activation_checkpointing=true: must be false with attention.redraw_interval=10, which would count "
            "what is computed again as another forward pass",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(changes, message):
    given = config(changes.pop("model", "transformer"), changes.pop("name", "softmax"), **changes)
    with refused(message):
        build(given, VOCABULARY)


@pytest.mark.parametrize("changes", [{"head_dim": 2, "num_heads": 2}, {"model": "encoder", "head_dim": 7}])
def test_the_smallest_that_fit_are_built(changes):
    build(config(changes.pop("model", "transformer"), **changes), VOCABULARY)
