"""Planning is cheap: what takes long is done once for a choice of groups, not once for a cell."""

import pytest
from omegaconf import OmegaConf

from bench.api import planned
from bench.common.errors import ConfigError
from bench.execution import sweep
from bench.plan import load
from bench.plan.load import Loader

CELLS = 300
COMMON = ["bench.passes=[forward]", "tracking=none"]


def count(monkeypatch, owner, name):
    calls = []
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *args, **more: calls.append(args) or real(*args, **more))
    return calls


@pytest.fixture
def expensive(monkeypatch):
    """The calls of what takes milliseconds."""
    return [
        count(monkeypatch, load, "_composed"),
        count(monkeypatch, OmegaConf, "merge"),
        count(monkeypatch, OmegaConf, "update"),
        count(monkeypatch, OmegaConf, "create"),
    ]


@pytest.fixture(autouse=True)
def loaded_before():
    Loader().load([])  # what Hydra does once in a process


def calls_for(expensive, *overrides):
    before = sum(map(len, expensive))
    cells = planned(Loader(), [*COMMON, *overrides]).cells
    return len(cells), sum(map(len, expensive)) - before


def test_a_cell_more_costs_no_call_that_takes_long(expensive):
    calls_for(expensive, "attention=flash,softmax")  # files are composed once in a process
    few, calls_of_few = calls_for(expensive, "seed=range(3)", "attention=flash,softmax")
    many, calls_of_many = calls_for(expensive, f"seed=range({CELLS})", "attention=flash,softmax")
    assert (few, many) == (6, 2 * CELLS)
    assert calls_of_many == calls_of_few


def test_the_last_of_many_is_checked_like_the_first():
    with pytest.raises(ConfigError, match=r"^seed=-1: must be a number of at least 0$"):
        planned(Loader(), [*COMMON, "seed=" + ",".join(map(str, range(CELLS))) + ",-1"])


def test_values_of_another_type_are_made_what_they_must_be():
    (one,) = planned(Loader(), [*COMMON, "seq_len='64'", "causal=1", "timeout=7", "inputs.score_scale=2"]).cells
    assert (one.config["seq_len"], one.config["causal"], one.timeout) == (64, True, 7.0)
    (same,) = planned(Loader(), [*COMMON, "seq_len=64", "causal=true", "inputs.score_scale=2.0"]).cells
    assert one.cell_id == same.cell_id


def test_values_may_name_other_values():
    (one,) = planned(Loader(), [*COMMON, "seq_len=64", "batch_size=${seq_len}"]).cells
    assert one.config["batch_size"] == 64


def test_a_group_of_the_users_own_may_have_a_package(tmp_path):
    for name, text in {
        "attention/mine": "causal: true\nattention: {name: flash, scale: 0.5}",
        "more/x": "seq_len: 77",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    sweep_of = planned(Loader(str(tmp_path)), [*COMMON, "attention=mine,flash", "+more=x"])
    assert isinstance(sweep_of, sweep.Sweep)
    made = [(cell.config["label"], cell.config["causal"], cell.config["seq_len"]) for cell in sweep_of.cells]
    assert made == [("mine", True, 77), ("flash", False, 77)]
