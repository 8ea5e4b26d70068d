"""Text and retrieval: files of the published form, truncation and padding, and the stand-ins."""

import functools

import pytest
import torch
from reading import needs_data

from bench.common.errors import ConfigError
from bench.inputs import models, texts
from bench.tasks import SPLITS, open_task, passages, settings

LONG = "é" * 3000


@pytest.fixture
def opened(tmp_path):
    def of(name, seq_len=64, seed=0, **changes):
        config = {"task": {"name": name, **changes}, "seq_len": seq_len, "causal": False, "seed": seed}
        return open_task(config, tmp_path / "cache")

    return of


def read(tokens):
    """The bytes before the padding; nothing follows it."""
    values = tokens.tolist()
    length = len(values) - values.count(0)
    assert 0 not in values[:length]
    return bytes(value - 1 for value in values[:length])


# --- files of the published form


def pairs(folder, split, rows, ending="\n"):
    folder.mkdir(exist_ok=True)
    lines = ["\t".join(row) + ending for row in rows]
    (folder / f"new_aan_pairs.{split}.tsv").write_bytes("".join(lines).encode())


def test_pairs_of_papers_are_read_line_by_line_with_quotes_as_they_are(opened, tmp_path):
    rows = [("1.0", "P1", "P2", 'He said "no', "b" * 200), ("0", "P1", "P3", LONG, 'and "then')]
    pairs(tmp_path / "aan", "train", rows)
    pairs(tmp_path / "aan", "eval", [("0", "P9", "P2", "short", "ça")], "\r\n")
    pairs(tmp_path / "aan", "test", [("1", "P8", "P2", "\x00nul", "")])
    task = opened("retrieval", data=str(tmp_path / "aan"))
    assert (task.classes, task.padding, task.vocabulary, task.source) == (2, 0, 512, str(tmp_path / "aan"))
    assert task.sizes == {"train": 2, "validation": 1, "test": 1}
    batch = task.batch("train", [1, 0])
    assert batch.tokens.shape == batch.mask.shape == (2, 2, 64) and batch.targets.tolist() == [[0], [1]]
    assert [read(one) for one in batch.tokens[0]] == [LONG.encode()[:64], b'and "then']
    assert [read(one) for one in batch.tokens[1]] == [b'He said "no', b"b" * 64]
    assert torch.equal(batch.mask, batch.tokens != 0)
    assert [read(one) for one in task.batch("validation", [0]).tokens[0]] == [b"short", "ça".encode()]
    assert [read(one) for one in task.batch("test", [0]).tokens[0]] == [b"\x00nul", b""]
    # 4,000 bytes are read, and padded to what Skeinformer's model takes.
    (long, _), *_ = opened("retrieval", 4096, data=str(tmp_path / "aan")).batch("train", [1]).tokens
    assert read(long) == LONG.encode()[:4000] and long.shape == (4096,)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2\tP1\tP2\ta\tb", "new_aan_pairs.test.tsv:2: must be 0 or 1, two ids and two texts between tabs"),
        ("1\tP1\tP2\ta", "new_aan_pairs.test.tsv:2: must be 0 or 1, two ids and two texts between tabs"),
        (None, "task.data='{}': must be sympy, or a folder with one *.test.tsv"),
    ],
)
def test_what_is_no_file_of_pairs_is_one_line(opened, tmp_path, line, message):
    folder = tmp_path / "aan"
    for split in ("train", "eval"):
        pairs(folder, split, [("1", "P1", "P2", split, "b")])
    if line is not None:
        (folder / "new_aan_pairs.test.tsv").write_text(f"0\tP\tP\tc\td\n{line}\n")
    with pytest.raises(ConfigError) as error:
        opened("retrieval", data=str(folder))
    assert message.format(folder) in str(error.value) and "\n" not in str(error.value)


REVIEWS = {
    "train": [{"text": f"<br />review {number} café", "label": int(number >= 20)} for number in range(40)],
    "test": [{"text": f"<br />other {number} café", "label": int(number >= 3)} for number in range(5)],
}


def check_reviews(task):
    """Every tenth of the training split is for validation, which has both classes though the file is sorted."""
    train = REVIEWS["train"]
    rest = [row for number, row in enumerate(train) if number % 10 != 9]
    for split, rows in (("train", rest), ("validation", train[9::10]), ("test", REVIEWS["test"])):
        assert task.size(split) == len(rows)
        tokens, targets, _ = task.batch(split, range(len(rows)))
        assert [read(one).decode() for one in tokens] == [row["text"] for row in rows]
        assert targets[:, 0].tolist() == [row["label"] for row in rows]
    assert (task.classes, task.padding, task.vocabulary) == (2, 0, 512)


def test_reviews_are_read_from_a_folder_of_files(opened, tmp_path):
    pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    folder = tmp_path / "imdb"
    folder.mkdir()
    for split, rows in REVIEWS.items():
        pandas.DataFrame(rows).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    check_reviews(opened("text", data=str(folder)))


def test_reviews_of_the_hub_are_read_once(opened, monkeypatch):
    asked = []

    def records(path, config, revision, split, key, columns):
        asked.append((path, split, columns))
        return iter(REVIEWS[split])

    monkeypatch.setattr(models, "hub_answers", lambda: True)
    monkeypatch.setattr(texts, "records", records)
    check_reviews(opened("text"))
    check_reviews(opened("text"))
    assert asked == [("stanfordnlp/imdb", split, ("text", "label")) for split in ("train", "train", "test")]


@pytest.mark.parametrize(
    ("labels", "count", "why"),
    [
        *(((0, label), 20, f"a label {label}; must be a whole number from 0 to 1") for label in (2, -1, 0.9)),
        ((0, 1), 9, "no example for validation"),
    ],
)
def test_labels_of_other_classes_and_splits_without_examples_are_refused(opened, monkeypatch, labels, count, why):
    """Before the first step, where a label would be an index out of range, or be rounded."""
    rows = [{"text": f"review {number}", "label": labels[number % 2]} for number in range(count)]
    monkeypatch.setattr(models, "hub_answers", lambda: True)
    monkeypatch.setattr(texts, "records", lambda *_: iter(rows))
    with pytest.raises(ConfigError, match=f"imdb.*: has {why}"):
        opened("text")


def test_without_the_hub_the_stand_in_is_named(opened, monkeypatch):
    monkeypatch.setattr(models, "hub_answers", lambda: False)
    for name, data, instead in (("text", "imdb", "testaments"), ("image", "cifar10", "digits")):
        with pytest.raises(ConnectionError) as error:
            opened(name, 64 if name == "text" else 1024)
        line = f"task.data='{data}': the Hugging Face hub cannot be reached; a stand-in is task.data={instead}"
        assert str(error.value) == line


# --- stand-ins


def check_passages(task, seq_len, count=300):
    """Lengths from half of the longest on, both labels, the same example alone, and units that say where it is from."""
    assert task.sizes == dict.fromkeys(SPLITS) and (task.classes, task.padding) == (2, 0)
    tokens, targets, mask = task.batch("test", range(count))
    lengths = mask.sum(-1).flatten()
    longest = min(seq_len, 4000)
    assert lengths.min() >= longest // 2 and lengths.max() <= longest
    assert lengths.min() < 0.55 * longest and lengths.max() > 0.95 * longest
    assert 0.4 < targets.double().mean() < 0.6
    assert torch.equal(task.batch("test", [5]).tokens[0], tokens[5])
    units = task.units("test", range(count))
    assert len(set(units)) > 10 and len(units) == count
    return tokens, targets[:, 0].tolist(), units


@needs_data
def test_passages_of_testaments_are_of_their_testament_and_of_one_split(opened, monkeypatch):
    monkeypatch.setattr(texts, "_kjv", functools.cache(texts._kjv))  # which takes a second
    task = opened("text", 300, data="testaments")
    assert "stand-in" in task.source
    tokens, labels, units = check_passages(task, 300)
    whole = "".join(texts.lines("kjv")).encode()
    new = whole.index(b"The book of the generation of Jesus Christ")
    for row, label, unit in zip(tokens[:50], labels, units, strict=False):
        assert (whole.find(read(row), new) >= 0) == bool(label) and (unit >= 39) == bool(label)
    pages = passages._pages()
    places = {split: {page.tobytes() for part in pages[split] for page in part} for split in SPLITS}
    assert sum(map(len, places.values())) == len(set().union(*places.values())) == 505
    assert [len(pages["test"][label]) for label in (0, 1)] == [38, 11]


def test_passages_of_files_are_of_one_file_or_of_two_and_files_are_of_one_split():
    # Without a look for leaks, for which short passages in test_trained_inputs.py are enough.
    task = settings({"name": "retrieval"}).open({"seq_len": 4096, "seed": 0}, None)
    assert "stand-in" in task.source
    tokens, labels, _ = check_passages(task, 4096, 120)
    kept = {split: [file.tobytes() for file in passages._files(4000)[split]] for split in SPLITS}
    whole = {text.encode() for _, text in texts.sympy_files()}
    assert whole.issuperset(kept["test"])
    halves = [(file[: len(file) // 2], file[len(file) // 2 :]) for file in kept["test"]]
    pairs = [(read(one), read(other)) for one, other in tokens[:100]]
    same = [any(one in first and other in second for first, second in halves) for one, other in pairs]
    # A passage that is in several files may be taken for one of the other's.
    assert sum(a != b for a, b in zip(same, labels, strict=False)) <= 1
    each = [file for split in SPLITS for file in kept[split]]
    assert len(each) == len(set(each)) and min(len(kept[split]) for split in SPLITS) > 15
