"""The package installs on a GPU host only. Here a stand-in of our own computes what the package's documentation says;
it checks what the package is given and what is done with its answer, not the package."""

import importlib.machinery
import importlib.util
import math
import sys
import types

import pytest
import torch
from closeness import assert_near
from small import HEADS, assert_close, assert_near_exact, gradients, maker, masks, sized, steps_after

from attention_zoo import UnsupportedError

N, H = 37, 8
NAME = "xformers_memory_efficient"
qkv = sized(N, h=H, batch=3, dtype=torch.float32, requires_grad=True)
make = maker(NAME, head_dim=H, dtype=torch.float32)


class LowerTriangularMask:
    """Position i sees keys j <= i."""


def memory_efficient_attention(query, key, value, attn_bias=None, p=0.0, scale=None, *, op=None):
    """Of `(batch, seq_len, heads, head_dim)`; NaN for a row that sees nothing; particular about a tensor's strides."""
    assert query.dtype in (torch.float32, torch.bfloat16, torch.float16) and p == 0.0
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    scores = (query @ key.mT).float() * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if isinstance(attn_bias, LowerTriangularMask):
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    elif attn_bias is not None:
        assert attn_bias.shape == scores.shape and attn_bias.dtype == query.dtype
        assert attn_bias.stride(-1) == 1 and all(stride % 8 == 0 for stride in attn_bias.stride()[:-1])
        assert attn_bias.data_ptr() % 16 == 0
        scores = scores + attn_bias
    return (scores.softmax(-1).to(value.dtype) @ value).transpose(1, 2)


@pytest.fixture
def stand_in(monkeypatch):
    """The package, as far as it is used, on a CPU."""
    ops = types.ModuleType("xformers.ops")
    ops.memory_efficient_attention, ops.LowerTriangularMask = memory_efficient_attention, LowerTriangularMask
    package = types.ModuleType("xformers")
    package.__spec__ = importlib.machinery.ModuleSpec("xformers", None)
    monkeypatch.setitem(sys.modules, "xformers", package)
    monkeypatch.setitem(sys.modules, "xformers.ops", ops)
    return ops


@pytest.mark.parametrize("mask", ["full", "padded"])
@pytest.mark.parametrize("causal, keys, scale", [(False, N, 0.7), (True, N, None), (False, 20, None), (False, 24, 0.7)])
def test_what_the_package_is_given_and_answers_is_softmax(causal, keys, mask, scale, stand_in):
    attention, given, mask = make(causal=causal, scale=scale), qkv(N, keys), masks(keys)[mask]
    (out, _), expected = attention._fused(*given, mask), make("softmax", causal=causal, scale=scale)(*given, mask)
    assert_close([out, *gradients(out, given)], [expected, *gradients(expected, given)], 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_given_as_they_are(dtype, stand_in):
    attention, given, mask = make(causal=True), qkv(dtype=dtype), masks(N)["padded"]
    out, _ = attention._fused(*given, mask)
    expected = make("softmax", causal=True)(*(x.float() for x in given), mask)
    assert out.dtype == dtype
    assert_near(out, expected, 1e-2)


def test_the_bias_is_as_small_as_can_be(stand_in, monkeypatch):
    """None without padding: the kernels skip what the mask hides; with padding alone no n x n memory."""
    seen = []
    monkeypatch.setattr(
        stand_in, "memory_efficient_attention", lambda q, k, v, attn_bias, scale: seen.append(attn_bias) or q
    )
    for causal in (True, False):
        make(causal=causal)._fused(*qkv(), None)
    assert isinstance(seen[0], LowerTriangularMask) and seen[1] is None
    for causal, numbers in ((False, 3 * 40), (True, 3 * N * 40)):
        make(causal=causal)._fused(*qkv(), masks(N)["padded"])
        assert seen[-1].untyped_storage().nbytes() == 4 * numbers


@pytest.mark.parametrize("mask", ["full", "padded"])
def test_steps_are_calls_of_the_package(mask, stand_in, monkeypatch):
    """A row of the bias is as long as the keys so far, and aligned; softmax of all of them."""
    attention = make(causal=True)
    monkeypatch.setattr(attention, "_check_inputs", lambda *_: None)
    for _, out, expected in steps_after(30, attention, [x.detach() for x in qkv()], masks(30)[mask]):
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-5)
        assert attention.executed == ("fused", "memory_efficient_attention")


def test_what_no_kernel_takes_is_refused_in_one_line(stand_in, monkeypatch):
    def no_operator(*_, **__):
        raise NotImplementedError("No operator found for `memory_efficient_attention_forward` with inputs:\n  query : ")

    monkeypatch.setattr(stand_in, "memory_efficient_attention", no_operator)
    with pytest.raises(UnsupportedError, match=rf"^{NAME}: no kernel takes the input \(No operator .* query :\)$"):
        make()._fused(*qkv(), None)


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_is_softmax_and_runs_no_kernel(causal, stand_in, monkeypatch):
    del stand_in.memory_efficient_attention
    given, mask = qkv(), masks(N)["padded"]
    expected = make("softmax", causal=causal)(*given, mask)
    attention = make(causal=causal, impl="reference")
    monkeypatch.setattr(attention, "_check_inputs", lambda *_: None)  # the only thing here that asks for a GPU
    assert torch.equal(attention(*given, mask), expected) and attention.executed == ("reference", None)


def test_flops_halve_where_the_kernel_skips_the_future(stand_in):
    dense = 3 * HEADS * 4 * 64**2 * H
    assert make().flops(3, 64) == make(causal=True, impl="reference").flops(3, 64) == dense
    assert make(causal=True).flops(3, 64) == dense // 2


def test_a_cpu_is_refused(stand_in):
    for impl in ("auto", "reference", "fused"):
        with pytest.raises(UnsupportedError, match=rf"^{NAME} does not run on cpu; it runs on cuda$"):
            make(impl=impl)(*qkv())


@pytest.mark.gpu
@pytest.mark.needs("xformers")
@pytest.mark.parametrize("mask", ["full", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_package_equals_softmax(dtype, causal, mask):
    # Relative error of the whole tensor: bfloat16 rounds at 2^-9; float32 kernels may use TF32, 2^-11.
    tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-3}[dtype]
    attention, exact = (make(name, head_dim=64, causal=causal) for name in (NAME, "softmax"))
    assert_near_exact(attention, exact, qkv(dtype=dtype, device="cuda", h=64), masks(N)[mask], tolerance)
