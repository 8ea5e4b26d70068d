"""What is seen of cells before anything is measured: what their mechanisms refuse, and inputs that cannot be read."""

import os
import re
import sys
import time

import pytest
from command import HERE

import attention_zoo
from attention_zoo import registry
from bench.common.errors import ConfigError
from bench.execution import precheck, processes
from bench.plan.cell import Variant, make_cell, merge_compared
from bench.plan.config import check

LOCAL = ("bytes", "empty", "fifo", "folder")
SETTINGS = {"seq_len": 64, "batch_size": 1, "num_heads": 12, "head_dim": 32, "tracking": {}, "device": "cpu"}


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("ATTENTION_ZOO_PLUGINS", "fake_mechanisms")
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.delitem(sys.modules, "fake_mechanisms", raising=False)
    monkeypatch.setattr(registry, "_REGISTRY", {**registry._REGISTRY})  # other tests take what is registered
    attention_zoo.import_plugins()


def a_cell(attention, bench="latency", inputs=None, **changes):
    attention = {"name": attention} if isinstance(attention, str) else attention
    of = {"attention": attention, "bench": {"name": bench}, "inputs": {"name": "gaussian", **(inputs or {})}}
    return make_cell(check({**SETTINGS, **of, **changes}), Variant(attention["name"], attention))


def checked(tmp_path, *cells):
    return precheck.check_cells(cells, tmp_path / "inputs")


def test_what_can_be_built_stays_as_it_was_and_nothing_is_written(tmp_path):
    cells = [a_cell("fake_fine"), a_cell("polysketch"), a_cell("fake_init_prints")]
    assert checked(tmp_path, *cells) == cells
    assert list(tmp_path.iterdir()) == []


def test_the_reason_why_a_mechanism_does_not_support_a_cell_is_told(tmp_path):
    reason = "causal=true: linformer cannot hide the future from the past"
    linformer, flash = checked(tmp_path, a_cell("linformer", causal=True), a_cell("flash", causal=True))
    assert linformer.unsupported == reason and flash.unsupported is None
    # A comparison names which of its mechanisms it is.
    cells = merge_compared([a_cell(name, bench="compare", causal=True) for name in ("flash", "linformer")])
    assert [cell.unsupported for cell in checked(tmp_path, *cells)] == [f"linformer: {reason}"]


@pytest.mark.parametrize(
    ("attention", "line"),
    [
        ({"name": "polysketch", "sketch_size": 0}, "attention.sketch_size=0: must be an integer of at least 1"),
        ("fake_init_refuses", "pitch=3: must be even"),
    ],
)
def test_what_a_constructor_refuses_is_one_line_with_its_key(attention, line, tmp_path):
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}$"):
        checked(tmp_path, a_cell("flash"), a_cell(attention))


@pytest.mark.parametrize("ending", ["error", "exit", "oom", "segfault", "dies", "interrupts", "hang"])
def test_a_constructor_that_takes_its_process_along_is_passed_over(ending, tmp_path, monkeypatch):
    monkeypatch.setitem(precheck.ANSWERS_WITHIN_S, "attention", 1.0)
    bad = [a_cell(f"fake_init_{ending}", seq_len=length) for length in range(10, 110, 10)]
    began = time.monotonic()
    *passed, linformer = checked(tmp_path, *bad, a_cell("linformer", causal=True))
    assert passed == bad
    assert linformer.unsupported
    # Nobody waits ten times for the same constructor.
    assert ending != "hang" or time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("inputs", "changes", "line"),
    [
        (
            {"text": "/no/such/text"},
            {},
            "inputs.text='/no/such/text': must be kjv, pydoc, sympy, a file, or a hub dataset",
        ),
        ({"text": "bytes"}, {}, "inputs.text='{}/bytes': cannot be read: 'utf-8' codec"),
        ({"text": "empty"}, {}, "batch_size=1: inputs.text='{}/empty' has only 0 tokens"),
        ({"text": "fifo"}, {}, "inputs.text='{}/fifo': must be kjv"),
        ({"model": "folder"}, {}, "inputs.model='{}/folder': cannot be read"),
        ({"layer": 99}, {}, "inputs.layer=99: must be between 0 and 5: minilm has 6 layers"),
        ({}, {"num_heads": 8}, "num_heads=8: must be 12, as in inputs.model=minilm"),
        ({}, {"head_dim": 64}, "head_dim=64: must be 32, as in inputs.model=minilm"),
    ],
)
def test_inputs_that_cannot_be_read_are_one_line(inputs, changes, line, tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").write_text("")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    inputs = {key: str(tmp_path / value) if value in LOCAL else value for key, value in inputs.items()}
    with pytest.raises(ConfigError, match="^" + re.escape(line.format(tmp_path))):
        checked(tmp_path, a_cell("flash", inputs={"name": "pretrained", **inputs}, **changes))


def test_one_look_does_for_all_seeds(tmp_path, monkeypatch):
    asked = []
    real = processes.Child.send_line
    monkeypatch.setattr(processes.Child, "send_line", lambda child, line: asked.append(line) or real(child, line))
    cells = [a_cell("flash", seed=seed) for seed in range(20)]
    assert checked(tmp_path, *cells) == cells
    assert len(asked) == 1
