"""Against the packages called as their documentation says, and against the dense matrices of the same functions."""

import pytest
import torch
from linformer import LinformerSelfAttention
from local_attention import LocalAttention
from nystrom_attention import NystromAttention
from performer_pytorch import FastAttention
from reformer_pytorch import Autopadder, LSHSelfAttention
from small import HEADS, H, assert_close, heads_of, hidden_state, maker, outcomes, padding_mask, sized

from attention_zoo.third_party.lucidrains import LucidrainsReformer

BATCH, LONGEST = 3, 75
D = HEADS * H
qkv, own = sized(LONGEST, batch=BATCH), maker("", max_seq_len=LONGEST)


def make(name, **given):
    return own(f"lucidrains_{name}", **given)


# Besides the sizes that the contract has.
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("nystromformer", {"num_landmarks": 3, "iterations": 1}),
        ("reformer", {"bucket_size": 1, "num_hashes": 3}),
        ("reformer", {"bucket_size": 4, "num_hashes": 1, "causal": True}),
        ("local", {"block_size": 3, "neighbours": 2}),
        ("local", {"block_size": 3, "neighbours": 2, "causal": True}),
    ],
)
def test_output_and_gradients_are_those_of_the_reference(name, given, padded):
    reference, fused = make(name, impl="reference", **given), make(name, impl="fused", **given)
    tensors, mask = qkv(LONGEST), padding_mask(LONGEST, front=True) if padded else None
    if mask is not None:
        for x in tensors[1:]:
            x[mask[:, None].expand(-1, HEADS, -1)] *= 30  # to be seen if it is
    expected, actual = (outcomes(attention, tensors, mask) for attention in (reference, fused))
    assert reference.executed == ("reference", None) and fused.executed == ("fused", fused.source)
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)


def keep(linear, part, parts):
    """Make a linear layer return the `part`-th of `parts` equal pieces of its input, or put its input there."""
    with torch.no_grad():
        linear.weight.zero_()
        size = min(linear.weight.shape)
        assert max(linear.weight.shape) == parts * size
        long = slice(part * size, (part + 1) * size)
        piece = linear.weight[:, long] if linear.weight.shape[0] == size else linear.weight[long]
        piece.copy_(torch.eye(size))
        if linear.bias is not None:
            linear.bias.zero_()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [1, 20, 300])
def test_performer_is_fast_attention(n, causal):
    attention, given = make("performer", num_features=6, causal=causal, max_seq_len=None), qkv(n)
    theirs = FastAttention(dim_heads=H, nb_features=6, causal=causal).double()
    theirs.projection_matrix.copy_(attention.layer.projection_matrix)
    assert_close(attention(*given), theirs(*given))


@pytest.mark.parametrize("n", [1, 20, LONGEST])
def test_linformer_is_the_layer(n):
    attention, given = make("linformer", projection_dim=6), qkv(n)
    theirs = LinformerSelfAttention(3 * D, LONGEST, k=6, heads=HEADS, dim_head=H).double()
    for part, linear in enumerate((theirs.to_q, theirs.to_k, theirs.to_v)):
        keep(linear, part, 3)
    keep(theirs.to_out, 0, 3)
    theirs.proj_k, theirs.proj_v = attention.layer.proj_k, attention.layer.proj_v
    assert_close(attention(*given), heads_of(theirs(hidden_state(*given))[..., :D]))


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("n", [1, 20, 23])
def test_nystromformer_is_the_layer(n, padded):
    """Item by item; with its mask where it fills up."""
    attention, given = make("nystromformer", num_landmarks=5, iterations=4), qkv(n)
    theirs = NystromAttention(3 * D, H, HEADS, num_landmarks=5, pinv_iterations=4, residual=False).double()
    keep(theirs.to_qkv, 0, 1)
    keep(theirs.to_out[0], 0, 3)
    mask = padding_mask(n, front=True) if padded else None
    x, real = hidden_state(*given), ~torch.zeros(BATCH, n, dtype=torch.bool) if mask is None else ~mask
    expected = [theirs(x[b : b + 1], mask=real[b : b + 1] if padded or n % 5 else None) for b in range(BATCH)]
    assert_close(attention(*given, mask), heads_of(torch.cat(expected)[..., :D]))


def with_their_draws(monkeypatch, n, bucket_size, num_hashes):
    """Give ours the rotations that the package draws next."""
    torch.manual_seed(3)
    draws = torch.randn(1, H, num_hashes, -(-n // (2 * bucket_size)), dtype=torch.float64)
    monkeypatch.setattr(LucidrainsReformer, "_rotations", lambda self, x: draws)
    torch.manual_seed(3)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("n", [1, 17, 24])
def test_reformer_is_the_layer_that_fills_up(n, padded, monkeypatch):
    """With zeros in the place of padding, as its own filling is."""
    attention, (query, key, value) = make("reformer", bucket_size=3), qkv(n)
    mask = padding_mask(n, front=True) if padded else torch.zeros(BATCH, n, dtype=torch.bool)
    layer = LSHSelfAttention(2 * D, HEADS, bucket_size=3, n_hashes=2, dim_head=H, full_attn_thres=0).double()
    keep(layer.toqk, 0, 2), keep(layer.tov, 1, 2), keep(layer.to_out, 0, 2)
    x = hidden_state(query, value).masked_fill(mask[..., None], 0)
    with torch.random.fork_rng():
        with_their_draws(monkeypatch, n, 3, 2)
        expected = Autopadder(layer)(x, input_mask=~mask)
    assert_close(attention(query, key, value, mask if padded else None), heads_of(expected[..., :D]))


@pytest.mark.parametrize("causal", [False, True])
def test_local_is_local_attention(causal):
    attention, given = make("local", block_size=4, neighbours=2, causal=causal), qkv(32)
    ahead = 0 if causal else 2
    theirs = LocalAttention(4, causal=causal, look_backward=2, look_forward=ahead)
    assert_close(attention(*given), theirs(*given))
    # Without whole blocks, and with a mask in which every query sees a key.
    given, mask = qkv(30), torch.zeros(BATCH, 30, dtype=torch.bool)
    mask[:, 5::3] = True
    theirs.autopad = True
    assert_close(attention(*given, mask), theirs(*given, mask=~mask))
    assert_close(attention(*given), theirs(*given, mask=torch.ones_like(mask)))


def test_linformer_of_one_seed_is_ours():
    for seed in (0, 5):
        theirs, ours = (create("linformer", projection_dim=6, seed=seed) for create in (make, own))
        assert torch.equal(theirs.layer.proj_k.mT, ours.E) and torch.equal(theirs.layer.proj_v.mT, ours.F)
        assert_close(theirs(*qkv(37)), ours(*qkv(37)))


def test_performer_of_one_seed_has_our_features():
    """Its eps is relative to another feature: small where features are alike, as those of short vectors are."""
    for causal in (False, True):
        theirs, ours = (create("performer", num_features=6, seed=3, causal=causal) for create in (make, own))
        assert torch.equal(theirs.layer.projection_matrix, ours.projection)
        query, key, value = qkv(37)
        assert_close(theirs(query / 10, key / 10, value), ours(query / 10, key / 10, value), 1e-4)


def test_nystromformer_of_one_head_is_ours():
    """Ours starts from the largest column sum of each head."""
    given = [x[:, :1] for x in qkv(35)]
    theirs, ours = (create("nystromformer", num_landmarks=5, num_heads=1) for create in (make, own))
    assert_close(theirs(*given), ours(*given))
    theirs, ours = (create("nystromformer", num_landmarks=5, iterations=2) for create in (make, own))
    query, key, value = qkv(35)
    query[:, 1] *= 5
    assert (theirs(query, key, value) - ours(query, key, value)).abs().max() > 1e-3
