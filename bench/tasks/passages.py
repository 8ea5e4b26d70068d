"""Passages of texts that are on this machine, which stand in for the documents of Long Range Arena's data sets."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from bench.inputs import texts
from bench.tasks.base import HELD_OUT, SPLITS, Drawn, Draws
from bench.tasks.corpus import Sources

PAGE = 8192
"""Bytes of a part of a testament, which is whole in one split."""
NEW_TESTAMENT = "The book of the generation of Jesus Christ"

Bytes = NDArray[np.uint8]


def padded(document: Bytes, seq_len: int) -> NDArray[np.int64]:
    """A byte is its value + 1; 0 follows the last one, and what is too long is cut."""
    tokens = np.zeros(seq_len, np.int64)
    part = document[:seq_len]
    tokens[: len(part)] = part.astype(np.int64) + 1
    return tokens


def passage(draws: Draws, text: Bytes, longest: int) -> Bytes:
    """A part of a text: every length from half of the longest on is as likely, and then every place."""
    longest = min(longest, len(text))
    size = longest - int(draws.integers(longest - longest // 2 + 1, 1)[0])
    start = int(draws.integers(len(text) - size + 1, 1)[0])
    return text[start : start + size]


def of_testament(longest: int, seq_len: int, draws: Draws, split: str) -> Drawn:
    """A passage of the King James Bible, and whether it is of the New Testament; both are as likely."""
    old, new = _pages()[split]
    label = int(draws.integers(2, 1)[0])
    pages = new if label else old
    number = int(draws.integers(len(pages), 1)[0])
    tokens = padded(passage(draws, pages[number], longest), seq_len)
    return Drawn(tokens, np.array([label]), number + label * len(old))


@functools.cache
def _pages() -> dict[str, tuple[list[Bytes], list[Bytes]]]:
    """The pages of both testaments in each split."""
    whole = "".join(texts.lines("kjv", "task.data"))
    place = whole.index(NEW_TESTAMENT)
    of_testament = [_cut(part.encode()) for part in (whole[:place], whole[place:])]
    return {split: (of_testament[0][split], of_testament[1][split]) for split in SPLITS}


def _cut(text: bytes) -> dict[str, list[Bytes]]:
    """The pages of a text by split; what is left at its end is no page."""
    pages: dict[str, list[Bytes]] = {split: [] for split in SPLITS}
    for number in range(len(text) // PAGE):
        pages[HELD_OUT.get(number % 10, "train")].append(np.frombuffer(text, np.uint8, PAGE, number * PAGE))
    return pages


def of_files(longest: int, seq_len: int, draws: Draws, split: str) -> Drawn:
    """A passage of the first half of a source file of SymPy, one of the second half of this or, as likely, of another.

    The answer is whether both are of one file.
    """
    files = _files(longest)[split]
    label = int(draws.integers(2, 1)[0])
    first, other = draws.distinct(len(files), 2).tolist()
    second = first if label else other
    halves = files[first][: len(files[first]) // 2], files[second][len(files[second]) // 2 :]
    tokens = np.stack([padded(passage(draws, half, longest), seq_len) for half in halves])
    return Drawn(tokens, np.array([label]), first)


@functools.cache
def _files(longest: int) -> dict[str, list[Bytes]]:
    """The files of each split with room for two passages."""
    files = {split: map(str.encode, Sources().pieces(split)) for split in SPLITS}
    return {split: [np.frombuffer(x, np.uint8) for x in own if len(x) >= 2 * longest] for split, own in files.items()}
