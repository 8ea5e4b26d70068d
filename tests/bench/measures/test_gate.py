"""The gate: no wrong mechanism is measured, and no right one is turned away."""

import dataclasses
import itertools
import os
import random
import re

import numpy as np
import pytest
import torch
from wrong_mechanisms import IN_BFLOAT16, WRONG
from zoo_cases import CASES, VARIANTS, runs_here, takes_causal, variant

import attention_zoo
from attention_zoo.base import _REGISTRY
from bench import measures
from bench.common.errors import IncorrectError, NonFiniteError
from bench.execution.child import measure_cell
from bench.measures.timing import Pass
from bench.measures.workbench import Workbench

COMPARE = measures.check({"name": "compare", "min_sample_ms": 0})


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


class Base(BaseException):
    pass


def odd(**methods):
    """A class of mechanisms that is right but for these methods."""
    right = attention_zoo.attention_class("v_mean")
    return type("Odd", (right,), {"info": dataclasses.replace(right.info, name="odd"), **methods})


@pytest.mark.parametrize("passes", [["forward"], ["forward_backward"], ["backward"]])
def test_no_output_is_named(passes, monkeypatch, tmp_path):
    monkeypatch.setitem(_REGISTRY, "odd", odd(_attend=lambda self, query, key, value, padding: None))
    result = measure_cell(cell("odd", passes=passes), tmp_path, tmp_path / "progress")
    assert result["status"] == "incorrect" and "output is NoneType, must be a tensor" in result["reason"]


@pytest.mark.parametrize(
    "ending", [Base("boo"), SystemExit(0), SystemExit("bye"), KeyboardInterrupt(), GeneratorExit()]
)
def test_whatever_a_mechanism_raises_is_named(ending, monkeypatch, tmp_path):
    def attend(self, query, key, value, padding):
        raise ending

    monkeypatch.setitem(_REGISTRY, "odd", odd(_attend=attend))
    result = measure_cell(cell("odd"), tmp_path, tmp_path / "progress")
    assert result["status"] == "error" and result["reason"].startswith(type(ending).__name__)


@pytest.mark.parametrize(
    ("flops", "said"),
    [(float("nan"), "nan"), (float("inf"), "inf"), (-1, "-1"), (torch.tensor(5), "Tensor"), (None, "NoneType")],
)
def test_a_formula_that_gives_no_flops_is_named(flops, said, monkeypatch, tmp_path):
    monkeypatch.setitem(_REGISTRY, "odd", odd(flops=lambda self, batch, seq_len: flops))
    bench = measures.check({"name": "roofline", "min_sample_ms": 0.0})
    result = measure_cell(cell("odd", bench=bench), tmp_path, tmp_path / "progress")
    assert result["status"] == "incorrect" and f"flops(2, 150): is {said}, must be a number" in result["reason"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name, causal", CASES)
def test_a_right_mechanism_is_measured(name, causal, dtype, tmp_path):
    info = attention_zoo.info(name)
    if getattr(torch, dtype) not in info.dtypes:
        pytest.skip(f"refuses {dtype}")
    attention = {"name": name, **({info.size: 16} if info.size else {})}
    settings = {"attention": attention, "causal": causal, "dtype": dtype, "passes": ["forward_backward"], "repeats": 2}
    result = measure_cell(cell(name, **settings), tmp_path, tmp_path / "progress")
    assert result["status"] == "ok", result["reason"]
    assert result["numerics"]["implementations"][name]["impl"] in info.implementations
    for errors in result["correctness"][name].values():
        assert 0 <= errors["output"] <= errors["output_allowed"]
        assert 0 <= errors["gradient"] <= errors["gradient_allowed"]
        assert min(errors["output_whole"], errors["gradient_whole"]) >= 0
        if not info.data_dependent:  # there some rows may be anything
            assert errors["output_whole"] <= errors["output_allowed"]
            assert errors["gradient_whole"] <= max(1e-10, 4 * errors["gradient_allowed"])


def test_a_rival_that_spoils_the_inputs_is_named(monkeypatch, tmp_path):
    rival = "softmax_zeroes_query_and_key"
    cls, settings, _ = WRONG[rival]
    monkeypatch.setitem(_REGISTRY, rival, cls)
    against = [{"label": rival, "attention": settings["attention"], "impl": "auto"}]
    result = measure_cell(cell("flash") | {"bench": {**COMPARE, "against": against}}, tmp_path, tmp_path / "progress")
    assert result["status"] == "incorrect" and result["reason"].startswith(f"{rival}: changed its input query")


def of_dtypes(name, dtypes, measured_pass="forward_backward", **changes):
    """A comparison of one mechanism in several dtypes, the first being the cell's."""
    own = cell(name, **changes)
    against = [
        {"label": f"{name} {dtype}", "attention": own["attention"], "impl": "auto", "dtype": dtype}
        for dtype in dtypes[1:]
    ]
    bench = {**COMPARE, "measured_pass": measured_pass}
    return own | {"label": f"{name} {dtypes[0]}", "dtype": dtypes[0], "bench": {**bench, "against": against}}


@pytest.mark.parametrize("name", ["flash", "polysketch"])
def test_a_comparison_between_dtypes_measures_each_in_its_own(name, tmp_path):
    dtypes = ["bfloat16", "float32", "float64"]
    config = of_dtypes(name, dtypes, causal=True)
    result = measure_cell(config, tmp_path, tmp_path / "progress")
    assert result["status"] == "ok", result["reason"]
    labels = [f"{name} {dtype}" for dtype in dtypes]
    assert list(result["measurements"]["samples"]) == list(result["numerics"]["implementations"]) == labels
    assert all(len(samples) == 6 for samples in result["measurements"]["samples"].values())
    # Each with its own dtype's rounding, and its own dtype's tolerance.
    for kind in ("output", "gradient"):
        for which in ("short", "own"):
            errors, allowed = (
                [result["correctness"][label][which][key] for label in labels] for key in (kind, f"{kind}_allowed")
            )
            assert errors == sorted(errors, reverse=True) and errors[0] > 100 * errors[1] > 10_000 * errors[2]
            assert allowed == sorted(allowed, reverse=True) and len(set(allowed)) == 3
    alone = measure_cell(cell(name, dtype="bfloat16", causal=True), tmp_path, tmp_path / "progress")
    assert result["inputs_sha256"] == alone["inputs_sha256"]


@pytest.mark.parametrize("dtypes", [["float32", "bfloat16"], ["bfloat16", "float32"]])
def test_a_mechanism_that_is_wrong_in_one_dtype_only_is_refused(dtypes, monkeypatch, tmp_path):
    name = "softmax_wrong_in_bfloat16"
    monkeypatch.setitem(_REGISTRY, name, IN_BFLOAT16[name])
    assert measure_cell(cell(name), tmp_path, tmp_path / "progress")["status"] == "ok"
    result = measure_cell(of_dtypes(name, dtypes), tmp_path, tmp_path / "progress")
    assert result["status"] == "incorrect" and "measurements" not in result
    assert re.match(rf"{name} bfloat16, .*output: relative error .* against float64", result["reason"])


@pytest.mark.parametrize("dtypes", [["float32", "bfloat16"], ["bfloat16", "float32"]])
def test_an_output_remembered_in_one_dtype_only_is_refused(dtypes, monkeypatch, tmp_path):
    """The signs of the values of every dtype turn."""
    name = "softmax_remembers_in_bfloat16"
    monkeypatch.setitem(_REGISTRY, name, IN_BFLOAT16[name])
    result = measure_cell(of_dtypes(name, dtypes, "forward"), tmp_path, tmp_path / "progress")
    assert result["status"] == "incorrect" and result["reason"].startswith(f"{name} bfloat16, forward: ")


@pytest.mark.parametrize("dtypes", [["float32", "bfloat16"], ["bfloat16", "float32"]])
def test_a_mechanism_that_spoils_the_inputs_of_one_dtype_is_named(dtypes, monkeypatch, tmp_path):
    name = "softmax_spoils_in_bfloat16"
    monkeypatch.setitem(_REGISTRY, name, IN_BFLOAT16[name])
    result = measure_cell(of_dtypes(name, dtypes), tmp_path, tmp_path / "progress")
    assert result["status"] == "incorrect" and result["reason"] == f"{name} bfloat16: changed its input query"


SHAPES = [(16, 1, 1, 8), (65, 2, 3, 16), (150, 3, 2, 16), (129, 1, 4, 64), (300, 2, 2, 32), (450, 2, 1, 64)]


def right_cells(name, seed):
    """Every shape, dtype and direction of a variant."""
    attention = variant(name)
    info = attention_zoo.info(attention["name"])
    for (n, batch, heads, h), dtype, causal in itertools.product(SHAPES, info.dtypes, (False, True)):
        if takes_causal(info.name) if causal else info.bidirectional:
            sizes = {"seq_len": n, "batch_size": batch, "num_heads": heads, "head_dim": h, "seed": seed}
            dtype = str(dtype).removeprefix("torch.")
            yield cell(name, attention=attention, causal=causal, dtype=dtype, **sizes)


def gate_errors(config, folder):
    """What the gate finds, without the time that measuring takes; None where the mechanism refuses."""
    workbench = Workbench(config, folder)
    label, name = config["label"], "forward_backward"
    try:
        attention, inputs = workbench.attention(), workbench.inputs()
        gate = workbench.gate(inputs)
        gate.admit(label, attention, [name])
        gate.first(label, name, Pass(name, attention, inputs, gate.gradient).run_unprepared())
    except attention_zoo.UnsupportedError:
        return None
    gate.close()
    return workbench.correctness[label]


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_no_right_variant_is_turned_away(name, tmp_path):
    """`SEEDS=200 make test-slow` takes hours."""
    if not runs_here(variant(name)["name"]):
        pytest.skip("needs a package or a GPU")
    alarms = []
    for seed in range(int(os.environ.get("SEEDS", 2))):
        for config in right_cells(name, seed):
            try:
                gate_errors(config, tmp_path)
            except (IncorrectError, NonFiniteError) as error:
                alarms.append((config["seq_len"], config["dtype"], config["causal"], seed, str(error)))
    assert not alarms, alarms
