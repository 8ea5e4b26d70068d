"""The correctness check: no wrong mechanism is measured, and no right one is turned away."""

import dataclasses
import itertools
import os
import re

import cells
import pytest
import torch
from wrong_mechanisms import WRONG
from zoo_cases import CASES, VARIANTS, runs_here, takes_causal, variant

import attention_zoo
from attention_zoo.ops import fused_softmax
from attention_zoo.ops.feature_product import blocks
from attention_zoo.registry import _REGISTRY
from bench import measures
from bench.common.errors import IncorrectError
from bench.execution.child import measure_cell
from bench.measures.reference import TOLERANCES, Probe, Reference

COMPARE = measures.check({"name": "compare", "min_sample_ms": 0})


def cell(name, passes=("forward",), **changes):
    bench = {"name": "latency", "passes": [*passes], "min_sample_ms": 0.0, "memory_limit": None}
    return cells.config(name, bench, **{"seq_len": 150, "head_dim": 16, "repeats": 6, **changes})


@pytest.mark.parametrize("name", ["polynomial_square", "polynomial", "skeinformer", "informer"])
def test_a_gradient_of_zeros_is_never_allowed(name):
    """However large the degree is, and however few keys a row sees whose weights cancel."""
    like = attention_zoo.create(name, head_dim=8, num_heads=1, impl="reference")
    reference = Reference(like, like, with_gradients=True)
    allowed = [reference.tolerance(dtype, n)["gradient"] for dtype in TOLERANCES for n in (1, 32, 4096)]
    assert max(allowed) < 0.5


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_timed_gradient_is_dense_but_of_no_weight_outside_the_compared_rows(dtype):
    probe = Probe(torch.tensor([1]), torch.tensor([5, 63]))
    like = torch.empty(2, 3, 64, 8, dtype=dtype)
    gradient = probe.gradient(like, torch.Generator().manual_seed(0), few_keys_cancel=False)
    assert gradient.dtype == dtype and (gradient == 0).double().mean() < 0.02
    assert probe.of_rows(gradient).std().item() == pytest.approx(1, rel=0.3)
    gradient[1, :, [5, 63]] = 0
    # A million rows, where 16 are compared.
    assert gradient.double().std() * (2**20 / 16) ** 0.5 < TOLERANCES[dtype][1] / 5


def test_the_gradient_has_no_numbers_of_the_inputs():
    context = cells.CellContext(cell("v_mean"), None)
    inputs = context.inputs()
    check = context.correctness_check(inputs)
    rows = check.probe.of_rows(check.gradient)
    assert torch.isin(rows, torch.stack(inputs)).double().mean() < 0.01


@pytest.fixture
def process_state():
    """Puts back what wrong mechanisms change."""
    threads, folder = torch.get_num_threads(), os.getcwd()
    with torch.random.fork_rng():
        yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    os.chdir(folder)
    torch.set_float32_matmul_precision("highest")
    torch.set_grad_enabled(True)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The result of a cell, perhaps with a class of its own for its mechanism or one that it is compared with."""

    def measured(config, cls=None):
        if cls is not None:
            monkeypatch.setitem(_REGISTRY, cls.info.name, cls)
        return measure_cell(config, tmp_path, tmp_path / "progress")

    return measured


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_mechanism_is_not_measured_and_the_reason_names_what_is_wrong(name, process_state, measured):
    cls, settings, reason = WRONG[name]
    result = measured(cell(name, **settings), cls)
    assert result["status"] in ("incorrect", "nonfinite"), result
    assert "measurements" not in result
    assert result["reason"].startswith(name) and re.search(reason, result["reason"]), result["reason"]


def odd(**methods):
    """A class of mechanisms that is right but for these methods."""
    right = attention_zoo.attention_class("v_mean")
    return type("Odd", (right,), {"info": dataclasses.replace(right.info, name="odd"), **methods})


class SeesTheFuture(attention_zoo.Attention):
    """The mean of all values: so says its own matrix, too."""

    info = attention_zoo.AttentionInfo(name="leak", paper="", approximates="softmax", causal=True, complexity="")

    def _attend(self, query, key, value, padding):
        return value.mean(2, keepdim=True).expand_as(query)

    def _rows(self, query, key, visible, positions):
        return query.new_full((*query.shape[:3], key.shape[2]), 1 / key.shape[2])

    def _flops(self, seq_len):
        return seq_len * self.head_dim


def test_a_causal_mechanism_that_sees_later_tokens_is_refused_though_it_agrees_with_its_matrix(measured):
    refused = r"leak: causal=true, but token \d+ changes row \d+ by \d"
    result = measured(cell("leak", causal=True), SeesTheFuture)
    assert result["status"] == "incorrect" and re.match(refused, result["reason"])
    with pytest.raises(IncorrectError, match=refused):
        measures.get("train")().measure(cells.CellContext(cells.config("leak", causal=True), None))
    assert measured(cell("leak"), SeesTheFuture)["status"] == "ok"


@pytest.mark.parametrize("ending", [BaseException("boo"), SystemExit(0), KeyboardInterrupt()])
def test_whatever_a_mechanism_raises_is_named(ending, measured):
    def attend(self, query, key, value, padding):
        raise ending

    result = measured(cell("odd"), odd(_attend=attend))
    assert result["status"] == "error" and result["reason"].startswith(type(ending).__name__)


def test_a_device_that_cannot_be_asked_afterwards_costs_no_reason(measured, monkeypatch):
    def gone():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    def attend(self, query, key, value, padding):
        monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", gone)
        gone()

    result = measured(cell("odd"), odd(_attend=attend))
    assert "illegal memory access" in result["reason"] and result["numerics"] == {}


@pytest.mark.parametrize("given, of_free", [(None, " (of what was free then; rerun=oom tries again)"), (2.0, "")])
def test_memory_that_was_short_is_said_with_its_limit(given, of_free, tmp_path, monkeypatch):
    def attend(self, query, key, value, padding):
        raise MemoryError("short")

    monkeypatch.setitem(_REGISTRY, "odd", odd(_attend=attend))
    config = cell("odd")
    config["bench"]["memory_limit"] = given
    result = measure_cell(config, tmp_path, tmp_path / "progress", limit=2 * 2**30)
    assert (result["status"], result["reason"]) == ("oom", f"short; the limit was 2,048 MiB{of_free}")


@pytest.mark.parametrize(("flops", "said"), [(float("nan"), "nan"), (-1, "-1"), (torch.tensor(5), "Tensor")])
def test_a_formula_that_gives_no_flops_is_named(flops, said, measured):
    config = cell("odd") | {"bench": measures.check({"name": "flops"})}
    result = measured(config, odd(flops=lambda self, batch, seq_len: flops))
    assert result["status"] == "incorrect" and f"flops(2, 150): is {said}, must be a number" in result["reason"]


SMALL = {"seq_len": 80, "batch_size": 1, "repeats": 1}
# Of both directions each has one dtype. All that there are: test_no_right_variant_is_turned_away.
RIGHT = [
    (name, causal, dtype)
    for name, causal in CASES
    for dtype in ("float32", "bfloat16")
    if getattr(torch, dtype) in attention_zoo.info(name).dtypes
    and ((name, not causal) not in CASES or causal == (dtype == "bfloat16"))
]


@pytest.mark.parametrize("name, causal, dtype", RIGHT)
def test_a_right_mechanism_is_measured(name, causal, dtype, measured):
    info = attention_zoo.info(name)
    attention = {"name": name, **({info.size: 16} if info.size else {})}
    result = measured(cell(name, ["forward_backward"], attention=attention, causal=causal, dtype=dtype, **SMALL))
    assert result["status"] == "ok", result["reason"]
    assert result["numerics"]["implementations"][name]["impl"] in info.implementations
    for errors in result["correctness"][name].values():
        assert 0 <= errors["output"] <= errors["output_allowed"]
        assert 0 <= errors["gradient"] <= errors["gradient_allowed"]
        assert min(errors["output_whole"], errors["gradient_whole"]) >= 0
        if not info.data_dependent:  # there some rows may be anything
            assert errors["output_whole"] <= errors["output_allowed"]
            assert errors["gradient_whole"] <= max(1e-10, 4 * errors["gradient_allowed"])


LINFORMER = {"name": "linformer", "projection_dim": 32}
PERFORMER = {"name": "performer", "num_features": 32, "block_size": 32}


@pytest.mark.parametrize(
    ("attention", "causal", "where", "name", "mistake"),
    [
        (PERFORMER, True, blocks.Sums, "advance", lambda right: lambda *args, **kwargs: None),
        (LINFORMER, False, fused_softmax, "_backward", lambda right: lambda *args: [0 * x for x in right(*args)]),
    ],
)
def test_a_mistake_in_a_fast_path_is_caught(attention, causal, where, name, mistake, measured, monkeypatch):
    def fast(name):
        return measured(cell(attention["name"], [name], attention=attention, causal=causal, impl="fused"))

    assert fast("forward_backward")["status"] == "ok"
    monkeypatch.setattr(where, name, mistake(vars(where)[name]))
    assert fast("forward_backward")["status"] == "incorrect"
    assert (fast("forward")["status"] == "ok") == (name == "_backward")


RIVALS = {
    "performer_all_zeros": r", .*output: relative error .* against float64",
    "softmax_remembered": ", forward: other values",  # the signs of the values of every dtype turn
    "softmax_changes_query": ": changed its input query$",
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name, reason", RIVALS.items())
def test_a_rival_that_is_wrong_is_named(name, reason, dtype, measured):
    """Beside one that is right, in the same dtype or in one of its own."""
    cls, settings, _ = WRONG[name]
    against = [{"label": "rival", "attention": settings["attention"], "impl": "auto", "dtype": dtype}]
    result = measured(cell("flash") | {"bench": {**COMPARE, "against": against}}, cls)
    assert result["status"] == "incorrect" and "measurements" not in result
    assert re.match(f"rival{reason}", result["reason"]), result["reason"]


def test_a_comparison_between_dtypes_measures_each_in_its_own(measured):
    labels = ["polysketch", "float32", "float64"]
    alone = cell("polysketch", dtype="bfloat16", causal=True)
    entry = {"attention": {"name": "polysketch"}, "impl": "auto"}
    against = [{**entry, "label": dtype, "dtype": dtype} for dtype in labels[1:]]
    bench = {**COMPARE, "measured_pass": "forward_backward", "against": against}
    result = measured(alone | {"bench": bench})
    assert result["status"] == "ok", result["reason"]
    assert list(result["measurements"]["samples"]) == list(result["numerics"]["implementations"]) == labels
    assert all(len(samples) == 6 for samples in result["measurements"]["samples"].values())
    # Each with its own dtype's rounding, and its own dtype's tolerance.
    for kind, which in itertools.product(("output", "gradient"), ("short", "own")):
        of_each = [result["correctness"][label][which] for label in labels]
        errors, allowed = ([one[key] for one in of_each] for key in (kind, f"{kind}_allowed"))
        assert errors == sorted(errors, reverse=True) and errors[0] > 100 * errors[1] > 10_000 * errors[2]
        assert allowed == sorted(allowed, reverse=True) and len(set(allowed)) == 3
    assert result["inputs_sha256"] == measured(alone)["inputs_sha256"]


SHAPES = [(16, 1, 1, 8), (65, 2, 3, 16), (150, 3, 2, 16), (129, 1, 4, 64), (300, 2, 2, 32), (450, 2, 1, 64)]


def right_cells(name, seed):
    """Every shape, dtype and direction of a variant."""
    attention = variant(name)
    info = attention_zoo.info(attention["name"])
    for (n, batch, heads, h), dtype, causal in itertools.product(SHAPES, info.dtypes, (False, True)):
        if takes_causal(info.name) if causal else info.bidirectional:
            sizes = {"seq_len": n, "batch_size": batch, "num_heads": heads, "head_dim": h, "seed": seed}
            dtype = str(dtype).removeprefix("torch.")
            # It sums over keys in the inputs' dtype: its causal sums in bfloat16 are wrong, and called so.
            if (info.name, dtype, causal) == ("lucidrains_performer", "bfloat16", True) and n > 200:
                continue
            yield cell(name, ["forward_backward"], attention=attention, causal=causal, dtype=dtype, **sizes)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_no_right_variant_is_turned_away(name, measured):
    """`SEEDS=200 make test-slow` takes hours."""
    if not runs_here(variant(name)["name"]):
        pytest.skip("needs a package or a GPU")
    alarms = []
    for seed in range(int(os.environ.get("SEEDS", 2))):
        for config in right_cells(name, seed):
            result = measured(config | {"repeats": 1})
            if result["status"] not in ("ok", "unsupported"):
                alarms.append((config["seq_len"], config["dtype"], config["causal"], seed, result["reason"]))
    assert not alarms, alarms
