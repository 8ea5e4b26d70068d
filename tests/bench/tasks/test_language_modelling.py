"""Language modelling: windows of tokens of a text, what was really read, and what is kept of it."""

import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import refusals
import torch
from reading import minilm_tokenizer, needs_data
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from bench.common.errors import ConfigError
from bench.inputs import models, texts
from bench.tasks import SPLITS, corpus, open_task
from bench.tasks.corpus import LocalText

LINES = [f"line {number}: the {number * 7919 % 1000}th of them, très 猫 short\n" for number in range(400)]


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def opened(tmp_path, cache):
    """Open the task of a text, which is written to a file unless it is a name."""

    def of(text=LINES, seq_len=16, seed=0, **changes):
        if not isinstance(text, str):
            (tmp_path / "text.txt").write_text("".join(text))
            text = str(tmp_path / "text.txt")
        task = {"name": "language_modelling", "text": text, **changes}
        return open_task({"task": task, "seq_len": seq_len, "causal": True, "seed": seed}, cache)

    return of


@pytest.fixture
def refused(opened):
    """That a task is refused in a line of this beginning."""

    def of(line, *given, error=ConfigError, **changes):
        with refusals.refused(line, error):
            opened(*given, **changes)

    return of


def decoded(tokens):
    return bytes(tokens.tolist()).decode()


# --- splits and windows


def test_bytes_of_the_splits_are_the_text_cut_at_line_ends(opened, tmp_path):
    task = opened()
    parts = [decoded(task.tokens[split]) for split in SPLITS]
    whole = "".join(LINES)
    assert "".join(parts) == whole
    assert (task.vocabulary, task.causal, task.source) == (256, True, str(tmp_path / "text.txt"))
    longest = max(map(len, LINES))
    for part, share in zip(parts, (0.90, 0.05, 0.05), strict=True):
        assert part.endswith("\n") and abs(len(part) - share * len(whole)) <= longest
    assert len(parts[0]) <= 0.9 * len(whole) and len(parts[0] + parts[1]) <= 0.95 * len(whole)


def test_a_text_of_one_line_is_cut_where_the_shares_are_and_no_more_is_kept_than_asked_for(opened):
    task = opened(["0123456789" * 10], 4)
    assert [len(task.tokens[split]) for split in SPLITS] == [90, 5, 5]
    assert decoded(task.tokens["test"]) == "56789"
    task = opened(["0123456789" * 10], 4, max_tokens=6)
    assert decoded(task.tokens["train"]) == "012345"
    # The first and the last window are drawn, too.
    assert {decoded(row) for row in task.batch("train", range(50)).tokens} == {"0123", "1234"}


@pytest.mark.parametrize("before", [0, 5, 100, 101, 5000])
def test_a_line_that_is_longer_than_a_hundredth_of_the_text_is_cut_where_the_shares_are(opened, before):
    task = opened(["x" * (9000 - before - 1) + "\n", "y" * (1000 + before)])
    train = 9000 - before if before <= 100 else 9000
    assert [len(task.tokens[split]) for split in SPLITS] == [train, 9500 - train, 500]


def test_windows_of_validation_and_test_tile_their_split(opened):
    task = opened(seq_len=7)
    for split in ("validation", "test"):
        whole, size = task.tokens[split].astype(np.int64), task.size(split)
        tokens, targets, _ = task.batch(split, range(size))
        assert tokens.shape == targets.shape == (size, 7) and tokens.dtype == targets.dtype == torch.int64
        assert tokens.flatten().tolist() == whole[: size * 7].tolist()
        assert targets.flatten().tolist() == whole[1 : size * 7 + 1].tolist()
        assert len(whole) - (size * 7 + 1) < 7
        with pytest.raises(IndexError, match=f"index {size}: the split {split} has {size}"):
            task.batch(split, [size])


def test_windows_to_train_on_are_of_the_training_split_and_anywhere_in_it(opened):
    task = opened(seq_len=40)
    assert task.size("train") is None
    whole = bytes(task.tokens["train"].tolist())
    starts = []
    for read, asked in zip(*(part.tolist() for part in task.batch("train", range(2000))[:2]), strict=True):
        window = bytes([*read, asked[-1]])
        assert asked[:-1] == read[1:] and window in whole
        starts.append(whole.index(window))
    # Windows of 41 bytes with a number in them are where they are found first.
    tenths = np.bincount([10 * start // (len(whole) - 40) for start in starts], minlength=10)
    assert min(tenths) > 130


def test_a_window_drawn_alone_is_the_one_of_any_batch_and_seeds_differ(opened):
    task, other = opened(), opened(seed=1)
    for split in SPLITS:
        together = task.batch(split, [5, 1, 5])
        for row, index in enumerate([5, 1, 5]):
            alone = opened().batch(split, [index])
            assert all(torch.equal(part[row], one[0]) for part, one in zip(together[:2], alone[:2], strict=True))
        assert torch.equal(together.tokens, other.batch(split, [5, 1, 5]).tokens) == (split != "train")


def test_a_text_that_cannot_be_read_or_is_shorter_than_a_window_is_one_line(refused, tmp_path):
    short = tmp_path / "text.txt"
    line = f"seq_len=5: must be at most 4, the split validation of task.text={short} has 5 tokens"
    refused(line, ["0123456789" * 10], 5)
    refused(f"task.text='{short}': has no validation split, it is too short", ["abcdefghij\n"], 1)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n" * 100)
    refused(f"task.text='{tmp_path / 'latin.txt'}': cannot be read: ", str(tmp_path / "latin.txt"), 1)


@pytest.mark.parametrize(("text", "size"), [("", "0"), ("hi\n", "3"), ("ab\n" * 425, "1,275"), ("é" * 769, "1,538")])
@pytest.mark.parametrize(
    "tokens", [{}, {"tokenizer": "bpe", "vocabulary": 257}, {"tokenizer": "bpe", "vocabulary": 1024}]
)
def test_that_a_text_is_too_short_is_said_before_what_is_wrong_with_its_tokens(text, size, tokens, refused, tmp_path):
    line = f"task.text='{tmp_path / 'text.txt'}': has {size} bytes, too few; must have 513 tokens (seq_len + 1) in its"
    refused(line, [text], 512, **tokens)


def test_a_text_without_pairs_is_told_to_be_bytes(refused):
    line = "task.vocabulary=300: must be null with task.tokenizer=bytes, as "
    refused(line, ["a\n" * 1000], tokenizer="bpe", vocabulary=300)


# --- tokenizers


def test_a_trained_vocabulary_encodes_the_text_and_is_learned_from_the_training_split_alone(opened, cache):
    # "zqx" is frequent, but not where the tokenizer may look.
    task = opened([*LINES, "zqx zqx zqx zqx\n" * 200], tokenizer="bpe", vocabulary=400)
    (kept,) = cache.glob("*.json")
    library = Tokenizer.from_file(str(kept))
    assert task.vocabulary == library.get_vocab_size() == 400
    train = "".join(LocalText(task.source).pieces("train"))
    assert library.decode(task.tokens["train"].tolist()) == train
    assert "zqx" in library.decode(task.tokens["test"].tolist())
    expected = [token for line in train.splitlines(keepends=True) for token in library.encode(line).ids]
    assert task.tokens["train"].tolist() == expected and task.tokens["train"].dtype == np.uint16
    learned = [library.decode([token]) for token in range(400)]
    assert any("猫" in each for each in learned) and max(map(len, learned)) > 3


def test_a_tokenizer_of_a_file_is_read_as_it_is(opened, refused, tmp_path, cache):
    first = opened(tokenizer="bpe", vocabulary=300)
    (kept,) = cache.glob("*.json")
    mine = Path(kept).rename(tmp_path / "mine.json")
    before = set(cache.iterdir())
    again = opened(first.source, tokenizer=str(mine))
    assert again.vocabulary == 300 and set(cache.iterdir()) == before  # the same tokens, found again
    mine.write_text("{}")
    refused(f"task.tokenizer='{mine}': cannot be read: ", tokenizer=str(mine))
    refused(f"task.tokenizer='{cache}': cannot be read: ", tokenizer=str(cache))
    with pytest.raises(ConfigError, match=r"^task\.vocabulary=100000: must be at most \d+, all that the text gives$"):
        opened(LINES[:60], tokenizer="bpe", vocabulary=100_000)


def test_a_model_of_sentencepiece_is_read(opened, refused, tmp_path, monkeypatch):
    """Of a fake, whose ids are the lengths of words."""
    fake = SimpleNamespace(vocab_size=lambda: 32_000, encode=lambda text: [len(word) for word in text.split()])
    module = SimpleNamespace(SentencePieceProcessor=lambda model_proto: {b"model": fake}[model_proto])
    (tmp_path / "spm.model").write_bytes(b"model")
    asked = {"tokenizer": str(tmp_path / "spm.model")}
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    refused("task.tokenizer: sentencepiece is missing; pip install", error=ModuleNotFoundError, **asked)
    monkeypatch.setitem(sys.modules, "sentencepiece", module)
    task = opened(**asked)
    expected = fake.encode("".join(LocalText(task.source).pieces("test")))
    assert task.vocabulary == 32_000 and task.tokens["test"].tolist() == expected


@pytest.mark.parametrize("count", [255, 256])
def test_a_tokenizer_with_as_many_ids_as_there_are_bytes_is_no_bytes(opened, tmp_path, count):
    """Whether its tokens can be recalled depends on pairs of tokens; as bytes, these ids would be of one long word."""
    words = {f"w{number}": count - 1 - number for number in range(40)}
    tokenizer = Tokenizer(WordLevel({**words, **{f"no{number}": number for number in range(count - 40)}}))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "words.json"))
    lines = [" ".join(f"w{place * place % 11 + row % 3}" for place in range(10)) + "\n" for row in range(200)]
    task = opened(lines, seq_len=60, tokenizer=str(tmp_path / "words.json"))
    tokens, targets = task.example("test", 0)
    pairs = [*pairwise([*tokens, targets[-1]])]
    recalled = [pair in pairs[:place] for place, pair in enumerate(pairs)]
    assert task.vocabulary == count and 20 < sum(recalled) < 50
    assert (task.kinds_of("test", 0) > 0).tolist() == recalled


@needs_data
def test_the_tokenizer_of_a_model_is_read(opened):
    task = opened(tokenizer="minilm")
    expected = [token for line in LocalText(task.source).pieces("test") for token in minilm_tokenizer()(line)]
    assert task.vocabulary == 30522 and task.tokens["test"].tolist() == expected


# --- the cache


def test_tokens_are_mapped_and_made_once_for_each_text_and_vocabulary(opened, cache, monkeypatch):
    first = opened()
    assert len([*cache.iterdir()]) == 3 and all(isinstance(tokens, np.memmap) for tokens in first.tokens.values())
    assert not any(tokens.flags.writeable for tokens in first.tokens.values())
    with monkeypatch.context() as patch:
        patch.setattr(LocalText, "pieces", lambda *_: pytest.fail("read again"))
        second = opened(seq_len=5, seed=3)
    assert all(np.array_equal(first.tokens[split], second.tokens[split]) for split in SPLITS)
    assert decoded(opened(LINES[::-1]).tokens["test"]).endswith(LINES[0])
    shorter, other, again = (opened(tokenizer="bpe", vocabulary=n).tokens["train"] for n in (300, 400, 300))
    assert len(other) < len(shorter) and np.array_equal(shorter, again)


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: data[:50],
                                    lambda data: b"x" * len(data), lambda data: data + b"more"])  # fmt: skip
def test_a_damaged_file_is_made_again(opened, cache, damage):
    expected = {split: tokens.tolist() for split, tokens in opened(tokenizer="bpe", vocabulary=300).tokens.items()}
    contents = {path: path.read_bytes() for path in cache.iterdir()}
    assert len(contents) == 4
    for path, content in contents.items():
        path.write_bytes(damage(content))
    again = opened(tokenizer="bpe", vocabulary=300)
    assert {split: tokens.tolist() for split, tokens in again.tokens.items()} == expected
    assert {path: path.read_bytes() for path in cache.iterdir()} == contents


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
PG19 = ("emozilla/pg19", None, "c021754c8e01c5b1cc83a1f549c1f97fbbb756b8")


def test_a_folder_that_cannot_be_read_is_no_hub_out_of_reach(reached, tmp_path):
    """Nothing else may be read in its place, as where the hub does not answer."""
    reached(error=FileNotFoundError("no data files"))
    with pytest.raises(ValueError, match=f"task.data='{tmp_path}': cannot be read: .*no data files"):
        list(texts.records(str(tmp_path), None, None, "train", "task.data", ("text",)))


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("wikitext", WIKITEXT),
        ("Salesforce/wikitext", WIKITEXT),
        ("wikitext:wikitext-2-raw-v1", (WIKITEXT[0], "wikitext-2-raw-v1", WIKITEXT[2])),
        ("wikitext@abc", (*WIKITEXT[:2], "abc")),
        ("org/name:part", ("org/name", "part", "main")),
    ],
)
def test_a_text_of_the_hub_is_read_with_its_splits(name, dataset, reached, opened):
    fake = reached()
    task = opened(name)
    assert fake.asked == [(*dataset, split) for split in SPLITS]
    for split in SPLITS:
        assert decoded(task.tokens[split]) == "".join(f"{split} {number}\n" for number in range(40))
    path, part, revision = dataset
    assert task.source == f"{path}{f':{part}' if part else ''}@{revision}"


def test_the_test_split_of_c4_is_every_other_document_of_its_validation_split(reached, opened):
    fake = reached()
    task = opened("c4")
    c4 = ("allenai/c4", "en", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
    assert fake.asked == [(*c4, "train"), (*c4, "validation"), (*c4, "validation")]
    documents = [f"validation {number}\n" for number in range(40)]
    assert decoded(task.tokens["validation"]) == "".join(documents[::2])
    assert decoded(task.tokens["test"]) == "".join(documents[1::2])


def test_a_window_counts_for_the_document_that_its_middle_is_of(reached, opened):
    reached()
    task, split = opened("pg19", seq_len=8), "test"
    documents = [f"{split} {number}\n" for number in range(40)]
    of_token = [number for number, document in enumerate(documents) for _ in document.encode()]
    windows = range(task.size(split))
    assert task.units(split, windows) == [of_token[8 * window + 4] for window in windows]
    assert task.unit == "documents" and task.ends[split][-1] == len(task.tokens[split])


def test_documents_are_known_where_the_tokens_alone_were_kept(reached, opened, cache):
    fake = reached()
    ends = opened("pg19").ends["test"].tolist()
    for path in cache.glob("*.npy"):
        if np.load(path).dtype == np.uint64:
            path.unlink()
    assert opened("pg19").ends["test"].tolist() == ends
    assert [split for *_, split in fake.asked] == [*SPLITS, "validation", "test"], "the tokens of training stay"


def test_a_text_without_documents_has_equal_stretches(opened):
    task = opened(seq_len=16)
    units = task.units("test", range(task.size("test")))
    counts = np.bincount(units)
    assert units == sorted(units) and len(counts) == 32 and np.ptp(counts) <= 1 and task.unit == "stretches of the text"


def test_a_document_is_read_no_further_than_the_tokens_asked_for(reached, opened):
    reached(documents=6, error=AssertionError("read further than asked"))
    assert all(len(tokens) == 30 for tokens in opened("pg19", max_tokens=30).tokens.values())


def test_markers_of_wiki40b_are_no_text():
    document = "\n_START_ARTICLE_\nA cat\n_START_SECTION_\nLife\n_START_PARAGRAPH_\nIt sleeps._NEWLINE_It eats."
    assert corpus.KNOWN["wiki40b"].clean(document) == "A cat\nLife\nIt sleeps.\nIt eats."
    with pytest.raises(ValueError, match="must be a text, not the repr of bytes"):
        corpus.without_markers("b'\\n_START_ARTICLE_\\n'")


def test_what_is_cached_is_read_without_the_hub(reached, opened, monkeypatch):
    reached()
    first = opened("pg19", tokenizer="bpe", vocabulary=260)
    monkeypatch.setattr(models, "hub_answers", lambda: False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    second = opened("pg19", tokenizer="bpe", vocabulary=260)
    assert second.source == first.source == f"{PG19[0]}@{PG19[2]}"
    assert torch.equal(first.batch("test", [0]).tokens, second.batch("test", [0]).tokens)


def test_a_hub_out_of_reach_is_one_line_or_the_text_allowed_instead_named_as_what_it_is(opened, refused, monkeypatch):
    monkeypatch.setattr(models, "hub_answers", lambda: False)
    line = "task.text='Salesforce/wikitext': the Hugging Face hub cannot be reached"
    refused(line, "wikitext", error=ConnectionError)
    task, plain = opened("wikitext", fallback="pydoc"), opened("pydoc")
    assert (task.source, plain.source) == ("pydoc (wikitext could not be reached)", "pydoc")
    assert torch.equal(task.batch("test", [1]).tokens, plain.batch("test", [1]).tokens)


def test_a_hub_that_breaks_off_leaves_no_half_of_a_text(reached, opened, refused, cache):
    reached(error=ConnectionError("reset by peer\nand more"))
    line = "task.text='emozilla/pg19': cannot be read from the hub: reset by peer"
    refused(line, "pg19", error=ConnectionError)
    assert list(cache.iterdir()) == []
    assert opened("pg19", fallback="pydoc").source == "pydoc (pg19 could not be reached)"


def test_a_dataset_without_the_split_or_the_column_is_refused_whatever_may_be_read_instead(reached, refused):
    reached(error=ValueError("Bad split: train"))
    refused("task.text='org/name': must be a dataset with a split train: Bad", "org/name", fallback="pydoc")
    reached(column="content")
    refused("task.text='org/name': must be a dataset with a column text, it has ['content']", "org/name")
