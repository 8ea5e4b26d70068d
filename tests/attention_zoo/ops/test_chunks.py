"""Rows of attention matrices from some keys at a time are the rows from all at once."""

import pytest
import torch

import attention_zoo
from attention_zoo.ops import chunks

SETTINGS = [
    ("performer", {"num_features": 24}),
    ("polysketch", {"sketch_size": 8, "qk_layernorm": True}),
    ("polysketch", {"sketch": "learned", "sketch_size": 8, "local": True, "block_size": 8}),
]


def rows_and_gradients(attention):
    torch.manual_seed(0)
    query, key = (torch.randn(2, 2, 40, 8, dtype=torch.float64).requires_grad_() for _ in range(2))
    rows = attention.attention_matrix(query, key, rows=torch.tensor([0, 3, 39]))
    leaves = [query, key, *attention.parameters()]
    state = torch.get_rng_state()
    gradients = torch.autograd.grad((rows * torch.linspace(-1, 1, 40)).sum(), leaves, materialize_grads=True)
    assert torch.equal(torch.get_rng_state(), state)
    return [rows, *gradients]


@pytest.mark.parametrize("name, settings", SETTINGS)
def test_some_keys_at_a_time_give_the_rows_and_gradients_of_all_at_once(name, settings, monkeypatch):
    attention = attention_zoo.create(name, head_dim=8, num_heads=2, causal=True, dtype=torch.float64, **settings)
    whole = rows_and_gradients(attention)
    monkeypatch.setattr(chunks, "KEYS_AT_ONCE", 7)
    torch.testing.assert_close(rows_and_gradients(attention), whole, rtol=1e-11, atol=1e-12)


def test_no_more_keys_at_a_time_are_looked_at(monkeypatch):
    monkeypatch.setattr(chunks, "KEYS_AT_ONCE", 7)
    lengths = []
    key = torch.zeros(1, 1, 40, 8)
    chunks.by_keys(lambda keys, _: (lengths.append(keys.shape[2]), keys.mT)[1:], key, key)
    assert lengths == [7, 7, 7, 7, 7, 5]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_no_more_weights_at_a_time_are_in_memory(causal, monkeypatch):
    """Nor, of causal ones, those of the future but for the rows that are computed together."""
    monkeypatch.setattr(chunks, "CPU_ENTRIES", 1000)
    monkeypatch.setattr(chunks, "LEAST_ROWS", 4)
    query, key, value = torch.randn(3, 2, 2, 40, 8).unbind()
    sizes = []

    def weights(query, key, visible):
        sizes.append((query.shape[2], key.shape[2]))
        return torch.ones(*query.shape[:3], key.shape[2]), torch.ones(*query.shape[:3], 1)

    chunks.weighted_values_by_rows(weights, query, key, value, causal=causal, padding=None)
    rows = [4] * 10 if causal else [6] * 6 + [4]
    assert sizes == [(count, sum(rows[: i + 1]) if causal else 40) for i, count in enumerate(rows)]
