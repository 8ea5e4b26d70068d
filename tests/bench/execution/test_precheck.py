"""What is seen of cells before anything is measured: what their mechanisms refuse, and inputs that cannot be read."""

import json
import os
import re
import sys
import tempfile
import time
from functools import partial

import pytest
from command import HERE
from one_cell import one_cell
from PIL import Image

import attention_zoo
from attention_zoo import registry
from bench import tasks
from bench.common.errors import ConfigError
from bench.execution import precheck, processes
from bench.inputs import models, texts
from bench.plan.cell import merge_compared

a_cell = partial(one_cell, num_heads=12, head_dim=32)


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("ATTENTION_ZOO_PLUGINS", "fake_mechanisms")
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.delitem(sys.modules, "fake_mechanisms", raising=False)
    monkeypatch.setattr(registry, "_REGISTRY", {**registry._REGISTRY})  # other tests take what is registered
    attention_zoo.import_plugins()


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
    ("attention", "bench", "changes", "reason"),
    [
        ("linear", "latency", {"dtype": "float16"}, "dtype=float16: linear takes float64, float32, bfloat16 only"),
        ("reformer", "decode", {"causal": True}, "bench=decode: reformer cannot decode"),
        ("reformer", "capacity", {"causal": True}, "bench=capacity: reformer cannot decode"),
    ],
)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_the_registry_excludes_is_known_with_its_key_on_every_machine(
    attention, bench, changes, reason, elsewhere, tmp_path
):
    cells = [a_cell(name, bench, **changes) for name in (attention, "flash")]
    excluded, other = precheck.check_cells(cells, tmp_path, elsewhere=elsewhere)
    assert excluded.unsupported == reason and other == cells[1]


def test_what_the_registry_excludes_names_its_entry_of_a_comparison(tmp_path):
    (cell,) = merge_compared([a_cell(name, "compare", dtype="float16") for name in ("flash", "performer")])
    (excluded,) = checked(tmp_path, cell)
    assert excluded.unsupported == "performer: dtype=float16: performer takes float64, float32, bfloat16 only"


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


@pytest.mark.parametrize("ending", ["exit", "segfault", "interrupts", "hang"])
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
    ("text", "line"),
    [
        ("empty", "batch_size=1: inputs.text='{}/empty' has only 0 tokens"),
        ("fifo", "inputs.text='{}/fifo': must be kjv"),
    ],
)
def test_inputs_that_cannot_be_read_are_one_line(text, line, tmp_path):
    """Others: `test_inputs.py`."""
    (tmp_path / "empty").write_text("")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ConfigError, match="^" + re.escape(line.format(tmp_path))):
        checked(tmp_path, a_cell("flash", inputs={"name": "pretrained", "text": str(tmp_path / text)}))


# --- what a task reads


def a_training(task, seq_len, seed=0, **changes):
    kinds = {"language_modelling": "transformer"}
    model = {"name": kinds.get(task, "classifier")}
    given = {"task": {"name": task, **changes}, "model": model, "training": {}, "causal": task in kinds, "seed": seed}
    return a_cell("flash", "train", {}, seq_len=seq_len, num_heads=2, **given)


OF_THE_HUB = [
    ("text", 64, "task.data='imdb'", "testaments (a stand-in), or a folder of its files, which datasets reads"),
    ("image", 1024, "task.data='cifar10'", "digits (a stand-in), or a folder of its files, which datasets reads"),
    ("language_modelling", 64, "task.text='pg19'", "kjv, pydoc, sympy or a file, or task.fallback=kjv or pydoc"),
]


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr(models, "hub_answers", lambda: pytest.fail("the network was asked"))


@pytest.mark.parametrize(("task", "seq_len", "key", "allowed"), OF_THE_HUB)
@pytest.mark.parametrize("why", ["datasets is missing (pip install -e '.[hub]')", "HF_HUB_OFFLINE is set"])
def test_data_that_the_hub_cannot_give_are_refused_before_anything_starts(
    task, seq_len, key, allowed, why, tmp_path, monkeypatch, no_network
):
    monkeypatch.setattr(texts, "find_spec", lambda name: None if "missing" in why else object())
    monkeypatch.setattr(models, "is_offline", lambda: "OFFLINE" in why)
    cell = a_training(task, seq_len, **({"text": "pg19"} if task == "language_modelling" else {}))
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{key}: cannot be read, {why}; must be {allowed}')}$"):
        checked(tmp_path, cell)
    assert list(tmp_path.iterdir()) == []
    # Another machine may have it.
    assert precheck.check_cells([cell], tmp_path, elsewhere=True) == [cell]
    monkeypatch.setattr(texts, "unreadable", lambda on_hub=True: None)
    assert checked(tmp_path, cell) == [cell]


def test_a_text_that_may_be_a_path_is_said_to_be_no_file(tmp_path, monkeypatch, no_network):
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    line = "task.text='notes/mine.md': there is no such file, and as a dataset it cannot be read, datasets is missing "
    with pytest.raises(ConfigError, match=f"^{re.escape(line)}"):
        checked(tmp_path, a_training("language_modelling", 64, text="notes/mine.md"))


@pytest.mark.parametrize("task", ["text", "image", "language_modelling"])
def test_data_that_were_read_before_are_not_refused(task, tmp_path, monkeypatch):
    changes = {"text": "pg19", "tokenizer": "bpe", "vocabulary": 260} if task == "language_modelling" else {}
    cell = a_training(task, 1024 if task == "image" else 64, **changes)
    rows = {"text": "review", "img": Image.new("RGB", (32, 32)), "label": 0}
    of_hub = [{**rows, "text": f"review {number}" * 9} for number in range(20)]
    with monkeypatch.context() as reached:
        reached.setattr(models, "hub_answers", lambda: True)
        reached.setattr(texts, "records", lambda *_: iter(of_hub))
        tasks.settings(cell.config["task"]).open(cell.config, tmp_path / "inputs")
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    monkeypatch.setattr(models, "hub_answers", lambda: pytest.fail("the network was asked"))
    assert checked(tmp_path, cell) == [cell]
    for path in sorted((tmp_path / "inputs").glob("*.npy"))[:1]:
        path.unlink()
    with pytest.raises(ConfigError, match="cannot be read, datasets is missing"):
        checked(tmp_path, cell)


@pytest.mark.parametrize(
    ("task", "line"),
    [
        ("retrieval", "must be sympy, or a folder with one *.train.tsv"),
        ("pathfinder", "must be drawn, or a folder with metadata/*.npy and imgs"),
        ("image", "cannot be read, datasets is missing (pip install -e '.[hub]'); must be digits (a stand-in), or a"),
    ],
)
def test_a_folder_that_does_not_hold_the_data_is_refused_before_anything_starts(task, line, tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="^" + re.escape(f"task.data={str(tmp_path)!r}: {line}")):
        checked(tmp_path, a_training(task, 1024, data=str(tmp_path)))


@pytest.mark.parametrize(
    ("task", "seq_len", "changes"),
    [
        ("text", 64, {"data": "testaments"}),
        ("retrieval", 64, {}),
        ("image", 1024, {"data": "digits"}),
        ("pathfinder", 1024, {}),
        ("language_modelling", 64, {"text": "wikitext", "fallback": "kjv"}),
        ("language_modelling", 64, {}),
    ],
)
def test_stand_ins_need_neither_hub_nor_package(task, seq_len, changes, tmp_path, monkeypatch, no_network):
    monkeypatch.setattr(texts, "find_spec", lambda name: None)
    cell = a_training(task, seq_len, **changes)
    assert checked(tmp_path, cell) == [cell]


OWN_TEXTS = {
    "latin": (b"caf\xe9\n" * 2000, {}, "task.text={!r}: cannot be read: 'utf-8' codec can't decode byte 0xe9"),
    "short": (b"a word\n" * 100, {}, "seq_len=64: must be at most 34, the split validation of task.text={} has 35"),
    "poor": (b"a\n" * 5000, {"tokenizer": "bpe", "vocabulary": 1024}, "task.vocabulary=1024: must be null with "),
}


@pytest.mark.parametrize(("content", "changes", "line"), OWN_TEXTS.values(), ids=OWN_TEXTS)
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_text_of_the_users_that_cannot_be_learned_is_refused_before_anything_starts(
    content, changes, line, elsewhere, tmp_path
):
    text = tmp_path / "own.txt"
    text.write_bytes(content)
    cells = [a_training("language_modelling", length, text=str(text), **changes) for length in (16, 64)]
    with pytest.raises(ConfigError, match="^" + re.escape(line.format(str(text)))):
        precheck.check_cells(cells, tmp_path / "inputs", elsewhere=elsewhere)
    assert list(tmp_path.iterdir()) == [text]


@pytest.fixture
def texts_read(monkeypatch):
    """How often the child was asked to read a text."""
    asked, send = [], processes.Child.send_line

    def noted(self, line):
        asked.append(json.loads(line)["kind"])
        send(self, line)

    monkeypatch.setattr(processes.Child, "send_line", noted)
    return lambda: asked.count("task")


def test_a_text_of_the_users_is_read_once_for_all_seeds_and_nothing_is_left(tmp_path, texts_read, monkeypatch):
    text, scratch = tmp_path / "own.txt", tmp_path / "scratch"
    text.write_text("some words\n" * 1000)
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    cells = [a_training("language_modelling", 64, text=str(text), seed=seed) for seed in (0, 1)]
    assert checked(tmp_path, *cells) == cells and texts_read() == 1
    assert sorted(tmp_path.iterdir()) == [text, scratch] and not list(scratch.iterdir())


def test_a_text_that_takes_too_long_hides_no_other(tmp_path, monkeypatch):
    for name, words in (("big", "ab " * 200_000), ("latin", "caf\xe9\n" * 2000)):
        (tmp_path / name).write_bytes(words.encode("latin-1"))
    ask = processes.Child.send_line

    def slow(self, line):
        monkeypatch.setitem(precheck.ANSWERS_WITHIN_S, "task", 0.001 if b"big" in line else 60.0)
        ask(self, line)

    monkeypatch.setattr(processes.Child, "send_line", slow)
    texts = [a_training("language_modelling", 64, text=str(tmp_path / name)) for name in ("big", "latin")]
    with pytest.raises(ConfigError, match="latin': cannot be read"):
        checked(tmp_path, *texts)


@pytest.mark.parametrize("changes", [{}, {"text": "{own}", "tokenizer": "org/name"}])
def test_no_other_text_is_read_and_the_hub_is_not_asked_for_a_tokenizer(changes, tmp_path, texts_read):
    (tmp_path / "own.txt").write_text("short")
    cell = a_training(
        "language_modelling", 64, **{key: told.format(own=tmp_path / "own.txt") for key, told in changes.items()}
    )
    assert checked(tmp_path, cell) == [cell] and texts_read() == 0
