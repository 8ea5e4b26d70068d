import math

import pytest
import torch
from small import H, assert_moments, maker, sized

N = 12
qkv, make = sized(N), maker("linformer", max_seq_len=N)


@pytest.mark.parametrize("n", [7, N])
@pytest.mark.parametrize("share", [False, True])
def test_equals_the_formula(share, n):
    """It equals the linformer package in test_lucidrains.py."""
    attention, (query, key, value) = make(projection_dim=5, share_key_value=share), qkv(n)
    of_keys, of_values = (x[:, :n] for x in (attention.E, attention.E if share else attention.F))
    expected = (query @ (of_keys @ key).mT / math.sqrt(H)).softmax(-1) @ (of_values @ value)
    torch.testing.assert_close(attention(query, key, value), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("unreduced", [False, True])
def test_appended_padding_changes_nothing(unreduced):
    attention, given = make(projection_dim=5, unreduced=unreduced), qkv()
    short = attention(*(tensor[:, :, :8] for tensor in given))
    mask = torch.arange(N).expand(2, N) >= 8
    torch.testing.assert_close(attention(*given, mask)[:, :, :8], short, rtol=0, atol=1e-13)


@pytest.mark.parametrize("trainable, unreduced", [(True, False), (False, False), (True, True)])
def test_only_a_trainable_projection_is_a_parameter(trainable, unreduced):
    attention = make(projection_dim=5, trainable=trainable, unreduced=unreduced)
    names = {"E"} if unreduced else {"E", "F"}
    assert set(attention.state_dict()) == names
    assert set(dict(attention.named_parameters())) == (names if trainable and not unreduced else set())
    # It stays registered when the module moves.
    assert set(attention.to(torch.float32).state_dict()) == names


@pytest.mark.parametrize("init_std", [None, 0.02])
def test_entries_are_normal_with_the_given_deviation(init_std):
    attention = make(projection_dim=64, max_seq_len=1000, init_std=init_std)
    entries = torch.cat([attention.E.flatten(), attention.F.flatten()])
    assert_moments(entries / (init_std or 1 / math.sqrt(64)), 0, 1, 0, 3)


def test_unreduced_sketch_is_the_identity_in_expectation():
    """E[S S^T] = I; an entry of S S^T has variance 1/d off and 2/d on the diagonal."""
    d, draws = 3, 3000
    attention, mean = make(projection_dim=d, unreduced=True), torch.zeros(N, N, dtype=torch.float64)
    for seed in range(draws):
        attention.resample(seed)
        mean += attention.E.T @ attention.E / draws
    assert (mean - torch.eye(N)).abs().max() < 5 * math.sqrt(2 / (d * draws))


def test_unreduced_equals_the_formula():
    attention, (query, key, value) = make(projection_dim=5, unreduced=True), qkv()
    a = (query @ key.transpose(2, 3) / math.sqrt(H)).exp()
    s = attention.E.T
    expected = (a @ s) @ (s.T @ value) / a.sum(-1, keepdim=True)
    torch.testing.assert_close(attention(query, key, value), expected, rtol=0, atol=1e-13)
