import math

import pytest
import torch
from small import H, assert_close, assert_moments, maker, padding_at, sized, unit_pair
from torch._dynamo.testing import CompileCounter
from torch.utils.checkpoint import checkpoint

from attention_zoo.ops.draws import orthogonal_features

N, M = 13, 6
qkv, make = sized(N), maker("performer", num_features=M)


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


@pytest.mark.parametrize("orthogonal, m", [(True, 5), (True, 11), (False, 8)])
def test_kernel_is_unbiased(orthogonal, m):
    """E <phi(x), phi(y)> = exp(<x, y>), x and y scaled: for m < h, and blocks of which one is cut."""
    projections = draws_of(make(head_dim=8, num_features=m, orthogonal=orthogonal), 5000)
    for x, y in PAIRS:
        assert_moments(kernel_estimates(x, y, projections), math.exp(x @ y))


def test_features_are_those_of_the_formula():
    attention, (x, _, _) = make(eps=0), qkv()
    scaled = x * H**-0.25
    exponents = scaled @ attention.projection.T - scaled.square().sum(-1, keepdim=True) / 2
    assert_close(attention.features(x), exponents.exp() / math.sqrt(M))


@pytest.mark.parametrize("rows", [3, 8, 20])
def test_orthogonal_features_are_orthogonal_in_blocks_with_chi_norms(rows):
    h, draws = 8, 400
    generator = torch.Generator().manual_seed(0)
    matrices = torch.stack([orthogonal_features(rows, h, generator) for _ in range(draws)]).double()
    for start in range(0, rows, h):
        block = torch.nn.functional.normalize(matrices[:, start : start + h], dim=-1)
        assert_close(block @ block.mT, torch.eye(block.shape[1]).double().expand(draws, -1, -1), 1e-6)  # float32
    # Rows are N(0, I), so squared norms are chi^2 of h: mean h, variance 2h.
    assert_moments(matrices.square().sum(-1) - h, 0, 2 * h)
    # Every entry alone is N(0, 1), wherever it stands.
    assert matrices.mean(0).abs().max() < 5 / math.sqrt(draws)
    assert (matrices.square().mean(0) - 1).abs().max() < 5 * math.sqrt(2 / draws)


def test_error_falls_as_one_over_the_root_of_m():
    x, y = (vector / 2 for vector in unit_pair(0.3))  # of longer ones a few draws decide

    def error(m):
        projections = draws_of(make(head_dim=8, num_features=m), 400)
        return (kernel_estimates(x, y, projections) - math.exp(0.3 / 4)).square().mean().sqrt()

    # 16 times the features: a quarter, to the 15% or so that 400 draws leave uncertain.
    assert 0.2 < error(256) / error(16) < 0.3


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("eps", [0, 1e-6, 1e-2])
def test_every_algorithm_equals_the_dense_one(eps, causal, padded):
    """Unstabilised, with the whole matrix; eps is relative to the largest feature of its own position."""
    (query, key, value), mask = qkv(), padding_at(N, slice(5, 9), slice(10, N)) if padded else None
    features = [make(eps=0).features(x) for x in (query, key)]
    lifted = [x + eps * x.amax(-1, keepdim=True) for x in features]
    assert_close(make(eps=eps).features(query), lifted[0])
    weights = lifted[0] @ lifted[1].mT * (1 if mask is None else ~mask[:, None, None])
    weights = weights.tril() if causal else weights
    expected = weights @ value / weights.sum(-1, keepdim=True)
    for block_size in (1, 2, 5, N, 64):
        assert_close(make(eps=eps, causal=causal, block_size=block_size)(query, key, value, mask), expected)
    assert_close(make(eps=eps, causal=causal, causal_algorithm="cumulative_sum")(query, key, value, mask), expected)


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


@pytest.mark.parametrize("forwards", [1, 2, 5])
def test_a_resumed_training_redraws_at_the_same_forwards_and_a_resampled_one_from_the_start(forwards, tmp_path):
    """Also into an instance of another seed, and in the middle of an interval."""
    attention = make(redraw_interval=2, seed=1).train()
    projections_of(attention, forwards)
    torch.save(attention.state_dict(), tmp_path / "state.pt")
    resumed = make(redraw_interval=2, seed=2).train()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert all(map(torch.equal, projections_of(resumed, 5), projections_of(attention, 5)))
    attention.resample(1)
    fresh = make(redraw_interval=2, seed=1).train()
    assert all(map(torch.equal, projections_of(attention, 5), projections_of(fresh, 5)))


def test_a_redraw_does_not_disturb_the_backward_pass_of_the_forward_before():
    attention, (query, key, value) = make(redraw_interval=1).train(), qkv()
    query.requires_grad_()
    outputs = [attention(query, key, value).sum() for _ in range(2)]
    (delayed,) = torch.autograd.grad(outputs[0], query)
    (prompt,) = torch.autograd.grad(make()(query, key, value).sum(), query)
    assert torch.equal(delayed, prompt)


@pytest.mark.parametrize("interval", [1, 3])
@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_no_other_forward(interval, reentrant):
    """Its projection is that of the output, and the next redraw comes when it would have come without."""
    plain, again = (make(redraw_interval=interval).train() for _ in range(2))
    for _step in range(2 * interval + 2):
        found = []
        for attention in (plain, again):
            given = [x.clone().requires_grad_() for x in qkv()]
            out = attention(*given) if attention is plain else checkpoint(attention, *given, use_reentrant=reentrant)
            out.square().sum().backward()
            found.append([x.grad for x in given])
        torch.testing.assert_close(*found)


def test_a_pytorch_that_does_not_say_where_a_checkpoint_computes_again_still_redraws(monkeypatch):
    """`_current_graph_task_id` is private, seen in PyTorch 2.13: without it every pass counts, as before 0.2."""
    assert hasattr(torch._C, "_current_graph_task_id")
    monkeypatch.delattr(torch._C, "_current_graph_task_id")
    assert len(projections_of(make(redraw_interval=1).train(), 3)) == 3


def test_redraws_in_inference_mode_do_not_spoil_training():
    attention, given = make(redraw_interval=1).train(), [x.requires_grad_() for x in qkv()]
    with torch.inference_mode():
        projections_of(attention, 2)
    attention.redraw_interval = None
    assert torch.autograd.grad(attention(*given).square().sum(), given)[0].isfinite().all()


@pytest.mark.filterwarnings("ignore")
def test_a_compiler_compiles_it_once_however_often_it_draws():
    attention, counter = make(redraw_interval=3).train(), CompileCounter()
    plain = make(redraw_interval=3).train()
    compiled, given = torch.compile(attention, backend=counter), qkv()
    for _ in range(8):
        assert_close(compiled(*given), plain(*given))
    assert counter.frame_count <= 3
