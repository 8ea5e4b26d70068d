"""The gate: no wrong mechanism is measured, and no right one is turned away."""

import os
import random
import re

import numpy as np
import pytest
import torch
from wrong_mechanisms import WRONG

from attention_zoo.base import _REGISTRY
from bench.execution.child import measure_cell


def cell(name, **changes):
    passes = changes.pop("passes", ["forward"])
    return {
        "label": name,
        "attention": {"name": name},
        "bench": {"name": "latency", "passes": passes, "min_sample_ms": 0.0, "memory_limit": None},
        "inputs": {"name": "gaussian", "score_scale": 1.0},
        "seq_len": 150,
        "batch_size": 2,
        "num_heads": 2,
        "head_dim": 16,
        "dtype": "float32",
        "causal": False,
        "device": "cpu",
        "impl": "auto",
        "seed": 0,
        "repeats": 6,
    } | changes


@pytest.fixture
def surroundings():
    """Puts back what wrong mechanisms change."""
    before = torch.get_default_dtype(), torch.get_num_threads(), os.getcwd(), torch.get_float32_matmul_precision()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_default_dtype(before[0])
    torch.set_num_threads(before[1])
    os.chdir(before[2])
    torch.set_float32_matmul_precision(before[3])
    torch.set_grad_enabled(True)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mechanism_is_not_measured_and_the_reason_names_what_is_wrong(
    name, surroundings, monkeypatch, tmp_path
):
    cls, settings, reason = WRONG[name]
    monkeypatch.setitem(_REGISTRY, name, cls)
    result = measure_cell(cell(name, **settings), tmp_path, tmp_path / "progress")
    assert result["status"] in ("incorrect", "nonfinite"), result
    assert "measurements" not in result
    assert result["reason"].startswith(name) and re.search(reason, result["reason"]), result["reason"]
