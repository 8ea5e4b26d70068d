"""Settings of tasks: what YAML and dataclasses say, and what is refused before anything is drawn or read."""

import functools
from pathlib import Path

import pytest
import yaml
from refusals import refused

from bench.common.schema import described
from bench.tasks import TASKS, open_task, settings

ROOT = Path(__file__).parents[3]
WRITTEN = {path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / "conf" / "task").glob("*.yaml")}


def test_every_task_has_a_file_that_fits_it():
    assert set(WRITTEN) == set(TASKS)
    for name, written in WRITTEN.items():
        assert set(written) == {"task", "seq_len", "batch_size"}
        assert written["task"] == {"name": name}
        settings(written["task"]).require_fits({**written, "causal": TASKS[name].causal})


def test_the_papers_sizes_are_the_defaults():
    assert {name: (written["seq_len"], written["batch_size"]) for name, written in WRITTEN.items()} == {
        "selective_copying": (4096, 64),
        "induction_heads": (127, 64),
        "associative_recall": (64, 64),
        "reversal": (50, 128),
        "language_modelling": (512, 32),
        # Skeinformer's.
        **{"listops": (2048, 256), "text": (4096, 128), "retrieval": (4096, 64)},
        **{"image": (1024, 256), "pathfinder": (1024, 512)},
        # Of MAD's compression one token of 32 is the marker, here half of them are.
        **{"noisy_recall": (128, 128), "fuzzy_recall": (128, 128), "compression": (64, 128), "memorisation": (32, 128)},
    }
    of_papers = {
        "selective_copying": {"num_tokens": 16, "alphabet": 16, "examples": 65536},
        "associative_recall": {"num_pairs": 4, "vocabulary": 8192, "examples": None},
        "noisy_recall": {"vocabulary": 32, "noise_tokens": 16, "noise": 0.2, "examples": 12800},
        "fuzzy_recall": {"vocabulary": 16, "key_tokens": 3, "value_tokens": 3, "examples": 12800},
        "memorisation": {"vocabulary": 256, "examples": 256, "dictionary": 12345},
        "listops": {"examples": 96000, "min_length": 500, "max_length": 2000, "max_depth": 10},
        "pathfinder": {"contour_length": 14, "marker_radius": 1.5, "examples": 160_000, "mask": "all", "data": "drawn"},
    }
    for name, expected in of_papers.items():
        assert described(settings({"name": name})) == {"name": name, **expected}


def given(name="selective_copying", seq_len=None, causal=None, **changes):
    """What the file of a task says, changed."""
    is_causal = TASKS[name].causal if causal is None else causal
    task = {"name": name, **changes}
    return {"task": task, "seq_len": seq_len or WRITTEN[name]["seq_len"], "causal": is_causal, "seed": 0}


text = functools.partial(given, "language_modelling")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"task": {"name": "copying"}}, "task.name='copying': must be one of associative_recall, induction_heads, "),
        (given(noise=3), "task.noise=3: unknown; known are examples, num_tokens, alphabet"),
        (given(examples=0), "task.examples=0: must be a number of at least 1"),
        (given(seq_len=31), "seq_len=31: must be at least 32, twice task.num_tokens=16"),
        (given(causal=False), "causal=false: must be true: a decoder (model=transformer_tiny) reads task.name=sele"),
        (given("reversal", causal=True), "causal=true: must be false: an encoder (model=encoder) reads task.name=rev"),
        (given("induction_heads", seq_len=2), "seq_len=2: must be at least 3 for task.name=induction_heads"),
        (given("associative_recall", seq_len=63), "seq_len=63: must be even and at least 16, four times"),
        (given("associative_recall", num_pairs=17), "seq_len=64: must be even and at least 68, four times"),
        (given("associative_recall", vocabulary=64), "task.vocabulary=64: must be more than seq_len=64"),
        (given("noisy_recall", seq_len=2), "seq_len=2: must be even and at least 4 for task.name=noisy_recall"),
        (given("noisy_recall", vocabulary=19), "task.vocabulary=19: must be at least 20, four more than task.noise_"),
        (given("noisy_recall", noise=1), "task.noise=1.0: must be a number "),
        (given("fuzzy_recall", 11), "seq_len=11: must be at least 12, twice task.key_tokens=3 and task.value"),
        (given("fuzzy_recall", key_tokens=8), "task.key_tokens=8: must be at most 7, half of task.vocabulary=16"),
        (given("fuzzy_recall", value_tokens=9), "task.value_tokens=9: must be at most 8, half of task.vocabulary=16"),
        (given("compression", seq_len=31), "seq_len=31: must be even and at least 2 for task.name=compression"),
        (given("memorisation", seq_len=31), "seq_len=31: must be even and at least 2 for task.name=memorisation"),
        (given("listops", 2048, True), "causal=true: must be false: a classifier (model=classifier) reads task.name=l"),
        (given("listops", 1998), "seq_len=1998: must be at least 1999, one less than task.max_length"),
        (given("listops", max_length=999), "task.max_length=999: must be at least 1000, twice task.min_length"),
        (given("listops", 2048, max_depth=2000), "task.max_depth=2000: must be a number of at most 100"),
        (given("listops", 2048, max_depth=3), "task.max_depth=3: must be larger: expressions have at most 122 tokens"),
        (given("image", 784), "seq_len=784: must be 1024, the pixels of task.name=image"),
        (given("image", data="nowhere"), "task.data='nowhere': must be cifar10, digits, or a folder"),
        (given("pathfinder", data=__file__), f"task.data={__file__!r}: must be drawn, or a folder"),
        (given("image", mask="black"), "task.mask='black': must be one of all, nonzero"),
        (given("pathfinder", contour_length=19), "task.contour_length=19: must be a number of at most 18"),
        (text(text=" "), "task.text=' ': must be kjv, pydoc, sympy, an existing file, or a hub dataset"),
        (text(tokenizer=""), "task.tokenizer='': must be minilm, a directory, or"),
        (text(tokenizer="no.json"), "task.tokenizer='no.json': must be bytes, bpe, a file (.json, .model), "),
        (text(tokenizer=__file__), f"task.tokenizer={__file__!r}: must be bytes, bpe, a file (.json, .model), "),
        (text(tokenizer="bpe"), "task.vocabulary=None: must be a number with task.tokenizer=bpe, null with every"),
        (text(vocabulary=300), "task.vocabulary=300: must be a number with task.tokenizer=bpe, null with every"),
        (text(tokenizer="bpe", vocabulary=256), "task.vocabulary=256: must be a number of at least 257"),
        (text(fallback="wikitext"), "task.fallback='wikitext': must be one of kjv, pydoc"),
    ],
)
def test_what_does_not_fit_is_one_line_before_anything_is_drawn(config, message, tmp_path):
    with refused(message):
        open_task(config, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
