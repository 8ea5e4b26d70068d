"""A mistake in an operation of a fast path makes a mechanism that is not measured."""

import pytest
import torch
from test_correctness import cell

from attention_zoo import bigbird, informer, linformer, nystromformer, reformer, skeinformer
from attention_zoo.ops import chunks, fused_softmax
from attention_zoo.ops.feature_product import block_gradients, block_sums, feature_maps
from attention_zoo.ops.feature_product import cpu as block_product
from bench.execution.child import measure_cell


def given(name, value):
    """The function with one of its keyword arguments replaced."""
    return lambda function: lambda *args, **kwargs: function(*args, **{**kwargs, name: value})


def giving(change):
    """The function with a change to what it gives."""
    return lambda function: lambda *args, **kwargs: change(function(*args, **kwargs))


def nothing(function):
    return lambda *args, **kwargs: None


def no_gradient(function):
    return lambda self, sums, block, scale: block.grad.zero_()


def first(function):
    return lambda one, *others: one


def one_iteration_less(function):
    return lambda kernel, iterations, x: function(kernel, iterations - 1, x)


def half_of_keys(gradients):
    query, key, *others = gradients
    return query, key / 2, *others


SCALE = given("scale", 0.1)
NORM_LESS = giving(lambda given: (given[0], given[1].flip(-1)))
LINFORMER = {"name": "linformer", "projection_dim": 32}
SKEINFORMER = {"name": "skeinformer", "num_features": 32}
NYSTROMFORMER = {"name": "nystromformer", "num_landmarks": 16}
INFORMER = {"name": "informer", "num_features": 16}
REFORMER = {"name": "reformer", "bucket_size": 16}
BIGBIRD = {"name": "bigbird", "block_size": 8}
PERFORMER = {"name": "performer", "num_features": 32, "block_size": 32}
LINEAR = {"name": "linear", "block_size": 32}
SKETCH = {"name": "polysketch", "sketch_size": 16, "block_size": 32}
SHORT_SKETCH = {"name": "polysketch", "sketch_size": 16}
SQUARE = {"name": "polynomial_square", "degree": 2}
EXACT = {"name": "polynomial", "degree": 4}
# By name: mechanism, whether causal, the module or class, its function, and the mistake in it.
IN_OUTPUT = {
    "linformer, scale": (LINFORMER, False, linformer, "attend", SCALE),
    "skeinformer, scale": (SKEINFORMER, False, skeinformer, "attend", SCALE),
    "skeinformer, norms of other columns": (SKEINFORMER, False, skeinformer, "attend_with_column_norms", NORM_LESS),
    "skeinformer, geometric mean": (
        *(SKEINFORMER, False, skeinformer, "geometric_mean"),
        giving(lambda given: given._replace(lse=given.lse - 1)),
    ),
    "nystromformer, an iteration less": (
        *(NYSTROMFORMER, False, nystromformer, "times_pseudo_inverse"),
        one_iteration_less,
    ),
    "informer, scale": (INFORMER, False, informer, "attend", SCALE),
    "informer, other rows": (INFORMER, False, informer, "take_rows", giving(lambda rows: rows.roll(1, 2))),
    "bigbird, scale": (BIGBIRD, False, bigbird, "attend", SCALE),
    "bigbird, hidden keys": (BIGBIRD, False, bigbird.BigBird, "_hidden", giving(torch.zeros_like)),
    "reformer, rounds": (REFORMER, False, reformer, "merge", first),
    "reformer, hidden keys": (REFORMER, True, reformer.Reformer, "_hidden", giving(torch.zeros_like)),
    "polynomial, the future": (
        *(EXACT, True, chunks, "_row_chunks"),
        giving(lambda given: (rows._replace(visible=None) for rows in given)),
    ),
    "polynomial_square, denominator": (SQUARE, False, chunks, "_divided", first),
    "performer, sums of keys": (PERFORMER, True, block_sums.Sums, "advance", nothing),
    "performer, scales": (PERFORMER, True, block_sums.Sums, "decay", nothing),
    "linear, sums of keys": (LINEAR, True, block_sums.Sums, "advance", nothing),
    "linear, denominator": (LINEAR, False, feature_maps.Plain, "read_norm", giving(torch.ones_like)),
    "polysketch, pairs": (SKETCH, True, feature_maps.Squares, "expand", given("doubled", False)),
    "polysketch, denominator": (SKETCH, True, feature_maps.Squares, "read_norm", giving(torch.zeros_like)),
    "polysketch, the future": (SHORT_SKETCH, True, block_product, "visible", first),
}
IN_GRADIENT = {
    "linformer": (LINFORMER, False, fused_softmax, "_backward", giving(half_of_keys)),
    "skeinformer": (SKEINFORMER, False, fused_softmax, "_backward", giving(half_of_keys)),
    "informer": (INFORMER, False, fused_softmax, "_backward", giving(half_of_keys)),
    "bigbird": (BIGBIRD, False, fused_softmax, "_backward", giving(half_of_keys)),
    "reformer": (REFORMER, False, fused_softmax, "_with_lse_column", lambda function: lambda *x: x[:5]),
    "nystromformer": (
        *(NYSTROMFORMER, False, nystromformer._Iterations, "backward"),
        giving(lambda gradients: (gradients[0] / 2, *gradients[1:])),
    ),
    "polynomial": (EXACT, True, chunks._WeightedValues, "backward", giving(lambda g: (*g[:3], g[3] / 2, *g[4:]))),
    "polynomial_square": (
        *(SQUARE, False, chunks._WeightedValues, "backward"),
        giving(lambda g: (*g[:3], g[3] / 2, *g[4:])),
    ),
    "performer": (PERFORMER, True, block_gradients.Gradients, "_from_keys", no_gradient),
    "linear": (LINEAR, False, feature_maps.Plain, "pull_norm", nothing),
    "polysketch": (SKETCH, True, feature_maps.Squares, "pull_back", given("doubled", False)),
    "polysketch, short": (SHORT_SKETCH, True, block_gradients, "visible", first),
}


def measured(attention, causal, measured_pass, tmp_path):
    config = cell(attention["name"], attention=attention, causal=causal, impl="fused", passes=[measured_pass])
    return measure_cell(config, tmp_path, tmp_path / "progress")


def planted(monkeypatch, where, name, mistake):
    function = vars(where)[name]
    if isinstance(function, staticmethod):
        monkeypatch.setattr(where, name, staticmethod(mistake(function.__func__)))
    else:
        monkeypatch.setattr(where, name, mistake(function))


@pytest.mark.parametrize("name", IN_OUTPUT)
def test_a_mistake_in_the_forward_pass_is_caught(name, monkeypatch, tmp_path):
    attention, causal, *where = IN_OUTPUT[name]
    assert measured(attention, causal, "forward", tmp_path)["status"] == "ok"
    planted(monkeypatch, *where)
    result = measured(attention, causal, "forward", tmp_path)
    assert result["status"] in ("incorrect", "nonfinite"), result


@pytest.mark.parametrize("name", IN_GRADIENT)
def test_a_mistake_in_the_backward_pass_is_caught(name, monkeypatch, tmp_path):
    attention, causal, *where = IN_GRADIENT[name]
    assert measured(attention, causal, "forward_backward", tmp_path)["status"] == "ok"
    planted(monkeypatch, *where)
    assert measured(attention, causal, "forward", tmp_path)["status"] == "ok"
    result = measured(attention, causal, "forward_backward", tmp_path)
    assert result["status"] in ("incorrect", "nonfinite") and "gradient" in result["reason"], result
