"""PyTorch's uncompiled FlexAttention stands in for its kernel: on a CPU there is no other that returns log S."""

import warnings

import pytest
import torch
from closeness import assert_near, with_rounding
from small import HEADS, assert_close, gradients, maker, moved, padding_at, sized
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attention_zoo import flex as flex_module
from attention_zoo.flex import _causal_mask

N, H = 37, 8
qkv, create = sized(N, h=H), maker("", head_dim=H)
TOLERANCES = {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 2e-2}


@pytest.fixture(autouse=True)
def quiet_and_fresh():
    """It warns that it is not compiled, and counts recompilations across tests."""
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


def padding(keys=N):
    """Padding on the left, which blinds causal rows, and padding only."""
    return padding_at(keys, slice(9), slice(None))


def make(name="flex_polynomial", dtype=torch.float64, **given):
    return moved(create(name, **given)).to(dtype)


@torch.no_grad()
def flex(attention, query, key, value, mask=None):
    return attention._flex(flex_attention, query, key, value, mask)


@pytest.mark.parametrize(
    "dtype, causal, keys, padded",
    [
        (torch.float64, False, 20, True),
        (torch.float64, True, N, False),
        (torch.float32, True, N, True),
        (torch.bfloat16, False, 20, False),
    ],
)
def test_equals_polynomial(dtype, causal, keys, padded):
    given, mask = qkv(N, keys, dtype=dtype), padding(keys) if padded else None
    out, exact = flex(make(causal=causal, dtype=dtype), *given, mask), make("polynomial", causal=causal)
    assert out.dtype == dtype

    @torch.no_grad()
    def exactly(*inputs):
        return [exact(*inputs, mask)]

    # Sums are of 32 bits at least: what is computed from the numbers given is rounded to the dtype once.
    expected, rounding = with_rounding(exactly, [x.double() for x in given], dtype, roundings=1)
    assert_near([out], expected, TOLERANCES[dtype], besides=rounding)


@pytest.mark.parametrize(
    "given", [{"degree": 2, "bias": 0.0}, {"degree": 8, "scale": 0.3, "bias": 7.5}, {"qk_layernorm": False}], ids=str
)
def test_equals_polynomial_whatever_its_hyperparameters(given):
    assert_close(flex(make(causal=True, **given), *qkv()), make("polynomial", causal=True, **given)(*qkv()).detach())


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_weights_of_zero_are_zero_and_so_is_a_row_of_them(bias):
    """log 0 = -inf: of orthogonal keys, and of a query that is orthogonal to all."""
    query, key = torch.eye(H).double().expand(1, HEADS, H, H), torch.eye(H).double().expand(1, HEADS, H, H).clone()
    key[:, :, 3] = 0
    value = torch.randn(1, HEADS, H, H, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    attention = make(qk_layernorm=False, bias=bias)
    out = flex(attention, query, key, value)
    expected = value / (1 + bias)  # row i has weight 1 at key i and 0 elsewhere
    expected[:, :, 3] = 0
    assert_close(out, expected)
    assert_close(out, make("polynomial", qk_layernorm=False, bias=bias)(query, key, value))


def test_gradients_are_those_of_polynomial_also_at_zero():
    """FlexAttention has no backward pass on a CPU: its softmax is taken of what it was given."""
    attention, handed = make(qk_layernorm=False, causal=True), {}

    def kernel(query, key, value, score_mod, mask, scale, return_aux):
        handed.update(score_mod=score_mod, mask=mask)
        scores = score_mod(scale * query @ key.mT, *(torch.arange(n) for n in (1, 1, 1, 1)))
        past = mask.mask_mod(0, 0, torch.arange(N)[:, None], torch.arange(N))
        scores = scores.masked_fill(~past, -torch.inf)
        blind = (scores == -torch.inf).all(-1)
        safe = scores.masked_fill(blind[..., None], 0)
        out = (safe.softmax(-1) @ value).masked_fill(blind[..., None], 0)
        return out, type("Auxiliary", (), {"lse": safe.logsumexp(-1).masked_fill(blind, -torch.inf)})

    query, key, value = qkv()
    query[:, :, 5], key[:, :, 7] = 0, 0
    given = [x.requires_grad_() for x in (query, key, value)]
    out = attention._flex(kernel, *given, None)
    expected = make("polynomial", qk_layernorm=False, causal=True)(*given)
    assert_close([out, *gradients(out, given)], [expected, *gradients(expected, given)])


@torch.no_grad()
def test_every_shape_is_compiled_once_and_beyond_the_limit_it_fails(monkeypatch):
    """Where Dynamo gave up it would run uncompiled: the n x n matrix in memory, and nobody told."""
    torch.compiler.reset()
    compiled = []
    count = lambda graph, _: compiled.append(graph) or graph.forward  # noqa: E731
    kernel = torch.compile(flex_attention, fullgraph=True, dynamic=False, backend=count)
    monkeypatch.setattr(flex_module, "_compiled", lambda: kernel)
    monkeypatch.setattr(flex_module, "COMPILATIONS", 2)
    attention, exact = make(causal=True), make("polynomial", causal=True)
    query, key, value = qkv()
    for _ in range(2):
        for n, mask in ((N, padding()), (N - 1, None)):
            given = [x[:, :, :n] for x in (query, key, value)]
            assert_close(attention._fused(*given, mask)[0], exact(*given, mask))
    assert len(compiled) == 2
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        attention._fused(*(x[:, :, : N - 2] for x in (query, key, value)), None)
    assert len(compiled) == 2


@pytest.mark.parametrize("length", [1, 100, 128, 129, 300, 512])
def test_the_blocks_of_the_causal_mask_are_those_of_the_whole_mask(length):
    device = torch.device("cpu")
    actual = _causal_mask(length, device)
    expected = create_block_mask(lambda b, h, i, j: j <= i, None, None, length, length, device=device)
    assert actual.seq_lengths == expected.seq_lengths and actual.BLOCK_SIZE == expected.BLOCK_SIZE
    for kind in ("kv", "full_kv", "q", "full_q"):
        for part in (f"{kind}_num_blocks", f"{kind}_indices"):
            assert torch.equal(getattr(actual, part), getattr(expected, part)), part


def test_flops_halve_only_where_a_kernel_would_skip_the_future(monkeypatch):
    """Whatever ran before: FLOPs are counted before and after a run."""
    dense = 3 * HEADS * 4 * 64**2 * H
    attention = make(causal=True)
    assert attention.flops(3, 64) == make(causal=True, impl="reference").flops(3, 64) == dense
    assert make(causal=True, impl="fused").flops(3, 64) == dense // 2
    assert make(impl="fused").flops(3, 64) == dense
    takes = {torch.float32: None, torch.float64: "a reason"}
    monkeypatch.setattr(attention, "_why_not_fused", lambda query, *_: takes[query.dtype])
    assert attention.float().flops(3, 64) == dense // 2
    assert attention.double().flops(3, 64) == dense


@pytest.mark.gpu
def test_the_kernel_is_compiled_however_many_inputs_it_sees():
    """Beyond its limit of recompilations PyTorch runs the n x n matrix instead, and says so in a warning only.

    Twenty combinations are more than that limit, eight; lengths come back, and the last shows by its memory what ran.
    """
    h = 64
    for length in (256, 577, 1024, 256, 8192):
        for batch, causal, degree in ((1, True, 4), (1, False, 4), (2, True, 4), (1, True, 2)):
            on_gpu = {"device": "cuda", "dtype": torch.bfloat16}
            given = [x.requires_grad_() for x in qkv(length, h=h, batch=batch, seed=length, **on_gpu)]
            settings = {"head_dim": h, "causal": causal, "degree": degree}
            attention = create("flex_polynomial", **settings, **on_gpu)
            peaks = []
            for _ in range(2):  # the first call compiles
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                out = attention(*given)
                torch.autograd.grad(out.float().square().sum(), given)
                torch.cuda.synchronize()
                peaks.append(torch.cuda.max_memory_allocated() - before)
            assert attention.executed.backend == "flex_attention"
            # The weights of one head alone would be 2 n^2 bytes.
            assert length < 8192 or peaks[-1] < 2 * length**2
            if length > 1024:
                continue
            exact = [x.detach().double().cpu() for x in given]
            assert_near(out.cpu(), create("polynomial", **settings)(*exact).detach(), 5e-2)


def test_a_mask_made_in_inference_mode_serves_trainings():
    """It is kept, and the operator that would save it for its backward pass runs on no CPU."""
    _causal_mask.cache_clear()
    with torch.inference_mode():
        mask = _causal_mask(300, torch.device("cpu"))
    assert not mask.kv_indices.is_inference() and not mask.full_kv_indices.is_inference()
