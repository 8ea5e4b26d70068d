"""Local attention and identity, the controls, against naive sums and dense attention; the hybrid: test_branches.py."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import maker, moved, padding_at, sized

import attention_zoo

inputs, create = sized(16, h=8), maker("local", head_dim=8)
WINDOWS = {
    "block": {},
    "sliding": {"sliding": True},
    "polynomial": {"weights": "polynomial"},
    "sliding_polynomial": {"weights": "polynomial", "sliding": True, "separate_norms": True, "bias": 0.5, "scale": 0.7},
}


def in_window(i, j, block_size, sliding, causal):
    near = abs(i - j) < block_size if sliding else i // block_size == j // block_size
    return near and (j <= i or not causal)


def naive(attention, query, key, value):
    """One row at a time, in the words of the definition."""
    out = torch.zeros_like(query)
    query, key = attention.query_norm(query) * attention.scale, (attention.key_norm or attention.query_norm)(key)
    for i in range(query.shape[2]):
        seen = [
            j for j in range(key.shape[2]) if in_window(i, j, attention.block_size, attention.sliding, attention.causal)
        ]
        scores = (query[:, :, i, None] * key[:, :, seen]).sum(-1)
        if attention.is_softmax:
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        else:
            weights = scores**attention.degree
            weights = weights / (attention.bias + weights.sum(-1, keepdim=True))
        out[:, :, i] = (weights[..., None] * value[:, :, seen]).sum(2)
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_len", [1, 4, 5, 8, 19])
@pytest.mark.parametrize("window", WINDOWS)
def test_local_is_the_sum_over_its_window(window, seq_len, causal):
    attention = moved(create(block_size=4, causal=causal, **WINDOWS[window]))
    query, key, value = inputs(seq_len)
    torch.testing.assert_close(attention(query, key, value), naive(attention, query, key, value))


@pytest.mark.parametrize("block_size", [16, 100])
def test_a_window_over_everything_is_the_dense_mechanism(block_size):
    for window, dense in (({}, "softmax"), ({"weights": "polynomial"}, "polynomial")):
        for sliding in (False, True):
            local = create(block_size=block_size, sliding=sliding, causal=True, **window)
            torch.testing.assert_close(local(*inputs()), create(dense, causal=True)(*inputs()))


@pytest.mark.parametrize("window", WINDOWS)
def test_a_state_holds_one_window_and_grows_no_further(window):
    """`test_decoding.py` reads it on in any pieces."""
    attention = create(block_size=4, causal=True, **WINDOWS[window])
    _, state = attention.prefill(*inputs(19))
    assert state.num_bytes == attention.init_state(2, dtype=torch.float64).num_bytes


def test_identity_is_the_value_and_no_other_token():
    given, padding = inputs(7), padding_at(7, [2], [])
    expected = given[2].masked_fill(padding[:, None, :, None], 0)
    assert torch.equal(create("identity", causal=True)(*given, padding), expected)


def test_the_controls_say_what_they_are():
    controls = [name for name in attention_zoo.list_attentions() if attention_zoo.info(name).control]
    assert controls == ["identity", "local", "v_mean"]


def test_a_norm_of_queries_and_keys_is_saved_once_and_older_files_with_both_names_are_read(tmp_path):
    """safetensors refuses a tensor that has two names."""
    own, old = (create(weights="polynomial") for _ in range(2))
    torch.nn.init.normal_(own.query_norm.weight)
    save_file(own.state_dict(), tmp_path / "local.safetensors")
    found = load_file(tmp_path / "local.safetensors")
    assert found.keys() == {"query_norm.weight", "query_norm.bias"}
    renamed = {name.replace("query", "key"): value for name, value in found.items()}
    for saved in (found, found | renamed, renamed):
        torch.nn.init.zeros_(old.query_norm.weight)
        old.load_state_dict(saved)
        assert torch.equal(old.query_norm.weight, own.query_norm.weight)
    apart = create(weights="polynomial", separate_norms=True)
    assert apart.state_dict().keys() == found.keys() | renamed.keys()
    apart.load_state_dict(found | renamed)
