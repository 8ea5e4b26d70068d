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
    "norms of other columns": (
        SKEINFORMER, False, skeinformer, "attend_with_column_norms", giving(lambda out: (out[0], out[1].flip(-1))),
    ),
    "an iteration less": (
        NYSTROMFORMER, False, nystromformer, "times_pseudo_inverse", lambda right: lambda k, n, x: right(k, n - 1, x),
    ),
    "hidden keys": (BIGBIRD, False, bigbird.BigBird, "_hidden", giving(torch.zeros_like)),
    "denominator": (SQUARE, False, chunks, "_divided", lambda function: lambda one, *others: one),
    "sums of keys": (PERFORMER, True, blocks.Sums, "advance", lambda function: lambda *args, **kwargs: None),
    "pairs": (SKETCH, True, feature_maps.Squares, "expand", given("doubled", False)),
}  # fmt: skip
IN_GRADIENT = {
    "of keys": (LINFORMER, False, fused_softmax, "_backward", giving(lambda g: (g[0], g[1] / 2, *g[2:]))),
    "of chunks": (EXACT, True, chunks._WeightedValues, "backward", giving(lambda g: (*g[:3], g[3] / 2, *g[4:]))),
    "from keys": (
        PERFORMER, True, cpu.Gradients, "_from_keys",
        lambda function: lambda self, sums, block, scale: block.grad.zero_(),
    ),
    "of the norm": (LINEAR, False, feature_maps.Plain, "pull_norm", lambda function: lambda *args, **kwargs: None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("attention", "causal", "where", "name", "mistake", "measured_pass"),
    [pytest.param(*mistake, "forward", id=f"output: {name}") for name, mistake in IN_OUTPUT.items()]
    + [pytest.param(*mistake, "forward_backward", id=f"gradient {name}") for name, mistake in IN_GRADIENT.items()],
)
def test_a_mistake_is_caught(attention, causal, where, name, mistake, measured_pass, monkeypatch, tmp_path):
    def measured(measured_pass):
        config = cell(attention["name"], [measured_pass], attention=attention, causal=causal, impl="fused")
        return measure_cell(config, tmp_path, tmp_path / "progress")

    assert measured(measured_pass)["status"] == "ok"
    function = vars(where)[name]
    is_static = isinstance(function, staticmethod)
    planted = mistake(function.__func__ if is_static else function)
    monkeypatch.setattr(where, name, staticmethod(planted) if is_static else planted)
    result = measured(measured_pass)
    assert result["status"] in ("incorrect", "nonfinite"), result
    if measured_pass != "forward":
        assert "gradient" in result["reason"] and measured("forward")["status"] == "ok"
