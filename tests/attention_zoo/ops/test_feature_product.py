import pytest
import torch
from closeness import assert_near
from operations import feature_product as by_formula
from operations import product_weights
from small import assert_close as assert_equal
from small import gradients
from torch.profiler import ProfilerActivity, profile

from attention_zoo.ops.feature_product.reference import LocalInputs, feature_product, normalised_feature_product

BATCH, HEADS, N, R, H, K = 2, 2, 13, 3, 4, 5
BLOCK_SIZES = range(1, N + 4)  # one row, sizes that do not divide 13, the whole, and more than there is

every_degree = pytest.mark.parametrize("degree", [1, 2])
every_form = pytest.mark.parametrize("is_local", [False, True], ids=["plain", "local"])
every_scale = pytest.mark.parametrize("is_scaled", [False, True], ids=["unscaled", "scaled"])


def tensors(lengths, widths, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(BATCH, HEADS, n, *width) for n, width in zip(lengths, widths, strict=True)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def causal_inputs(n=N, dtype=torch.float64):
    """left, right, value, local query, local key, log_scale."""
    *given, log_scale = tensors([n] * 6, [(R,), (R,), (K,), (H,), (H,), ()], dtype)
    return [*given, 2 * log_scale]


def dense(left, right, value, causal, degree, block_size=1, local=None, log_scale=None):
    """The definition, with the whole matrix."""
    *exact, local_degree = local or (None, None, 1)
    given = {"causal": causal, "degree": degree, "block_size": block_size, "local_degree": local_degree}
    return product_weights(left, right, *exact, log_scale, **given).to(value.dtype) @ value


def both(given, block_size, degree, is_local, is_scaled, local_degree=4):
    left, right, value, query, key, log_scale = given
    local, scale = LocalInputs(query, key, local_degree) if is_local else None, log_scale if is_scaled else None
    settings = {"causal": True, "degree": degree, "block_size": block_size, "local": local, "log_scale": scale}
    return feature_product(left, right, value, **settings), dense(left, right, value, **settings)


@every_degree
@every_form
@every_scale
def test_a_causal_product_and_its_gradients_equal_the_dense_definition(degree, is_local, is_scaled):
    given = [x.requires_grad_() for x in causal_inputs()]
    for block_size in BLOCK_SIZES:
        outputs = both(given, block_size, degree, is_local, is_scaled)
        assert_equal(*outputs)
        assert_equal(*(gradients(out, given) for out in outputs))


@pytest.mark.parametrize("at_once", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
def test_heads_taken_a_few_at_a_time_change_nothing(causal, at_once, monkeypatch):
    """A CPU takes as many of the four heads as its cache holds; three leave a rest of one."""
    *given, query, key, log_scale = (x.requires_grad_() for x in causal_inputs())
    own = {"local": LocalInputs(query, key, 4), "log_scale": log_scale} if causal else {}
    leaves = [*given, query, key, log_scale] if causal else given
    settings = {"causal": causal, "degree": 2, "block_size": 4}
    expected = dense(*given, **settings, **own)
    monkeypatch.setattr("attention_zoo.ops.feature_product.reference.CPU_CACHE_BYTES", at_once * 4 * R**2 * 8)
    actual = feature_product(*given, **settings, **own)
    assert_equal(actual, expected)
    assert_equal(*(gradients(out, leaves) for out in (actual, expected)))


@every_degree
@pytest.mark.parametrize("keys", [1, 7, 20])
def test_non_causal_equals_the_dense_definition_with_gradients(degree, keys):
    given = [x.requires_grad_() for x in tensors([N, keys, keys], [(R,), (R,), (K,)])]
    expected = dense(*given, False, degree)
    expected_gradients = gradients(expected, given)
    for block_size in (1, 2, 5, 7, N, 23):
        actual = feature_product(*given, causal=False, degree=degree, block_size=block_size)
        assert_equal(actual, expected)
        assert_equal(gradients(actual, given), expected_gradients)


@every_degree
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_normalised_product_divides_by_the_bias_and_the_weights(bias, causal, degree):
    left, right, value = (x.abs() for x in causal_inputs()[:3])
    left[:, :, 4] = 0  # no weight at all: zeros, whatever the bias
    expected = by_formula(left, right, value, bias=bias, causal=causal, degree=degree)
    settings = {"causal": causal, "degree": degree, "block_size": 5}
    given = [x.requires_grad_() for x in (left, right, value)]
    out = normalised_feature_product(*given, bias=bias, **settings)
    assert_equal(out, expected)
    assert (out[:, :, 4] == 0).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), given))


@every_degree
@every_form
@every_scale
def test_bfloat16_is_close_to_float64(degree, is_local, is_scaled):
    *rounded, log_scale = causal_inputs(64, torch.bfloat16)
    out, _ = both([*rounded, log_scale.float()], 8, degree, is_local, is_scaled, 2)
    expected, _ = both([*(x.double() for x in rounded), log_scale.double()], 8, degree, is_local, is_scaled, 2)
    assert out.dtype == torch.float32
    # A product is rounded by 2^-8 at most, squaring doubles that, a weight is rounded again; the sums are float32.
    assert_near(out, expected, 2**-6)


def test_state_is_summed_in_float32_for_bfloat16():
    """In bfloat16 adding 1 to 256 does nothing; 1,024 blocks of one row show what the sum is kept in."""
    ones = torch.ones(1, 1, 1024, 1, dtype=torch.bfloat16)
    out = feature_product(ones, ones, ones, causal=True, block_size=1)
    # The state itself is rounded to bfloat16 when it is read, by 2^-8 of it at most.
    torch.testing.assert_close(out[0, 0, :, 0], torch.arange(1.0, 1025), rtol=2**-7, atol=0)


@every_degree
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_extreme_scales_stay_finite_in_float32(degree, order):
    """exp(200) overflows float32, and exp(400) is what two scales of +-200 are apart."""
    left, right, value, *_, log_scale = causal_inputs(40)
    log_scale = 200 * log_scale.clamp(-1, 1)
    if order != "random":
        log_scale = log_scale.sort(-1, descending=order == "descending").values
    for block_size in (1, 7, 40):
        given = [x.float().requires_grad_() for x in (left, right, value, log_scale)]
        exact = [x.requires_grad_() for x in (left, right, value, log_scale)]
        out, expected = (
            feature_product(*x[:3], causal=True, degree=degree, block_size=block_size, log_scale=x[3])
            for x in (given, exact)
        )
        assert_equal(out.double(), expected, 1e-4)  # a float32 scale of 200 rounds at 1.5e-5, which exp keeps
        found, exactly = (torch.autograd.grad(o.sum(), x) for o, x in ((out, given), (expected, exact)))
        assert_equal([x.double() for x in found], exactly, 1e-4)


def memory_events(call):
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    events = profiler.profiler.kineto_results.events()
    changes = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.name() == "[memory]"]
    peak = torch.tensor(changes).cumsum(0).max().item()
    return max(changes), peak


@pytest.mark.parametrize("causal, is_local", [(False, False), (True, True)])
def test_neither_the_matrix_nor_the_features_are_ever_in_memory(causal, is_local):
    n, r = 2048, 32
    given = [torch.randn(1, 1, n, r, dtype=torch.float64, requires_grad=True) for _ in range(5)]
    local = LocalInputs(*given[3:], 4) if is_local else None

    def forward_and_backward():
        out = feature_product(*given[:3], causal=causal, degree=2, block_size=64, local=local)
        return torch.autograd.grad(out.sum(), given[:3])

    matrix, features = 8 * n * n, 8 * n * r**2
    largest, peak = memory_events(forward_and_backward)
    # One of the 32 blocks of features at a time; the peak adds outputs, gradients and the state, all n x r or r^3.
    assert largest <= features / 32 < matrix / 50
    assert peak < features / 2
    # The check sees what it must: the dense definition does allocate the matrix.
    assert memory_events(lambda: dense(*given[:3], causal, 2))[0] >= matrix
