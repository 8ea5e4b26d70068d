"""Against formulas of our own in float64, one token at a time where the paper's form is a recurrence."""

import importlib
import importlib.util
import inspect

import pytest
import torch
from closeness import assert_near
from small import assert_close as close
from small import gradients, maker, moved, sized

import attention_zoo
from bench.measures.flops import count

NAMES = [name for name in attention_zoo.list_attentions() if name.startswith("fla_")]
INSTALLED = all(importlib.util.find_spec(module) for module in ("fla", "triton"))
pytestmark = pytest.mark.skipif(not INSTALLED, reason="needs fla-core and triton")
N, H, HEADS = 23, 4, 3
qkv, fresh = sized(N, heads=HEADS, dtype=torch.float32), maker("", num_heads=HEADS, causal=True, dtype=torch.float32)


def make(name, **given):
    """With decays and step sizes that differ from head to head and channel to channel."""
    return moved(fresh(name, **given))


def kernel(weigh, eps=0.0):
    """Weights of the scores, normalised."""

    def attend(attention, query, key, value):
        weights = weigh(query @ key.mT / query.shape[-1] ** 0.5).tril()
        return weights @ value / (weights.sum(-1, keepdim=True) + eps)

    return attend


def linear(attention, query, key, value):
    left, right = (torch.where(x > 0, x + 1, x.exp()) for x in (query, key))
    weights = (left @ right.mT).tril()
    return weights @ value / weights.sum(-1, keepdim=True)


def recurrence(log_decay, delta=False):
    """`S_t = Diag(exp g) S_{t-1} + k_t v_t^T` and `o_t = S_t^T q_t / sqrt(h)`; or the delta rule."""

    def attend(attention, query, key, value):
        if delta:
            query, key = (x / x.norm(dim=-1, keepdim=True) for x in (query, key))
        h = query.shape[-1]
        decay = log_decay(attention).exp().reshape(HEADS, -1, 1)
        beta = 1 / (1 + (-attention.beta_logit.double()).exp()).reshape(HEADS, 1, 1) if delta else 1
        state, rows = query.new_zeros(*query.shape[:2], h, value.shape[-1]), []
        for t in range(query.shape[2]):
            q, k, v = (x[:, :, t, None] for x in (query, key, value))
            state = decay * state
            target = v - k @ state if delta else v
            state = state + beta * k.mT @ target
            rows.append(q @ state / h**0.5)
        return torch.cat(rows, 2)

    return attend


def fixed(rates):
    return recurrence(lambda attention: torch.tensor(rates).double().log())


def learned(attention):
    return -attention.log_rate.double().exp()


def none(attention):
    return torch.zeros(HEADS, dtype=torch.float64)


FORMULAS = {
    "fla_retention": fixed([1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128]),
    "fla_lightning_attn": fixed([1, torch.e ** (-8 / 3), torch.e ** (-16 / 3)]),
    "fla_linear_attn": linear,
    "fla_simple_gla": recurrence(learned),
    "fla_gla": recurrence(learned),
    "fla_delta_rule": recurrence(none, delta=True),
    "fla_gated_delta_rule": recurrence(learned, delta=True),
    "fla_kda": recurrence(learned, delta=True),
    "fla_based": kernel(lambda s: 1 + s + s**2 / 2),
    "fla_rebased": kernel(lambda s: s**2, eps=1e-6),
}
every_name = pytest.mark.parametrize("name", NAMES)


def assert_close(actual, expected, tolerance=2e-5):
    """Float32 rounds at 6e-8; a recurrence of a few dozen steps and a normaliser lose two digits."""
    close(actual.double(), expected.double(), tolerance)


@every_name
@pytest.mark.parametrize("n", [1, 70])  # more than a chunk of 64
def test_equals_the_papers_formula(name, n):
    """Gradients too, also of the decays and step sizes."""
    attention, given = make(name), [x.requires_grad_() for x in qkv(n)]
    leaves = [*given, *attention.parameters()]
    out, expected = attention(*given), FORMULAS[name](attention, *(x.double() for x in given))
    assert_near(out, expected, 2e-5)
    for one, other in zip(gradients(out, leaves), gradients(expected, leaves), strict=True):
        assert_close(one, other, 1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if attention_zoo.info(name).padding])
def test_padding_is_as_if_it_were_not_there(name):
    """Decays included, wherever the padding is: the others stand next to each other."""
    attention, (query, key, value) = make(name), qkv(batch=1)
    padded = torch.zeros(1, N, dtype=torch.bool)
    padded[:, [0, 1, 4, 9, 10, 11, N - 1]] = True
    kept = ~padded[0]
    expected = attention(*(x[:, :, kept] for x in (query, key, value)))
    assert_close(attention(query, key, value, padded)[:, :, kept], expected, 1e-6)


@every_name
def test_bfloat16_is_float32_of_rounded_inputs(name):
    """The reference computes in float32: only its output is rounded, by 2^-8 of it at most."""
    attention, given = make(name), [x.bfloat16() for x in qkv()]
    out = attention(*given)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), attention(*(x.float() for x in given)), rtol=2**-7, atol=1e-6)


def test_initial_decays_are_the_papers():
    # Gated Linear Attention, section 4.4: sigmoid(x)^(1/16), of x = 0.
    torch.testing.assert_close((-fresh("fla_gla").log_rate.exp()).exp(), torch.full((HEADS, H), 0.5 ** (1 / 16)))
    # A in the middle of each third of [0, 16], dt = 0.01.
    by_head = 0.01 * torch.tensor([16 / 6, 8, 16 * 5 / 6])
    for name in ("fla_simple_gla", "fla_gated_delta_rule"):
        torch.testing.assert_close(fresh(name).log_rate.exp(), by_head)
    rates = fresh("fla_kda").log_rate
    torch.testing.assert_close(rates.mean(-1).exp(), by_head)
    steps = rates[0].exp() / by_head[0] * 0.01
    assert 0.001 < steps.min() < 0.01 < steps.max() < 0.1


@every_name
def test_flops_are_those_of_the_formula(name):
    """Of the recurrence with matrix products; of both products where the package computes the n x n weights."""
    n, h = 16, 32
    attention, given = make(name, head_dim=h), [x.double() for x in qkv(n, h=h)]
    with torch.no_grad():
        counted = count(lambda: FORMULAS[name](attention, *given))
    products = sum(flops for operation, flops in counted.items() if operation != "sum")
    if name == "fla_linear_attn":  # its formula above is the n x n form
        products = count(lambda: recurrence(none)(attention, *given))["bmm"]
    assert attention.flops(2, n) == products


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
@every_name
def test_the_kernel_is_given_what_it_takes_without_a_copy(name, strided, monkeypatch):
    """The names exist, tensors are (batch, seq_len, heads, ...) and contiguous, as the package makes them otherwise.

    No kernel runs: there is no GPU here.
    """
    attention, given, calls = make(name), qkv(), []
    if strided:  # as a projection of the hidden state leaves them
        given = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
    function = attention.fused
    real = getattr(importlib.import_module(function.module), function.name)

    def kernel(**arguments):
        calls.append(inspect.signature(real).bind(**arguments).arguments)
        return torch.zeros_like(arguments["v"]), None

    monkeypatch.setattr("attention_zoo.third_party.fla._imported", lambda function: kernel)
    assert attention._call(function, *given, None).shape == given[0].shape
    ((arguments),) = calls
    folds = not (strided or function.knows_heads)
    layout = (2 * HEADS, N, 1) if folds else (2, N, HEADS)
    for tensor, expected in zip("qkv", given, strict=True):
        assert arguments[tensor].shape == (*layout, expected.shape[-1])
        assert arguments[tensor].is_contiguous() or (function.knows_heads and not strided)
    assert ("g" in arguments) == (attention.log_rate is not None)
    for gate in {"g", "beta"} & set(arguments):
        assert arguments[gate].shape[:3] == layout and arguments[gate].dtype == torch.float32
    assert ("beta" in arguments) == hasattr(attention.beta_logit, "shape")


def plain_kernel(q, k, v, g=None, g_gamma=None, scale=None, **_):
    """What fla's chunk_simple_gla computes, by the package's plain recurrence."""
    from fla.ops.simple_gla.naive import naive_recurrent_simple_gla

    g = torch.zeros(q.shape[:3]) if g is None else g
    return naive_recurrent_simple_gla(q, k, v, g + (0 if g_gamma is None else g_gamma), scale)[0], None


@pytest.mark.parametrize("name", ["fla_retention", "fla_lightning_attn", "fla_linear_attn"])
def test_kernel_and_reference_are_the_same_function(name, monkeypatch):
    """What the package wraps around its one kernel: the decays that it fixes, the normaliser."""
    attention, given = make(name), qkv()
    module = importlib.import_module(f"{attention.fused.module}.chunk")
    monkeypatch.setattr(module, "chunk_simple_gla", plain_kernel)
    if name == "fla_linear_attn":
        utils = importlib.import_module("fla.ops.linear_attn.utils")
        monkeypatch.setattr(utils, "chunk_global_cumsum", lambda x, **_: x.cumsum(1))
    assert_close(attention._call(attention.fused, *given, None), attention(*given), 1e-5)


def test_rebased_has_one_epsilon():
    """Small scores show it: the kernel's own default is ten times the reference's."""
    attention, (query, key, value) = make("fla_rebased"), qkv(1)
    score = (query * key).sum(-1, keepdim=True) / 2
    key = key * 1e-3 / score
    assert_close(attention(query, key, value), value / 2, 1e-3)
    assert attention.fused.options == {"eps": 1e-6}


@pytest.mark.gpu
@every_name
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_kernel_equals_the_reference(name, padded, dtype):
    h = 64
    attention = fresh(name, head_dim=h, dtype=dtype, device="cuda")
    if padded and not attention.info.padding:
        pytest.skip("refuses padding")
    mask = torch.zeros(2, 200, dtype=torch.bool, device="cuda") if padded else None
    if padded:
        mask[0, :50], mask[1, 120:] = True, True
    given = [x.requires_grad_() for x in qkv(200, h=h, device="cuda", dtype=dtype)]
    out = attention(*given, mask)
    assert attention.executed == ("fused", f"{attention.fused.module}.{attention.fused.name}")
    gradients = torch.autograd.grad(out.float().square().sum(), given)
    reference = fresh(name, head_dim=h, impl="reference", device="cuda")
    exact = [x.detach().float().requires_grad_() for x in given]
    expected = reference(*exact, mask)
    expected_gradients = torch.autograd.grad(expected.square().sum(), exact)
    # Relative error of the whole tensor: float32 kernels may use TF32, which rounds at 2^-11, bfloat16 at 2^-9.
    tolerance = {torch.float32: 1e-2, torch.bfloat16: 5e-2}[dtype]
    assert_near([out, *gradients], [expected, *expected_gradients], tolerance)
