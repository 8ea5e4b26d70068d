import math

import pytest
import torch
from performer_pytorch import performer_pytorch

import attention_zoo
from attention_zoo.ops.draws import orthogonal_features

N, H, M, HEADS = 13, 4, 6, 2


def qkv(n=N, h=H, heads=HEADS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(2, heads, n, h, generator=generator, dtype=torch.float64) for _ in range(3)]


def make(**given):
    common = {"head_dim": H, "num_heads": HEADS, "num_features": M, "dtype": torch.float64}
    return attention_zoo.create("performer", **(common | given))


def assert_close(actual, expected, tolerance=1e-11):
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


# --- The kernel -----------------------------------------------------------------------------------


def unit_pair(cosine, h=8):
    first, second = torch.zeros(2, h, dtype=torch.float64)
    first[0], second[:2] = 1, torch.tensor([cosine, math.sqrt(1 - cosine**2)])
    return first, second


def alike(entry, h=8):
    """The directions in which the official orthogonal features err most: all coordinates alike."""
    return 2 * [torch.full((h,), entry / math.sqrt(h), dtype=torch.float64)]


PAIRS = [*(unit_pair(cosine) for cosine in (1.0, 0.3, 0.0, -0.5)), *(alike(x) for x in (1, -1, 0.5, -0.5))]


def kernel_estimates(first, second, projections):
    """`<phi(x), phi(y)>` for each projection `(draws, m, h)`: FAVOR+ by its formula."""
    features = [(projections @ x - x @ x / 2).exp() for x in (first, second)]
    return (features[0] * features[1]).mean(-1)


def draws_of(attention, count):
    matrices = []
    for seed in range(count):
        attention.resample(seed)
        matrices.append(attention.projection.clone())
    return torch.stack(matrices)


def sigmas(samples, expected):
    return abs(samples.mean() - expected) / (samples.std() / math.sqrt(len(samples)))


@pytest.mark.parametrize("orthogonal, m", [(True, 8), (True, 5), (True, 20), (False, 8)])
def test_kernel_is_unbiased(orthogonal, m):
    """E <phi(x), phi(y)> = exp(<x, y>), x and y scaled: for m = h, less, and blocks of which one is cut."""
    projections = draws_of(make(head_dim=8, num_features=m, orthogonal=orthogonal), 5000)
    for x, y in PAIRS:
        assert sigmas(kernel_estimates(x, y, projections), math.exp(x @ y)) < 4


def test_unbiasedness_is_tested_well_enough_to_see_the_bias_of_the_official_features():
    """Those of performer-pytorch, as those of the authors, leave the signs of QR to LAPACK."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        official = [performer_pytorch.gaussian_orthogonal_random_matrix(8, 8) for _ in range(5000)]
    projections = torch.stack(official).double()
    assert max(sigmas(kernel_estimates(x, y, projections), math.exp(x @ y)) for x, y in PAIRS) > 20


def test_features_are_those_of_the_formula():
    attention, (query, key, _) = make(eps=0), qkv()
    products = attention.features(query) @ attention.features(key).mT
    scaled = [x * H**-0.25 for x in (query, key)]
    expected = torch.stack(
        [
            kernel_estimates(scaled[0][b, head, i], scaled[1][b, head, j], attention.projection[None])
            for b in range(2)
            for head in range(HEADS)
            for i in range(N)
            for j in range(N)
        ]
    )
    assert_close(products, expected.reshape(2, HEADS, N, N))


@pytest.mark.parametrize("rows", [3, 8, 20])
def test_orthogonal_features_are_orthogonal_in_blocks_with_chi_norms(rows):
    h, draws = 8, 400
    generator = torch.Generator().manual_seed(0)
    matrices = torch.stack([orthogonal_features(rows, h, generator) for _ in range(draws)]).double()
    for start in range(0, rows, h):
        block = torch.nn.functional.normalize(matrices[:, start : start + h], dim=-1)
        assert_close(block @ block.mT, torch.eye(block.shape[1]).double().expand(draws, -1, -1), 1e-6)  # float32
    # Rows are N(0, I), so squared norms are chi^2 of h: mean h, variance 2h; 5 sigma.
    squares = matrices.square().sum(-1).flatten()
    assert abs(squares.mean() - h) < 5 * math.sqrt(2 * h / len(squares))
    assert abs(squares.var() / (2 * h) - 1) < 5 * math.sqrt((2 + 12 / h) / len(squares))
    # Every entry alone is N(0, 1), wherever it stands.
    assert matrices.mean(0).abs().max() < 5 / math.sqrt(draws)
    assert (matrices.square().mean(0) - 1).abs().max() < 5 * math.sqrt(2 / draws)


def test_orthogonal_features_have_the_smaller_variance():
    x, y = unit_pair(0.3)
    deviations = [
        kernel_estimates(x, y, draws_of(make(head_dim=8, num_features=8, orthogonal=orthogonal), 4000)).std()
        for orthogonal in (True, False)
    ]
    # The ratio is about 0.9; a standard deviation of 4,000 heavy-tailed draws is good to 3%.
    assert deviations[0] < 0.97 * deviations[1]


def test_error_falls_as_one_over_the_root_of_m():
    x, y = unit_pair(0.3)

    def error(m):
        projections = draws_of(make(head_dim=8, num_features=m), 400)
        return (kernel_estimates(x, y, projections) - math.exp(0.3)).square().mean().sqrt()

    # 16 times the features: a quarter, to the 15% or so that 400 draws leave uncertain.
    assert 0.2 < error(1024) / error(64) < 0.3


# --- The attention --------------------------------------------------------------------------------


def dense(query, key, value, attention, causal=False, mask=None):
    """Unstabilised: `phi(Q) phi(K)^T` with the whole matrix, eps = 0."""
    weights = attention.features(query) @ attention.features(key).mT
    if mask is not None:
        weights = weights * ~mask[:, None, None]
    weights = weights.tril() if causal else weights
    return weights @ value / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_algorithm_equals_the_dense_one(causal, padded):
    given, mask = qkv(), None
    if padded:
        mask = torch.zeros(2, N, dtype=torch.bool)
        mask[0, 5:9], mask[1, 10:] = True, True
    expected = dense(*given, make(eps=0), causal, mask)
    for block_size in (1, 2, 5, N, 64):
        assert_close(make(eps=0, causal=causal, block_size=block_size)(*given, mask), expected)
    assert_close(make(eps=0, causal=causal, causal_algorithm="cumulative_sum")(*given, mask), expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_eps_is_relative_to_the_largest_feature_of_its_own_position(eps, causal):
    query, key, value = qkv()

    def lifted(x):
        features = make(eps=0).features(x)
        return features + eps * features.amax(-1, keepdim=True)

    attention = make(eps=eps, causal=causal, block_size=5)
    assert_close(attention.features(query), lifted(query))
    weights = lifted(query) @ lifted(key).mT
    weights = weights.tril() if causal else weights
    assert_close(attention(query, key, value), weights @ value / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize("causal", [False, True])
def test_many_features_are_softmax_attention(causal):
    query, key, value = (0.5 * x for x in qkv())
    expected = attention_zoo.create("softmax", head_dim=H, num_heads=HEADS, causal=causal)(query, key, value)
    errors = [
        (make(num_features=m, causal=causal, seed=1)(query, key, value) - expected).norm() / expected.norm()
        for m in (64, 65536)
    ]
    # 1024 times the features: about a thirtieth of the error.
    assert errors[1] < 0.01 and errors[1] < errors[0] / 10


def official(query, key, value, attention, eps, causal=True):
    """performer-pytorch: the keys' stabiliser is one maximum over all of them, future ones included."""
    left, right = (
        performer_pytorch.softmax_kernel(x, projection_matrix=attention.projection, is_query=x is query, eps=eps)
        for x in (query, key)
    )
    if causal:
        return performer_pytorch.causal_linear_attention_noncuda(left, right, value, eps=0)
    return performer_pytorch.linear_attention(left, right, value)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("causal", [False, True])
def test_equals_performer_pytorch_without_its_eps(causal, orthogonal):
    attention, given = make(causal=causal, orthogonal=orthogonal, eps=0, block_size=4), qkv()
    assert_close(attention(*given), official(*given, attention, 0, causal))


def test_performer_pytorch_itself_differs_by_its_eps():
    """1e-4 of the largest feature of all keys, which drowns those of a key far below it: it cannot be turned off."""
    module = performer_pytorch.FastAttention(dim_heads=H, nb_features=M)
    attention, (query, key, value) = make(eps=0), qkv()
    module.projection_matrix = attention.projection
    errors = [
        (module(size * query, size * key, value) - attention(size * query, size * key, value)).abs().max()
        for size in (0.1, 1, 4)
    ]
    assert errors[0] < 1e-3 and errors[1] < 0.1 < errors[2]


@pytest.mark.parametrize("eps", [1e-4, 1e-6])
def test_the_last_key_does_not_move_past_outputs(eps):
    """Eightfold, so that it holds the maximum: that is when the official code leaks, and it is seen to here."""
    query, key, value = qkv()
    attention, moved = make(causal=True, block_size=4, eps=eps), key.clone()
    moved[:, :, -1] *= 8
    out, expected = attention(query, moved, value), attention(query, key, value)
    assert_close(out[:, :, :-1], expected[:, :, :-1], 1e-14)
    assert (out[:, :, -1] - expected[:, :, -1]).abs().max() > 1e-3

    def leak(eps):
        outputs = [official(query, k, value, attention, eps)[:, :, :-1] for k in (moved, key)]
        return (outputs[0] - outputs[1]).abs().max()

    assert leak(eps) > 1e-9 and leak(0) < 1e-12


@pytest.mark.parametrize("impl", ["reference", "fused"])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_sets_no_maximum(causal, impl):
    """Keys of norm 100 have features of e^-2500: relative to those of a padded zero vector they are nothing."""
    query, key, value = qkv()
    key = 100 * torch.nn.functional.normalize(key, dim=-1)
    mask = (torch.arange(N) < 2).expand(2, N)
    out = make(causal=causal, block_size=4, impl=impl)(query, torch.where(mask[:, None, :, None], 0, key), value, mask)
    first = 2 if causal else 0
    expected = make(causal=causal)(query[:, :, first:], key[:, :, 2:], value[:, :, 2:])
    assert_close(out[:, :, first:], expected)


@pytest.mark.parametrize("causal", [False, True])
def test_scale_multiplies_the_scores(causal):
    """`exp(scale <q, k>)` of some vectors is `exp(<q', k'> / sqrt(h))` of rescaled ones."""
    query, key, value = qkv()
    factor = math.sqrt(0.03 * math.sqrt(H))
    rescaled = make(causal=causal)(factor * query, factor * key, value)
    assert_close(make(causal=causal, scale=0.03)(query, key, value), rescaled)


# --- The schedule of redraws ----------------------------------------------------------------------


def projections_of(attention, forwards):
    """The projection that each of the next forward passes uses."""
    used = []
    for _ in range(forwards):
        attention(*qkv())
        used.append(attention.projection.clone())
    return used


def runs_of(projections):
    """How many forward passes in a row share each projection."""
    changes = [i for i in range(1, len(projections)) if not torch.equal(projections[i - 1], projections[i])]
    return [b - a for a, b in zip([0, *changes], [*changes, len(projections)], strict=True)]


@pytest.mark.parametrize("interval", [1, 3])
def test_a_projection_serves_one_interval_of_training(interval):
    projections = projections_of(make(redraw_interval=interval).train(), 3 * interval + 1)
    assert runs_of(projections) == [interval, interval, interval, 1]
    assert torch.equal(projections[0], make().projection)
    assert len({tuple(p.flatten().tolist()) for p in projections}) == 4, "a projection came back"
    # Blocks of orthogonal rows, as the first draw: the schedule changes when, not what is drawn.
    block = torch.nn.functional.normalize(projections[-1][:H], dim=-1)
    assert_close(block @ block.mT, torch.eye(H, dtype=torch.float64), 1e-6)


def test_neighbouring_seeds_share_no_projection():
    """As `seed + number` would: layers have neighbouring seeds."""
    drawn = [p for seed in (0, 1, 2) for p in projections_of(make(redraw_interval=1, seed=seed).train(), 3)]
    assert len({tuple(p.flatten().tolist()) for p in drawn}) == 9


def test_evaluation_neither_draws_nor_counts():
    attention = make(redraw_interval=2).train()
    (first,) = projections_of(attention, 1)
    assert runs_of([first, *projections_of(attention.eval(), 5)]) == [6]
    assert runs_of([first, *projections_of(attention.train(), 2)]) == [2, 1]


def test_without_an_interval_training_draws_none():
    assert runs_of(projections_of(make().train(), 5)) == [5]


@pytest.mark.parametrize("forwards", [1, 2, 5])
def test_a_resumed_training_redraws_at_the_same_forwards(forwards, tmp_path):
    """Also into an instance of another seed, and in the middle of an interval."""
    attention = make(redraw_interval=2, seed=1).train()
    projections_of(attention, forwards)
    torch.save(attention.state_dict(), tmp_path / "state.pt")
    resumed = make(redraw_interval=2, seed=2).train()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for actual, expected in zip(projections_of(resumed, 5), projections_of(attention, 5), strict=True):
        assert torch.equal(actual, expected)


def test_resample_restarts_the_schedule():
    attention = make(redraw_interval=2, seed=1).train()
    projections_of(attention, 3)
    attention.resample(1)
    fresh = make(redraw_interval=2, seed=1).train()
    for actual, expected in zip(projections_of(attention, 5), projections_of(fresh, 5), strict=True):
        assert torch.equal(actual, expected)


def test_a_redraw_does_not_disturb_the_backward_pass_of_the_forward_before():
    attention, (query, key, value) = make(redraw_interval=1).train(), qkv()
    query.requires_grad_()
    outputs = [attention(query, key, value).sum() for _ in range(2)]
    (delayed,) = torch.autograd.grad(outputs[0], query)
    (prompt,) = torch.autograd.grad(make()(query, key, value).sum(), query)
    assert torch.equal(delayed, prompt)


def test_redraws_in_inference_mode_do_not_spoil_training():
    attention, given = make(redraw_interval=1).train(), [x.requires_grad_() for x in qkv()]
    with torch.inference_mode():
        projections_of(attention, 2)
    attention.redraw_interval = None
    assert torch.autograd.grad(attention(*given).square().sum(), given)[0].isfinite().all()


@pytest.mark.parametrize(
    "given",
    [
        {"num_features": 0},
        {"eps": -1e-6},
        {"orthogonal": 1},
        {"block_size": 0},
        {"causal_algorithm": "scan"},
        {"redraw_interval": 0},
    ],
)
def test_bad_hyperparameters_are_refused(given):
    with pytest.raises(ValueError, match=f"^{next(iter(given))}="):
        make(**given)
