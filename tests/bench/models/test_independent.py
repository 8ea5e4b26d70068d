"""The models against others, put together from PyTorch's own layers and functions, with the same weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from model_cases import SEQ_LEN, VOCABULARY, config, made, tokens, turned
from torch import nn

from bench.models import build, layers
from bench.models.layers import Rotary

SIZES = {"num_heads": 3, "head_dim": 8, "seq_len": 32}
WIDTH = 24


def awakened(model):
    """Weights that no initialisation has, norms and biases included, large enough for every part to matter."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * (1 if p.dim() == 1 or "embedding" in key else 0.3))
    return model


def sinusoids(length, width):
    return torch.tensor(
        [
            [(math.sin, math.cos)[i % 2](position / 10000 ** ((i - i % 2) / width)) for i in range(width)]
            for position in range(length)
        ],
        dtype=torch.float64,
    )


def convolved(x, weight):
    """Channel by channel the sum of the last few tokens, the last weight is that of the token itself."""
    size = weight.shape[-1]
    return sum(weight[:, 0, size - 1 - back] * F.pad(x, (0, 0, back, 0))[:, : x.shape[1]] for back in range(size))


def transformer(weights, read, heads=3, layers=2, sinusoidal=True):
    """Logits of Transformer++ with softmax, by functions of PyTorch."""
    n, d = read.shape[1], WIDTH

    def norm(x, name):
        return F.layer_norm(x, (d,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-5)

    x = F.embedding(read, weights["embedding.weight"]) + (sinusoids(n, d) if sinusoidal else 0)
    for layer in (f"blocks.{i}" for i in range(layers)):
        projected = norm(x, f"{layer}.attention_norm") @ weights[f"{layer}.multihead.query_key_value.weight"].T
        if (short := weights.get(f"{layer}.multihead.short_convolution.weight")) is not None:
            projected = convolved(projected, short)
        query, key, value = (part.view(-1, n, heads, d // heads).transpose(1, 2) for part in projected.split(d, -1))
        out = F.scaled_dot_product_attention(turned(query), turned(key), value, is_causal=True)
        x = x + out.transpose(1, 2).reshape(-1, n, d) @ weights[f"{layer}.multihead.out.weight"].T
        value_gate = norm(x, f"{layer}.feed_forward_norm") @ weights[f"{layer}.feed_forward.value_gate.weight"].T
        gated = value_gate[..., :64] * F.gelu(value_gate[..., 64:], approximate="tanh")
        x = x + gated @ weights[f"{layer}.feed_forward.out.weight"].T
    return norm(x, "norm") @ weights["embedding.weight"].T + weights["bias"]


@pytest.mark.parametrize(
    ("given", "training", "dtype", "tolerance"),
    [({}, True, torch.float32, 1e-5), ({"sinusoidal": False, "short_convolution": 4}, False, torch.float64, 1e-6)],
    ids=["paper-training", "rotary-convolution-evaluation"],
)
def test_a_transformer_is_that_of_other_functions(given, training, dtype, tolerance):
    settings = {"dropout": 0.0 if training else 0.3, **given}
    ours = awakened(build(config(settings=settings, **SIZES), VOCABULARY)).to(dtype).train(training)
    weights = {key: tensor.double() for key, tensor in ours.state_dict().items() if isinstance(tensor, torch.Tensor)}
    with torch.no_grad():
        for length in (1, 7, 32):
            read = tokens(length=length)
            expected = transformer(weights, read, sinusoidal=not given)
            scale = expected.abs().max()
            torch.testing.assert_close(ours(read).double() / scale, expected / scale, rtol=0, atol=tolerance)


def test_a_short_convolution_begins_as_the_identity():
    plain, convolving = (made(settings={"short_convolution": size}, **SIZES) for size in (0, 4))
    torch.testing.assert_close(convolving(tokens(length=32)), plain(tokens(length=32)))


def test_an_encoder_is_that_of_torch_nn():
    ours = awakened(build(config("encoder", **SIZES), VOCABULARY)).double()
    layer = nn.TransformerEncoderLayer(WIDTH, 3, 4 * WIDTH, dropout=0, activation="gelu", batch_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double()
    with torch.no_grad():
        for theirs, block in zip(blocks.layers, ours.blocks, strict=True):
            theirs.self_attn.in_proj_weight.copy_(block.multihead.query_key_value.weight)
            theirs.self_attn.in_proj_bias.copy_(block.multihead.query_key_value.bias)
            theirs.self_attn.out_proj.load_state_dict(block.multihead.out.state_dict())
            theirs.linear1.load_state_dict(block.feed_forward[0].state_dict())
            theirs.linear2.load_state_dict(block.feed_forward[2].state_dict())
            theirs.norm1.load_state_dict(block.attention_norm.state_dict())
            theirs.norm2.load_state_dict(block.feed_forward_norm.state_dict())
        read = tokens(length=20)
        hidden = blocks(F.embedding(read, ours.embedding.weight) + sinusoids(20, WIDTH))
        linear, _, norm = ours.final
        expected = norm(F.gelu(linear(hidden))) @ ours.unembedding.weight.T
        torch.testing.assert_close(ours(read), expected, rtol=0, atol=1e-5)


def test_dropout_of_everything_leaves_the_embedding():
    model = made(settings={"dropout": 1.0}).train()
    read = tokens()
    x = F.embedding(read, model.embedding.weight) + sinusoids(SEQ_LEN, 32)
    torch.testing.assert_close(model(read), model.norm(x) @ model.embedding.weight.T, rtol=0, atol=1e-6)
    assert not torch.allclose(model.eval()(read), model.norm(x) @ model.embedding.weight.T, atol=1e-2)


def test_the_embedding_is_tied():
    """A token that is not read learns too: from the logits."""
    model, read = made(), tokens() % (VOCABULARY - 1)
    model(read)[..., -1].sum().backward()
    assert model.embedding.weight.grad[-1].abs().sum() > 0
    assert "unembedding.weight" not in model.state_dict()


@pytest.mark.parametrize("model", ["transformer", "encoder"])
def test_logits_of_what_is_asked_are_those_of_everything_and_no_more_than_seq_len_can_be_read(model):
    learner, read = made(model), tokens()
    asked = read % 3 == 1
    torch.testing.assert_close(learner(read, asked), learner(read)[asked], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match=f"^seq_len={SEQ_LEN + 1}: must be at most {SEQ_LEN}$"):
        learner(tokens(length=SEQ_LEN + 1))


@pytest.mark.parametrize("model", ["transformer", "encoder"])
def test_weights_begin_as_they_are_said_to(model):
    weights = build(config(model, settings={"layers": 1}, num_heads=8, head_dim=32), 1000).state_dict()
    for key, tensor in weights.items():
        before_logits = key.startswith(("norm", "final.2"))
        if "norm" in key or before_logits or key.endswith("bias"):
            gain = 0.2 if before_logits else 1.0
            assert torch.equal(tensor, torch.full_like(tensor, gain if key.endswith("weight") else 0.0)), key
        else:
            std = tensor.shape[1] ** -0.5
            assert tensor.std().item() == pytest.approx(std, rel=0.02), key
            assert abs(tensor.mean().item()) < 0.02 * std, key


def test_mechanisms_and_weights_share_no_numbers():
    """Both are drawn from one seed: the first matrix of a sketch must not be the first rows of the embedding."""
    model = build(config(name="polysketch", settings={"layers": 1}), VOCABULARY)
    sketch = model.blocks[0].multihead.attention.sketch.matrices[0, :, 0].flatten()
    embedding = model.embedding.weight.flatten()[: len(sketch)]
    assert len(sketch) == 128
    assert abs(torch.corrcoef(torch.stack([sketch, embedding]))[0, 1].item()) < 0.4  # 0 +- 0.09


def test_far_positions_are_as_exact_as_near_ones():
    """The fastest coordinate at position 32,767, against Python's own sine; in float32 the slower ones would be off."""
    far = 2**15 - 1
    added, rotary = layers.sinusoids(far + 1, 8), Rotary(far + 1, 8)
    for pair in range(4):
        angle = far / 10000 ** (2 * pair / 8)
        expected = torch.tensor([math.sin(angle), math.cos(angle)])
        for found in (added[far, 2 * pair : 2 * pair + 2], torch.stack([rotary.sin[far, pair], rotary.cos[far, pair]])):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
