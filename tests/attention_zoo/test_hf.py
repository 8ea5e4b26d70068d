"""Mechanisms in models of transformers: exact where they are softmax, refused where a model asks for more."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch
import transformers
from hf_models import HEAD_DIM, HEADS, LAYERS, LENGTH, assert_same, batch_of, output, swapped, tiny, tokens
from small import LargestTensor, maker, sized
from torch import nn
from zoo_cases import NAMES, takes_causal

import attention_zoo
from attention_zoo import UnsupportedError, hf
from attention_zoo.hf.masks import attend

draw = sized(LENGTH, heads=HEADS, h=HEAD_DIM)
performer = maker("performer", head_dim=HEAD_DIM, num_heads=HEADS, causal=True)


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
@pytest.mark.parametrize("shared", [[0, 1, 2, 3], [0, 0, 1, 1]])
def test_softmax_is_the_formula_in_the_layout_of_transformers(name, scaling, shared):
    """Neighbouring heads of the query may share one of keys and values."""
    query, key, value = qkv(key_heads=shared[-1] + 1)
    out = call(name, Layer(), query, key, value, scaling=scaling)
    assert out.shape == (2, LENGTH, HEADS, HEAD_DIM) and out.is_contiguous()
    torch.testing.assert_close(out, exact(query, key[:, shared], value[:, shared], scaling or HEAD_DIM**-0.5, LOWER))


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
    for name in ("performer", "polysketch", "linear", "bigbird", "informer", "nystromformer"):
        with pytest.raises(UnsupportedError, match=rf"^dropout=0.1: {name} drops no attention weights; set the model"):
            call(name, Layer(is_causal=False), *qkv(), dropout=0.1)
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


@pytest.mark.parametrize("queries", [1, 4])
def test_queries_after_cached_keys_see_all_of_them(queries):
    query, key, value = qkv()
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[1, :3] = False
    expected = call("softmax", Layer(), query, key, value, keep)[:, -queries:]
    dense = (LOWER & keep[:, None, None])[:, :, -queries:]
    for mask in (keep, dense):
        torch.testing.assert_close(call("softmax", Layer(), query[:, :, -queries:], key, value, mask), expected)
    if queries == 1:  # a single query is the last
        all_seen = call("softmax", Layer(), query, key, value)[:, -1:]
        torch.testing.assert_close(call("softmax", Layer(), query[:, :, -1:], key, value), all_seen)
    else:
        with pytest.raises(UnsupportedError, match="without a mask it is open"):
            call("softmax", Layer(), query[:, :, -queries:], key, value)


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
    own = maker(name.replace("fused", "flash"), head_dim=HEAD_DIM, num_heads=HEADS, max_seq_len=64)
    call(name, layer, *given)
    layer.train()
    for probability in (0.4, 0.0):
        torch.manual_seed(0)
        expected = own(dropout=probability).train()(*given)
        torch.manual_seed(0)
        assert torch.equal(call(name, layer, *given, dropout=probability), expected.transpose(1, 2))


# --- Names ----------------------------------------------------------------------------------------


def test_a_name_has_one_meaning():
    for _ in range(2):
        hf.register("features_16", attention="performer", num_features=16)
    for other in ({"num_features": 8}, {"num_features": 16, "seed": 1}):
        with pytest.raises(ValueError, match=r"^name='features_16': must be new: it is performer {'num_features': 16}"):
            hf.register("features_16", attention="performer", **other)
    hf.register()
    hf.register("flash")
    with pytest.raises(ValueError, match=r"seed 0; a variant has attention='performer' and a name of its own$"):
        hf.register("performer", num_features=3)


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


def test_without_transformers_it_says_what_to_install(monkeypatch):
    """The library itself does not import it: test_registry.py."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "attention_zoo.hf")
    with pytest.raises(ModuleNotFoundError) as error:
        importlib.import_module("attention_zoo.hf")
    assert str(error.value) == "attention_zoo.hf: transformers is missing; pip install 'transformers>=5.23,<6'"


# --- In models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind, padding",
    [("vit", None), ("gpt2", "left"), ("bert", None), ("bart", "left")]
    + [("llama", padding) for padding in (None, "none", "right", "left")],
)
def test_softmax_leaves_a_model_as_it_was(kind, padding):
    model, inputs = tiny(kind), batch_of(kind, padding)
    expected = output(model, inputs)
    for name in ("softmax", "fused"):
        assert_same(output(swapped(model, name), inputs), expected)
    moved = output(swapped(model, "v_mean"), inputs)
    assert (moved - expected).abs().max() > 0.1 * expected.abs().max(), "attention is too flat to tell anything"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_every_mechanism_runs_in_a_model_or_says_why_not(name, kind):
    info, causal = attention_zoo.info(name), kind == "llama"
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.bfloat16
    model, inputs = tiny(kind, num_hidden_layers=1).to(dtype), batch_of(kind, "right")
    implementation = name.replace("flash", "fused")
    if not (takes_causal(name) if causal else info.bidirectional):
        with pytest.raises(UnsupportedError, match=f"causal={str(causal).lower()}: {name}"):
            hf.attach(model, implementation)
        assert model.config._attn_implementation == "eager"
        return
    (made,) = hf.attach(model, implementation)
    assert (made.info.name, made.max_seq_len, made.causal) == (name, 64, causal)
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
    model = tiny("modernbert", num_hidden_layers=2, **({"local_attention": 4} if layers else {}))
    hf.attach(model, "fused", layers=layers)
    compiled(model, batch_of("modernbert", "right"))


def test_a_model_without_a_mask_is_one_graph_that_refuses_packed_sequences_as_it_runs():
    model = tiny("llama", num_hidden_layers=1)
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


@pytest.mark.parametrize("name", ["linear", "polynomial"])
def test_what_would_have_to_forget_tokens_is_refused(name):
    model = tiny("llama", head="ForCausalLM")
    hf.attach(model, name)
    # From transformers 5.24 on, it refuses by itself.
    words = "crop: a state cannot forget tokens|requires a cache that can be cropped"
    with pytest.raises((UnsupportedError, ValueError), match=words):
        model.generate(torch.arange(6)[None] % 3 + 1, max_new_tokens=6, prompt_lookup_num_tokens=2, do_sample=False)


@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("name", ["softmax", "flash"])
def test_going_on_from_cached_keys_copies_no_keys_for_each_query(name, impl):
    """The last 40 queries see all 100 keys up to their own; a mask of so many by so many is the largest tensor."""
    queries, keys, width = 40, 100, 64
    attention = maker(name, head_dim=width, num_heads=HEADS, causal=True, impl=impl)()
    query, key, value = sized(keys, heads=HEADS, h=width)()
    whole, visible = attention(query, key, value)[:, :, -queries:], torch.ones(queries, keys, dtype=torch.bool)
    mask = visible.tril(keys - queries).expand(2, 1, queries, keys)
    with LargestTensor() as largest:
        out = attend(attention, query[:, :, -queries:], key, value, mask)
    torch.testing.assert_close(out, whole)
    assert largest.entries <= max(key.numel(), 2 * HEADS * queries * keys)
