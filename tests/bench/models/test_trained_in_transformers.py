"""The folder of a trained model in transformers: the same numbers, and nothing that was not trained."""

import json

import pytest
import torch
import transformers
from model_cases import VOCABULARY, config, every_model, made, tokens
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from attention_zoo import UnsupportedError
from bench import models
from bench.models.hf import AttentionZooForCausalLM, AttentionZooForMaskedLM
from bench.training import saved

AUTO = {"transformer": transformers.AutoModelForCausalLM, "encoder": transformers.AutoModelForMaskedLM}
CLASSES = {"transformer": AttentionZooForCausalLM, "encoder": AttentionZooForMaskedLM}


def trained(folder, model="transformer", name="softmax", **given):
    """A model with weights that no seed gives, in a folder."""
    cell = config(model, name, task={"name": "reversal"}, **given)
    built = models.build(cell, VOCABULARY).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in built.parameters():
            weight.add_(0.5 * torch.randn(weight.shape, generator=generator))
    saved.save(folder, built, saved.Saved(cell, VOCABULARY))
    return built


def greedy(model, sequence, count):
    for _ in range(count):
        sequence = torch.cat([sequence, model(sequence)[:, -1].argmax(-1, keepdim=True)], 1)
    return sequence


@every_model
@torch.no_grad()
def test_transformers_loads_what_was_trained(model, name, tmp_path):
    ours = trained(tmp_path, model, name)
    expected = ours(tokens())
    loaded, info = AUTO[model].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert type(loaded) is CLASSES[model]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [CLASSES[model].__name__]
    assert not loaded.training and torch.equal(loaded(tokens()).logits, expected)


@pytest.mark.parametrize("model, name", [("transformer", "performer"), ("encoder", "polysketch")])
@torch.no_grad()
def test_what_transformers_saves_is_what_was_trained(model, name, tmp_path):
    trained(tmp_path, model, name)
    AUTO[model].from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    assert saved.read(tmp_path / "again") == saved.read(tmp_path)
    before, again = (saved.load_weights(folder) for folder in (tmp_path, tmp_path / "again"))
    assert before.keys() == again.keys() and all(torch.equal(again[key], value) for key, value in before.items())


@torch.no_grad()
@pytest.mark.parametrize("chosen", [{}, {"use_cache": True}])
def test_greedy_generation_is_that_of_the_model_on_ever_longer_sequences(chosen, tmp_path):
    ours = trained(tmp_path, name="polysketch")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    prompt = tokens(batch=8, length=5)
    sequence = loaded.generate(prompt, max_new_tokens=14, do_sample=False, **chosen)
    assert sequence.shape == (8, 19) and torch.equal(sequence, greedy(ours, prompt, 14))
    assert len(sequence[:, 5:].unique()) > 2, "a model that says one thing only shows nothing"


def test_the_loss_is_that_of_the_next_token_in_a_decoder_and_of_the_same_position_in_an_encoder(tmp_path):
    read, labels = tokens(), tokens(seed=1)
    labels[:, :4] = -100
    decoder = trained(tmp_path / "transformer")(read)[:, :-1]
    encoder = trained(tmp_path / "encoder", "encoder")(read)
    for kind, logits, targets in (("transformer", decoder, labels[:, 1:]), ("encoder", encoder, labels)):
        found = AUTO[kind].from_pretrained(tmp_path / kind)(read, labels=labels).loss
        torch.testing.assert_close(found, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))


def test_padding_and_sequences_that_are_too_long_are_refused_in_one_line(tmp_path):
    trained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    mask = torch.ones_like(tokens())
    assert torch.equal(model(tokens(), attention_mask=mask).logits, model(tokens()).logits)
    mask[0, 0] = 0
    with pytest.raises(UnsupportedError, match=r"^attention_mask: must be all ones, .*padding$"):
        model.generate(tokens(length=5), attention_mask=mask[:, :5])
    with pytest.raises(ValueError, match=r"^seq_len=20: must be at most 19$"):
        model(tokens(length=20))


def test_the_config_says_what_transformers_asks_of_one(tmp_path):
    trained(tmp_path)
    found = transformers.AutoConfig.from_pretrained(tmp_path)
    names = ("max_position_embeddings", "num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size")
    assert [getattr(found, name) for name in names] == [19, 2, 32, 2, VOCABULARY]
    assert found.cell == json.loads((tmp_path / "config.json").read_text())["cell"]


def test_a_model_of_a_config_alone_is_as_new_and_learns(tmp_path):
    trained(tmp_path)
    state = torch.get_rng_state()
    new = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(tmp_path)).eval()
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(new(tokens()).logits, made().float()(tokens()))
    new(tokens(), labels=tokens()).loss.backward()
    assert {name for name, weight in new.named_parameters() if weight.grad is None} == set()


def test_weights_that_are_missing_are_new_ones_and_are_named(tmp_path):
    trained(tmp_path)
    file, lost = tmp_path / "model.safetensors", "model.blocks.1.multihead.query_key_value.weight"
    save_file({key: value for key, value in load_file(file).items() if key != lost}, file, {"format": "pt"})
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] == {lost}
    assert torch.equal(loaded.get_parameter(lost), made().float().get_parameter(lost.removeprefix("model.")))


@torch.no_grad()
@pytest.mark.parametrize("documents", [1, 2])
def test_a_classifier_is_one_of_transformers_with_its_padding(documents, tmp_path):
    cell = config("classifier", task={"name": "listops"})
    built = models.build(cell, VOCABULARY, 3, documents).eval()
    built.norm.weight.mul_(20)  # which a new one has not
    saved.save(tmp_path, built, saved.Saved(cell, VOCABULARY, 3, documents))
    loaded, info = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()) and type(loaded).__name__ in (tmp_path / "config.json").read_text()
    read = tokens(4) if documents == 1 else tokens(8).view(4, 2, -1)
    mask = (torch.arange(read.shape[-1]) < 9).expand(read.shape)
    found = loaded(read, attention_mask=mask.long(), labels=torch.tensor([0, 1, 2, 0]))
    expected = built(read, None, mask)
    torch.testing.assert_close(found.logits, expected)
    torch.testing.assert_close(found.loss, F.cross_entropy(expected, torch.tensor([0, 1, 2, 0])))
    assert not torch.allclose(loaded(read).logits, found.logits)
