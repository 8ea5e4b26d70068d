"""Classifiers: against functions written out, what padding and order change, what each control sees."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from model_cases import SEQ_LEN, VOCABULARY, config, tokens
from refusals import refused
from test_independent import awakened
from test_trained_inputs import check_inputs, reading

from bench.models import build
from bench.tasks import TASKS
from bench.training import saved

CLASSES = 4
LAYERS = {"classifier": 2, "convolution": 3, "bag_of_tokens": 0}
CLASSED = [name for name, task in TASKS.items() if task.classes is not None]


def made(model="classifier", name="softmax", documents=1, awake=True, **given):
    """In float64 and in evaluation, with weights that no initialisation has."""
    name = name if model == "classifier" else "identity"
    settings = {"layers": LAYERS[model], **given.pop("settings", {})}
    one = build(config(model, name, settings=settings, **given), VOCABULARY, CLASSES, documents).eval()
    return (awakened(one) if awake else one).double()


def mask_of(*lengths):
    return torch.arange(SEQ_LEN) < torch.tensor(lengths)[:, None]


def written_out(w, read, mask, pooling):
    """What is pooled of one document, with softmax of two heads x 16 in two layers."""

    def norm(x, name):
        return F.layer_norm(x, (32,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    n = len(read)
    x = w["embedding.weight"][read] + w["positions.weight"][:n]
    for layer in ("blocks.0", "blocks.1"):
        projected = linear(norm(x, f"{layer}.attention_norm"), f"{layer}.multihead.query_key_value")
        query, key, value = projected.view(n, 3, 2, 16).permute(1, 2, 0, 3)
        scores = (query @ key.mT / 4).masked_fill(~mask, -torch.inf)
        attended = (scores.softmax(-1) @ value).transpose(0, 1).reshape(n, 32)
        x = x + linear(attended, f"{layer}.multihead.out")
        hidden = F.gelu(linear(norm(x, f"{layer}.feed_forward_norm"), f"{layer}.feed_forward.0"))
        x = x + linear(hidden, f"{layer}.feed_forward.3")
    kept = norm(x, "norm")[mask]
    return kept.sum(0) / (n if pooling == "all" else len(kept))


def head(w, pooled):
    wide = (w["head.0.weight"] @ pooled + w["head.0.bias"]).clamp_min(0)
    return w["head.2.weight"] @ wide + w["head.2.bias"]


@pytest.mark.parametrize("pooling", ["all", "tokens"])
@torch.no_grad()
def test_its_logits_are_those_of_the_functions_written_out(pooling):
    one, read, mask = made(settings={"pooling": pooling}), tokens(2), mask_of(SEQ_LEN, 7)
    w = one.state_dict()
    expected = [head(w, written_out(w, *each, pooling)) for each in zip(read, mask, strict=True)]
    torch.testing.assert_close(one(read, None, mask), torch.stack(expected), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(one(read)[0], expected[0], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_of_a_pair_both_documents_are_read_alike_and_compared():
    one, read = made(documents=2), tokens(6).view(3, 2, SEQ_LEN)
    mask = mask_of(19, 5, 7, 19, 12, 3).view(3, 2, SEQ_LEN)
    w, expected = one.state_dict(), []
    for pair, present in zip(read, mask, strict=True):
        first, second = (written_out(w, *each, "all") for each in zip(pair, present, strict=True))
        expected.append(head(w, torch.cat([first, second, first * second, first - second])))
    torch.testing.assert_close(one(read, None, mask), torch.stack(expected), rtol=1e-10, atol=1e-10)


CONTROLS = [("classifier", "softmax"), *((model, "identity") for model in LAYERS)]
every_control = pytest.mark.parametrize(("model", "name"), CONTROLS)


@every_control
@torch.no_grad()
def test_how_much_padding_there_is_changes_nothing_where_tokens_are_pooled(model, name):
    one, read = made(model, name, settings={"pooling": "tokens"}), tokens()
    alone = one(read[:, :7])
    torch.testing.assert_close(one(read, None, mask_of(7, 7, 7)), alone, rtol=0, atol=1e-10)
    one.pooling = "all"
    assert (one(read, None, mask_of(7, 7, 7)) - alone).abs().max() > 1e-3


@torch.no_grad()
def test_a_bag_has_no_order_and_an_encoder_without_attention_has_one():
    read = tokens()
    shuffled = read[:, torch.randperm(SEQ_LEN, generator=torch.Generator().manual_seed(1))]
    bag, encoder = made("bag_of_tokens"), made(name="identity")
    torch.testing.assert_close(bag(shuffled), bag(read), rtol=0, atol=1e-12)
    assert (encoder(shuffled) - encoder(read)).abs().max() > 1e-3


@pytest.mark.parametrize("dimensions", [1, 2])
@torch.no_grad()
def test_a_convolution_sees_six_neighbours_to_each_side(dimensions):
    side = 17
    n = side**dimensions
    one = made("convolution", settings={"dimensions": dimensions}, seq_len=n)
    read = tokens(1, n)
    other = read.clone()
    other[0, n // 2] = (read[0, n // 2] + 1) % VOCABULARY
    changed = (one.read(other, None) - one.read(read, None)).abs().amax(-1)[0] > 1e-9
    near = (torch.arange(side) - side // 2).abs() <= 6
    assert torch.equal(changed, near if dimensions == 1 else (near[:, None] & near).flatten())


@every_control
@torch.no_grad()
def test_what_is_hidden_is_not_seen_and_named_by_the_embedding(model, name):
    one, read, mask = made(model, name), tokens(2), mask_of(SEQ_LEN, 9)
    asked = torch.zeros_like(mask)
    asked[0, 3], asked[1, 5] = True, True
    found = one(read, asked, mask)
    other = torch.where(asked, (read + 1) % VOCABULARY, read)
    assert found.shape == (2, VOCABULARY)
    torch.testing.assert_close(one(other, asked, mask), found, rtol=0, atol=0)
    seen = one(torch.where(asked, read, (read + 1) % VOCABULARY), asked, mask)
    assert torch.equal(seen, found) == (name == "identity" and model != "convolution")


@every_control
def test_every_weight_is_of_use_to_tell_a_class(model, name):
    one = made(model, name, documents=2)
    one(tokens(4).view(2, 2, SEQ_LEN)).square().sum().backward()
    assert [key for key, p in one.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


def test_untrained_it_knows_nothing_and_begins_as_it_is_said_to():
    one = made(awake=False)
    loss = -one(tokens(8)).log_softmax(-1).mean().item()
    assert 1 <= loss / math.log(CLASSES) < 1.05
    for table in (one.embedding, one.positions):
        assert table.weight.std().item() == pytest.approx(0.02, rel=0.1)
    weight = made("convolution", awake=False).blocks[0].convolution.weight
    assert weight.std().item() == pytest.approx((32 * 5) ** -0.5, rel=0.05)


def test_only_examples_that_are_asked_for_are_answered_and_lengths_are_held_to():
    one, read = made(), tokens()
    asked = torch.tensor([[True], [False], [True]])
    torch.testing.assert_close(one(read, asked), one(read)[[0, 2]], rtol=0, atol=1e-12)
    for length in (1, SEQ_LEN + 1):
        with pytest.raises(ValueError, match=f"^seq_len={length}: must be 2 to {SEQ_LEN}$"):
            one(tokens(length=length))


SQUARE = {"name": "identity", "settings": {"dimensions": 2}}
LENGTHS, HIDDEN = {"training": {"test_lengths": [64]}}, {"training": {"pretrain_steps": 5}}


@pytest.mark.parametrize(
    ("model", "changes", "classes", "message"),
    [
        ("classifier", {}, None, "model.name=classifier: must have a task whose answers are classes"),
        ("encoder", {}, 2, "model.name=encoder: must have a task whose answers are tokens"),
        ("convolution", SQUARE, 2, "seq_len=19: must be a square number with model.dimensions=2"),
        ("classifier", LENGTHS, 2, "training.test_lengths=[64]: must be null with model.name=classifier"),
        ("encoder", HIDDEN, None, "training.pretrain_steps=5: must be 0 with model.name=encoder, its answers are "
         f"tokens anyway; a classifier names hidden tokens first (task={', '.join(CLASSED[:-1])} or {CLASSED[-1]})"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(model, changes, classes, message):
    with refused(message):
        build(config(model, **changes), VOCABULARY, classes)


def test_a_model_without_attention_gives_none(tmp_path):
    cell = config("bag_of_tokens", "identity", settings={"layers": 0}, task={"name": "retrieval"})
    saved.save(tmp_path, build(cell, 512, 2, 2), saved.Saved(cell, 512, 2, 2))
    assert saved.read(tmp_path)[1:] == (512, 2, 2)
    with pytest.raises(ValueError, match=r"inputs.model=.*: model.name=bag_of_tokens: has no attention$"):
        check_inputs(reading(tmp_path).config, tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    for key, value in (("classes", 0), ("classes", "two"), ("documents", 3)):
        (tmp_path / "config.json").write_text(json.dumps(described | {key: value}))
        with pytest.raises(ValueError, match=rf"^config.json: {key}={value!r}: must be what bench=train left there$"):
            saved.read(tmp_path)
