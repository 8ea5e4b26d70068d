"""Mechanisms in kinds of models that cache, mask or share what others do not."""

import pytest
import torch
import transformers

from attention_zoo import UnsupportedError, hf

hf.register()

TINY = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32, "num_key_value_heads": 2}
TINY |= {"eos_token_id": None, "pad_token_id": 0, "initializer_range": 0.3}


def tiny(kind, implementation, **config):
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**TINY, **config)).eval()
    model.set_attn_implementation(implementation)
    return model


def generated(model, use_cache):
    tokens = torch.randint(3, 60, (1, 9), generator=torch.Generator().manual_seed(0))
    return model.generate(tokens, use_cache=use_cache, max_new_tokens=6, do_sample=False).tolist()


def test_models_that_are_made_from_one_config_have_their_own_mechanisms():
    config = transformers.LlamaConfig(**TINY, num_attention_heads=4)
    first, exact = (transformers.AutoModelForCausalLM.from_config(config).eval() for _ in range(2))
    hf.attach(first, "performer")
    hf.attach(exact, "polysketch", layers=[1])
    kinds = [[layer.self_attn.config._attn_implementation for layer in model.model.layers] for model in (first, exact)]
    assert kinds == [["performer"] * 2, ["sdpa", "polysketch"]] and config._attn_implementation == "sdpa"
    assert first.config is first.model.config is first.model.layers[0].self_attn.config


@pytest.mark.parametrize(
    ("kind", "words", "config"),
    [
        ("JetMoe", "other keys than it caches", {"kv_channels": 8, "num_local_experts": 4, "num_experts_per_tok": 2}),
        ("DiffLlama", "the same keys twice", {"num_attention_heads": 4}),
    ],
)
def test_a_state_refuses_keys_that_it_does_not_get_once(kind, words, config):
    """JetMoE repeats keys after it has cached them, DiffLlama attends to them in two calls."""
    model = tiny(kind, "linear", **config)
    with pytest.raises(UnsupportedError, match=words):
        generated(model, use_cache=True)
    generated(model, use_cache=False)


def encoder_decoder(kind, **config):
    config |= {f"{part}_{key}": n for part in ("encoder", "decoder") for key, n in (("layers", 1), ("ffn_dim", 32))}
    config |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "d_model": 32, "vocab_size": 60}
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config)).eval()
    tokens = torch.randint(3, 60, (1, 9), generator=torch.Generator().manual_seed(0))
    return model, {"input_ids": tokens, "decoder_input_ids": tokens}


@pytest.mark.parametrize(
    ("kind", "config"),
    [("NllbMoe", {"num_experts": 2}), ("PegasusX", {}), ("BigBirdPegasus", {"attention_type": "original_full"})],
)
def test_layers_that_do_not_say_that_they_are_causal_are_refused_where_a_mask_hides_the_future(kind, config):
    model, inputs = encoder_decoder(kind, **config)
    expected = model(**inputs).last_hidden_state
    with pytest.raises(UnsupportedError, match=r"^attention_mask: is more than padding of keys with is_causal=False"):
        hf.attach(model, "softmax")
    with pytest.raises(UnsupportedError, match=r"^example: has one token where a mask is causal"):
        hf.attach(model, "softmax", example=inputs | {"decoder_input_ids": inputs["decoder_input_ids"][:, :1]})
    assert torch.equal(model(**inputs).last_hidden_state, expected), "it has its own attention again"


def test_layers_that_are_causal_only_without_a_mask_are_made_as_such():
    sizes = {
        f"{part}_num_{key}": n
        for part in ("encoder", "decoder")
        for key, n in (("hidden_layers", 1), ("attention_heads", 2))
    }
    config = transformers.MoonshineConfig(hidden_size=32, intermediate_size=32, vocab_size=60, **sizes)
    example = {"input_values": torch.randn(1, 4000), "decoder_input_ids": torch.tensor([[1, 2, 3]])}
    made = hf.attach(transformers.MoonshineModel(config).eval(), "softmax", example=example)
    assert [each.causal for each in made] == [False, True, False]


def test_layers_of_another_kind_keep_their_caches():
    experts = {"expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 2}
    model = tiny("Jamba", "linear", num_attention_heads=4, attn_layer_period=2, attn_layer_offset=1, **experts)
    assert generated(model, use_cache=True) == generated(model, use_cache=False)


def test_a_window_of_no_layer_refuses_nothing():
    experts = {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "num_experts": 4}
    config = {"num_attention_heads": 4, "num_experts_per_tok": 2, **experts}
    made = [tiny("Qwen2Moe", name, **config) for name in ("eager", "softmax")]
    assert generated(made[0], use_cache=True) == generated(made[1], use_cache=True)


def test_one_query_without_a_mask_sees_all_cached_keys():
    layers = {"layer_types": ["linear_attention", "full_attention"], "block_size": 4, "head_dim": 8}
    config = {"num_attention_heads": 4, "num_local_experts": 2, "num_experts_per_tok": 1, **layers}
    made = [tiny("MiniMax", name, **config) for name in ("sdpa", "softmax")]
    assert generated(made[0], use_cache=True) == generated(made[1], use_cache=True)
