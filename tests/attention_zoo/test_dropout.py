"""Dropout of attention weights, of every mechanism that has it."""

import math

import pytest
import torch
from small import HEADS, H, maker, padding_at, sized
from torch.utils.checkpoint import checkpoint

import attention_zoo
from attention_zoo import UnsupportedError
from attention_zoo.dense import AttentionDropout

N, P = 13, 0.3
PADDING = padding_at(N, [], [0, 1, 7])
qkv, create = sized(N), maker("", max_seq_len=64, dropout=P)
DROPPING = ["flash", "flex_polynomial", "linformer", "polynomial", "polynomial_square", "reformer", "softmax"]
SMALL = {"linformer": {"projection_dim": 5}, "reformer": {"bucket_size": 4}}
CASES = [(name, causal) for name in DROPPING for causal in (False, True) if not (name == "linformer" and causal)]
every_case = pytest.mark.parametrize("name, causal", CASES)


def make(name, **given):
    return create(name, **(SMALL.get(name, {}) | given)).train()


def test_these_mechanisms_drop_weights():
    """By a hyperparameter: a class that inherits the arithmetic need not have it."""
    names = attention_zoo.list_attentions()
    assert [name for name in names if "dropout" in attention_zoo.hyperparameters(name)] == DROPPING
    inherit = {name for name in names if issubclass(attention_zoo.attention_class(name), AttentionDropout)}
    assert inherit - set(DROPPING) == {"retention_power", "xformers_memory_efficient"}


@every_case
def test_weights_are_dropped_one_by_one_and_the_others_are_larger(name, causal):
    n = 32
    query, key, _ = qkv(n, h=2 * n)
    identity = torch.eye(n, dtype=torch.float64)  # as values it makes the output the matrix
    value = identity.repeat(1, 2).expand_as(query)
    whole = {"linformer": {"projection_dim": n}, "reformer": {"bucket_size": n, "num_hashes": 1}}.get(name, {})
    attention = make(name, head_dim=2 * n, causal=causal, max_seq_len=n, **whole)
    if name == "linformer":
        attention.F.data.copy_(identity)
    torch.manual_seed(0)
    weights, out = attention.attention_matrix(query, key), attention(query, key, value)
    dropped = out[..., :n]
    assert torch.equal(out[..., n:], dropped), "a weight is dropped for all of its value"
    kept, seen = dropped != 0, weights != 0
    torch.testing.assert_close(dropped, torch.where(kept, weights / (1 - P), 0), rtol=1e-9, atol=1e-12)
    # 5 sigma of a mean of coin flips.
    assert abs(kept[seen].double().mean() - (1 - P)) < 5 * math.sqrt(P * (1 - P) / seen.sum())
    for dim in range(4):  # rows, columns, heads and batch items all differ
        assert ((kept != kept.roll(1, dim)) & seen & seen.roll(1, dim)).any()


@every_case
def test_the_mean_over_masks_is_the_output_without(name, causal):
    """Entry by entry, in standard errors of the mean: 6 for the largest of two hundred, 1 for their mean square.

    Weights that were not divided by 1 - p would be off by about ten. Without padding: see above.
    """
    given, draws = [*qkv(), PADDING], 200
    attention = make(name, causal=causal)
    torch.manual_seed(1)
    with torch.no_grad():
        outputs = torch.stack([attention(*given) for _ in range(draws)])
        expected = attention.eval()(*given)
    spread = outputs.std(0)
    moves = spread > 1e-12
    assert moves.double().mean() > 0.8, "hardly anything is dropped"
    torch.testing.assert_close(outputs.mean(0)[~moves], expected[~moves], rtol=0, atol=1e-12)
    error = ((outputs.mean(0) - expected) / spread)[moves].abs() * math.sqrt(draws)
    assert error.max() < 6 and error.square().mean() < 1.8


@every_case
def test_no_probability_and_evaluation_change_nothing_bit_for_bit(name, causal):
    given = [*qkv(), PADDING]
    for impl in ("auto", "reference"):
        expected = make(name, causal=causal, dropout=0.0, impl=impl).eval()(*given)
        before = torch.get_rng_state()
        for same in (make(name, causal=causal, dropout=0.0, impl=impl), make(name, causal=causal, impl=impl).eval()):
            assert torch.equal(same(*given), expected)
        assert torch.equal(torch.get_rng_state(), before)
        assert not torch.equal(make(name, causal=causal, impl=impl)(*given), expected)


@every_case
def test_gradients_are_those_of_the_mask_that_was_drawn(name, causal):
    attention, given = make(name, causal=causal), [x[:1, :, :5].requires_grad_() for x in qkv()]

    def same_mask(*inputs):
        torch.manual_seed(2)
        return attention(*inputs)

    if name == "reformer":  # which reads no keys
        given[1].requires_grad_(False)
    assert torch.autograd.gradcheck(same_mask, given, fast_mode=True)


@every_case
def test_masks_follow_the_generator_that_checkpointing_restores(name, causal):
    attention, given = make(name, causal=causal), [x.requires_grad_() for x in qkv()]
    gradients = []
    for call in (attention, lambda *inputs: checkpoint(attention, *inputs, use_reentrant=False)):
        torch.manual_seed(3)
        out = call(*given)
        gradients.append(torch.autograd.grad(out.square().sum(), given, allow_unused=True))
    for one, other in zip(*gradients, strict=True):
        assert (one is None and name == "reformer") or torch.equal(one, other)
    assert not torch.equal(attention(*given), out), "the next call draws another mask"


@every_case
def test_a_fast_path_drops_weights_or_is_not_taken(name, causal):
    given = qkv()
    attention = make(name, causal=causal)
    attention(*given)
    assert attention.executed == (("fused", "math") if name == "flash" else ("reference", None))
    info = attention_zoo.info(name)
    if "fused" in info.implementations and name not in ("flash", "flex_polynomial"):
        fused = make(name, causal=causal, impl="fused")
        with pytest.raises(UnsupportedError, match=rf"^impl=fused: dropout=0.3: the fast path of {name} drops no weig"):
            fused(*given)
        fused.eval()(*given)
        assert fused.executed.impl == "fused"


def test_kernels_that_inherit_a_softmax_without_its_dropout_do_not_ignore_it(monkeypatch):
    """As a model that sets it would have them do."""
    monkeypatch.setattr("attention_zoo.third_party.xformers.require_package", lambda *_: None)
    attention = attention_zoo.attention_class("xformers_memory_efficient")(head_dim=H, num_heads=HEADS).train()
    attention.dropout = P
    with pytest.raises(UnsupportedError, match=r"^impl=auto: dropout=0.3: the fast path of xformers_memory_efficient"):
        attention._chooses_fused(attention._why_not_fused, *qkv(), None)


def test_flash_takes_no_other_kernel_than_the_one_asked_for():
    with pytest.raises(UnsupportedError, match=r"^impl=auto: backend=flash: drops no weights on a CPU \(dropout=0.3\)"):
        make("flash", backend="flash")(*qkv())
    for settings in ({"backend": "flash"}, {"impl": "reference"}):
        make("flash", **settings).eval()(*qkv())
    assert make("flash", impl="reference")(*qkv()).isfinite().all()


def test_flash_asks_the_backends_of_a_gpu_for_dropout_too(monkeypatch):
    asked = []
    monkeypatch.setattr("torch.backends.cuda.can_use_cudnn_attention", lambda given, debug: asked.append(given) or True)
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91900)
    attention, given = make("flash"), [torch.empty(2, HEADS, 128, H, device="meta") for _ in range(3)]
    for training in (True, False, True):
        assert attention.train(training)._choose(*given, False, True).backend == "cudnn"
    assert [params.dropout for params in asked] == [P, 0.0], "each once"


@pytest.mark.parametrize("name", DROPPING)
def test_a_probability_is_below_one(name):
    for bad in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"^dropout={bad}: must be"):
            make(name, dropout=bad)
