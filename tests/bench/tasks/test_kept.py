"""What tasks make once and keep: it is told, an interruption costs one part of it, and nothing is made twice."""

from types import SimpleNamespace

import numpy as np
import pytest

from bench.tasks import TASKS, kept, open_task, pathfinder, progress
from bench.tasks.progress import ItemProgress, reporting

KEY, BYTES = {"of": "a test"}, np.dtype(np.uint8)


@pytest.fixture
def told():
    texts, seconds = [], []
    with reporting(lambda text, more: (texts.append(text), seconds.append(more))):
        yield texts
    assert all(more >= 0 for more in seconds)


def parts(made, stop=None):
    def piece(number):
        if number == stop:
            raise KeyboardInterrupt
        made.append(number)
        return np.array([number, 7], np.uint8)

    return kept.Parts(KEY, 12, piece, BYTES, size=5)


def test_an_interruption_costs_one_part_and_leaves_nothing_torn(tmp_path, told):
    cache = tmp_path / "cache"
    made, again = [], []
    with pytest.raises(KeyboardInterrupt):
        parts(made, stop=8).array(cache, ItemProgress("pieces", 12))
    assert made == [*range(8)] and [path.suffix for path in cache.iterdir()] == [".npy"]
    assert [text.split(",")[0] for text in told] == [f"{number}/12 pieces" for number in range(1, 9)]
    rest = parts(again)
    assert rest.missing(cache) == 7
    whole = rest.array(cache, ItemProgress("pieces", 7))
    assert again == [*range(5, 12)] and whole.tolist() == [x for number in range(12) for x in (number, 7)]
    assert told[8].startswith("1/7 pieces, ") and told[-1] == "7/7 pieces, 0.0 min left"
    (path,) = cache.iterdir()
    assert kept.has(KEY, cache) and rest.missing(cache) == 0
    parts(made := []).array(cache, ItemProgress("pieces"))
    assert made == [] and [path] == [*cache.iterdir()]


def test_minutes_left_are_those_at_the_speed_so_far(monkeypatch, told):
    clock = iter([100.0, 103.0, 106.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    assert [*ItemProgress("images", 42).over("ab")] == ["a", "b"]
    assert told == ["1/42 images, 2.0 min left", "2/42 images, 2.0 min left"]
    monkeypatch.undo()
    assert [*ItemProgress("reviews").over("ab")] == ["a", "b"] and told[2:] == ["1 reviews", "2 reviews"]


def aan(folder):
    folder.mkdir()
    for split in ("train", "eval", "test"):
        lines = (f"{number % 2}\tP{number}\tQ\t{split} {number}\tb\n" for number in range(3))
        (folder / f"pairs.{split}.tsv").write_text("".join(lines))


TEXTS = ["1 texts read to train the tokenizer", "1 texts of train made into tokens", "5 texts of test made into tokens"]
TOLD = {
    "pathfinder": (1024, {"examples": 16, "contour_length": 5}, ["1/20 images drawn", "20/20 images drawn"]),
    "retrieval": (32, {"data": "aan"}, ["1 examples of train read", "3 examples of test read"]),
    "language_modelling": (4, {"text": "lines.txt", "tokenizer": "bpe", "vocabulary": 260}, TEXTS),
}


@pytest.mark.parametrize("name", TOLD)
def test_every_task_that_keeps_something_tells_how_far_it_is_and_makes_it_once(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    aan(tmp_path / "aan")
    (tmp_path / "lines.txt").write_text("".join(f"a line, the {number:03}\n" for number in range(100)))
    seq_len, settings, lines = TOLD[name]
    config = {"task": {"name": name, **settings}, "seq_len": seq_len, "causal": TASKS[name].causal, "seed": 0}
    told, again = [], []
    first = open_task(config, tmp_path / "cache", lambda text, more: told.append(text.split(", ")[0]))
    assert set(lines) <= set(told) and told[0] == lines[0] and told[-1] == lines[-1]
    second = open_task(config, tmp_path / "cache", lambda text, more: again.append(text))
    assert again == [] and first.batch("test", [1]).tokens.equal(second.batch("test", [1]).tokens)


def test_what_is_to_be_drawn_is_estimated_until_it_is_kept(tmp_path, monkeypatch):
    task, config = pathfinder.Pathfinder(), {"seq_len": 1024}
    said = "200,000 images of task.name=pathfinder to draw, about 40 min"
    assert task.to_make(config, tmp_path) == said
    assert pathfinder.Pathfinder(data=str(tmp_path)).to_make(config, tmp_path) is None
    monkeypatch.setattr(kept, "has", lambda key, cache_dir: key["split"] == "train" and key.get("from") != 0)
    assert task.to_make(config, tmp_path) == "40,000 images of task.name=pathfinder to draw, about 8 min"
    monkeypatch.setattr(kept, "has", lambda key, cache_dir: key["split"] == "train" and key.get("from") == 6000)
    assert task.to_make(config, tmp_path) == "198,000 images of task.name=pathfinder to draw, about 40 min"
    assert pathfinder.Pathfinder(contour_length=8).to_make(config, tmp_path).endswith("draw, about 10 min")
    monkeypatch.setattr(kept, "has", lambda key, cache_dir: True)
    assert task.to_make(config, tmp_path) is None
