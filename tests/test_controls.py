"""The controls of examples/controls are their formulas, and the parts of mechanisms that they claim to be."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf

import attention_zoo
from attention_zoo import registry

CONTROLS = Path(__file__).parents[1] / "examples" / "controls"
NAMES = ("local_softmax", "local_polynomial", "no_other_token")
BLOCK, LENGTH = 8, 21  # two blocks and a part of one
SIZES = {"head_dim": 6, "num_heads": 2, "causal": True, "dtype": torch.float64}


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
    """The module, whose mechanisms other tests do not see."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    monkeypatch.delitem(sys.modules, "controls", raising=False)
    monkeypatch.syspath_prepend(CONTROLS)
    importlib.import_module("controls")


def make(name, **options):
    """The control with blocks of `BLOCK`, its layer norms no longer as they begin."""
    small = {} if name == "no_other_token" else {"block_size": BLOCK}
    attention = attention_zoo.create(name, **SIZES, **small, **options)
    generator = torch.Generator().manual_seed(1)
    for parameter in attention.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return attention


def inputs():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 2, LENGTH, 6, generator=generator, dtype=torch.float64)


def test_local_softmax_is_softmax_of_each_block():
    blocks = zip(*(tensor.split(BLOCK, 2) for tensor in inputs()), strict=True)
    expected = torch.cat([F.scaled_dot_product_attention(*block, is_causal=True) for block in blocks], 2)
    torch.testing.assert_close(make("local_softmax")(*inputs()), expected)


def test_local_polynomial_is_polysketch_whose_sketch_is_zero():
    control = make("local_polynomial", scale=0.3, bias=0.7)
    whole = {"sketch": "learned", "sketch_size": 4, "local": True, "block_size": BLOCK, "scale": 0.3, "bias": 0.7}
    polysketch = attention_zoo.create("polysketch", **SIZES, **whole)
    ours = polysketch(*inputs())
    for parameter in polysketch.sketch.parameters():
        parameter.data.zero_()
    for norm, given in zip(polysketch.local_norms, (control.query_norm, control.layernorm), strict=True):
        norm.load_state_dict(given.state_dict())
    torch.testing.assert_close(control(*inputs()), polysketch(*inputs()))
    assert not torch.allclose(control(*inputs()), ours)


def test_local_polynomial_is_its_formula():
    control = make("local_polynomial", scale=0.3, bias=0.7)
    query, key, value = inputs()
    expected = torch.zeros_like(value)
    for i in range(LENGTH):
        own = slice(i // BLOCK * BLOCK, i + 1)
        scores = (0.3 * control.query_norm(query[:, :, i, None]) * control.layernorm(key[:, :, own])).sum(-1)
        weights = scores**4 / (0.7 + (scores**4).sum(-1, keepdim=True))
        expected[:, :, i] = (weights[..., None] * value[:, :, own]).sum(2)
    torch.testing.assert_close(control(query, key, value), expected)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_padding_and_of_the_matrix_are_those_of_the_output(name):
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[0, 3:9], padding[1] = True, True
    query, key, value = inputs()
    attention = make(name)
    out = attention(query, key, value, padding)
    torch.testing.assert_close(attention.attention_matrix(query, key, padding) @ value, out)
    assert (out[1] == 0).all() and (out[0, :, 8] == 0).all()


def test_no_other_token_is_the_values():
    query, key, value = inputs()
    assert torch.equal(make("no_other_token")(query, key, value), value)


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_file_with_its_defaults(name):
    given = OmegaConf.to_container(OmegaConf.load(CONTROLS / "attention" / f"{name}.yaml"))
    assert given == {"name": name, **attention_zoo.hyperparameters(name)}
