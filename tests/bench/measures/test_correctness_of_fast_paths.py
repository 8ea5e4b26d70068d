"""A mistake in an operation of a fast path makes a mechanism that is not measured."""

import pytest
import torch
from test_correctness import cell

from attention_zoo import bigbird, linformer, nystromformer, skeinformer
from attention_zoo.ops import chunks, fused_softmax
from attention_zoo.ops.feature_product import blocks, cpu, feature_maps
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


NORM_LESS = giving(lambda given: (given[0], given[1].flip(-1)))
LINFORMER = {"name": "linformer", "projection_dim": 32}
SKEINFORMER = {"name": "skeinformer", "num_features": 32}
NYSTROMFORMER = {"name": "nystromformer", "num_landmarks": 16}
BIGBIRD = {"name": "bigbird", "block_size": 8}
PERFORMER = {"name": "performer", "num_features": 32, "block_size": 32}
LINEAR = {"name": "linear", "block_size": 32}
SKETCH = {"name": "polysketch", "sketch_size": 16, "block_size": 32}
SQUARE = {"name": "polynomial_square", "degree": 2}
EXACT = {"name": "polynomial", "degree": 4}
# By name: mechanism, whether causal, the module or class, its function, and the mistake in it. One of each kind.
IN_OUTPUT = {
    "scale": (LINFORMER, False, linformer, "attend", given("scale", 0.1)),
    "norms of other columns": (SKEINFORMER, False, skeinformer, "attend_with_column_norms", NORM_LESS),
    "an iteration less": (NYSTROMFORMER, False, nystromformer, "times_pseudo_inverse", one_iteration_less),
    "hidden keys": (BIGBIRD, False, bigbird.BigBird, "_hidden", giving(torch.zeros_like)),
    "denominator": (SQUARE, False, chunks, "_divided", first),
    "sums of keys": (PERFORMER, True, blocks.Sums, "advance", nothing),
    "pairs": (SKETCH, True, feature_maps.Squares, "expand", given("doubled", False)),
}
IN_GRADIENT = {
    "of keys": (LINFORMER, False, fused_softmax, "_backward", giving(half_of_keys)),
    "of chunks": (EXACT, True, chunks._WeightedValues, "backward", giving(lambda g: (*g[:3], g[3] / 2, *g[4:]))),
    "from keys": (PERFORMER, True, cpu.Gradients, "_from_keys", no_gradient),
    "of the norm": (LINEAR, False, feature_maps.Plain, "pull_norm", nothing),
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
