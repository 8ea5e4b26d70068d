"""The package computes on a GPU only. Here a stand-in of our own computes what its documentation says, in chunks; it
checks what the package is given and what is done with its answer. Where it is installed, its own reference does too."""

import importlib
import importlib.machinery
import importlib.util
import sys
import types

import pytest
import torch
from closeness import assert_near
from small import gradients, maker, sized

import attention_zoo
from attention_zoo import UnsupportedError

N, H, HEADS, CHUNK = 53, 16, 3, 16
NAME = "retention_power"
qkv = sized(N, heads=HEADS, h=H, requires_grad=True)
make = maker(NAME, head_dim=H, num_heads=HEADS, causal=True, dtype=None)


def power_retention(Q, K, V, log_G=None, deg=2, scale=None, chunk_size=None):
    """Of `(batch, seq_len, heads, head_dim)`, contiguous: a chunk's own weights, and a state of those before it."""
    assert Q.dtype == K.dtype == V.dtype and Q.is_contiguous() and deg == 2 and log_G is None
    length, scale = Q.shape[1], scale or Q.shape[-1] ** -0.5
    chunk = length if chunk_size is None else chunk_size
    assert chunk_size is None or length > chunk_size, "a short sequence would be filled up to a chunk"
    state, rows = None, []
    for start in range(0, length, chunk):
        query, key, value = (x[:, start : start + chunk].transpose(1, 2) for x in (Q, K, V))
        ones = torch.cat([value, torch.ones_like(value[..., :1])], -1)
        mixed = ((query @ key.mT * scale) ** 2).tril() @ ones
        squares = [(x[..., :, None] * x[..., None, :]).flatten(-2) for x in (scale * query, key)]
        mixed = mixed if state is None else mixed + squares[0] @ state
        state = squares[1].mT @ ones + (0 if state is None else state)
        rows.append(mixed[..., :-1] / mixed[..., -1:])
    return torch.cat(rows, 2).transpose(1, 2)


@pytest.fixture
def stand_in(monkeypatch):
    """The package, as far as it is used, on a CPU."""
    package = types.ModuleType("retention")
    package.__spec__, package.power_retention = importlib.machinery.ModuleSpec("retention", None), power_retention
    monkeypatch.setitem(sys.modules, "retention", package)
    if importlib.util.find_spec("triton") is None:
        triton = types.ModuleType("triton")
        triton.__spec__ = importlib.machinery.ModuleSpec("triton", None)
        monkeypatch.setitem(sys.modules, "triton", triton)
    return package


def textbook(query, key, value):
    weights = ((query @ key.mT) ** 2 / query.shape[-1]).tril()
    return weights @ value / weights.sum(-1, keepdim=True)


def assert_same(out, expected, given, tolerance=1e-10):
    # The gradients of a row of one weight vanish.
    assert_near([out, *gradients(out, given)], [expected, *gradients(expected, given)], tolerance, smallest=1)


@pytest.mark.parametrize("n", [1, CHUNK - 1, CHUNK, CHUNK + 1, N])
def test_what_the_package_is_given_and_answers_is_the_formula(n, stand_in):
    attention, given = make(chunk_size=CHUNK), qkv(n)
    out, kernel = attention._fused(*given, None)
    assert kernel == "power_retention" and out.shape == given[0].shape
    assert_same(out, textbook(*given), given)
    assert_same(attention._attend(*given, None), textbook(*given), given)


def test_a_tensor_of_other_strides_is_copied(stand_in):
    given = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in qkv()]
    out, _ = make(chunk_size=CHUNK)._fused(*given, None)
    assert_same(out, textbook(*given), given)


def test_the_chunk_is_the_packages(stand_in, monkeypatch):
    seen = []
    monkeypatch.setattr(stand_in, "power_retention", lambda q, k, v, **options: seen.append(options) or v)
    make()._fused(*qkv(1024), None)
    make()._fused(*qkv(1025), None)
    assert [one["chunk_size"] for one in seen] == [None, 1024]
    assert all(one["deg"] == 2 and one["scale"] == 0.25 for one in seen)


def test_what_it_cannot_do_is_refused_in_one_line(stand_in, monkeypatch):
    with pytest.raises(UnsupportedError, match=r"^causal=false: retention_power sees the past only$"):
        make(causal=False)
    with pytest.raises(UnsupportedError, match=r"^retention_power does not run on cpu; it runs on cuda$"):
        make()(*qkv())
    attention = make(head_dim=24)
    monkeypatch.setattr(attention, "_check_inputs", lambda *_: None)
    allowed = r"^impl=auto: the kernels of retention take a head_dim of 16, 32, 64, 128, 256, not 24$"
    with pytest.raises(UnsupportedError, match=allowed):
        attention(*qkv(h=24, dtype=torch.bfloat16))
    wide = make()
    monkeypatch.setattr(wide, "_check_inputs", lambda *_: None)
    allowed = r"^impl=auto: the kernels of retention take torch.bfloat16, torch.float16, not torch.float32$"
    with pytest.raises(UnsupportedError, match=allowed):
        wide(*qkv(dtype=torch.float32))
    assert wide._why_not_fused(*qkv(dtype=torch.bfloat16), None) is None
    with pytest.raises(ValueError, match="chunk_size=15"):
        make(chunk_size=15)
    info = attention_zoo.info(NAME)
    assert info.approximates is None and not (info.padding or info.decode or info.cross)


def test_flops_are_those_of_chunks_and_of_a_state(stand_in):
    squares = H * (H + 1) // 2
    assert make(chunk_size=CHUNK).flops(2, 8) == 2 * HEADS * 8 * (2 * 8 * H)
    assert make(chunk_size=CHUNK).flops(2, 64) == 2 * HEADS * 64 * (2 * CHUNK * H + 4 * squares * (H + 1))
    assert make(impl="reference").flops(2, 64) == 2 * HEADS * 4 * 64**2 * H
    assert make(chunk_size=128).min_test_length == 3 * 128 + 65


@pytest.mark.needs("retention")
@pytest.mark.parametrize("n", [CHUNK - 1, N, 150])
def test_the_packages_own_reference_is_the_formula(n, monkeypatch):
    """It adds 1e-7 to a score and 1e-6 to a sum, and of its chunks it has the forward pass only."""
    own = importlib.import_module("retention.reference").power_retention
    monkeypatch.setattr(importlib.import_module("retention"), "power_retention", own)
    given = qkv(n)
    out, _ = make(chunk_size=CHUNK)._fused(*given, None)
    assert_near(out, textbook(*given), 1e-5)


@pytest.mark.gpu
@pytest.mark.needs("retention")
@pytest.mark.parametrize("n", [100, 256, 700])
def test_the_package_equals_the_formula(n):
    given = qkv(n, h=64, dtype=torch.bfloat16, device="cuda")
    out = make(head_dim=64, chunk_size=128)(*given)
    exact = [x.detach().double().cpu().requires_grad_() for x in given]
    expected = textbook(*exact)
    found = [out, *gradients(out, given)]
    assert_near([x.cpu() for x in found], [expected, *gradients(expected, exact)], 3e-2)
