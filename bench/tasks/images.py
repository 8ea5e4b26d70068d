"""Images as sequences of pixels, and image classification of Long Range Arena."""

from __future__ import annotations

import functools
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import package
from bench.common.schema import require_setting, setting
from bench.tasks import data_sets, kept
from bench.tasks.base import HELD_OUT, SPLITS, Drawn, Draws, Fresh, Task
from bench.tasks.progress import ItemProgress

SIDE = 32
LEVELS = 256
LUMINANCE = (0.2989, 0.5870, 0.1140)
"""Of red, green and blue: TensorFlow's `rgb_to_grayscale`, which LRA uses."""
DIGITS = "digits"
PARTS = ("train", "test")
"""Of CIFAR-10, as it is published."""

Labelled = tuple[NDArray[np.uint8], int]
"""An image `(32, 32)` and its class."""


@dataclass
class ImageSettings(data_sets.DataSettings):
    """What tasks of images share: 1,024 pixels, and what their value 0 is.

    Attributes:
        mask: `all` pixels are tokens; `nonzero`: black ones are taken for padding, as in Skeinformer's code.
    """

    classes: ClassVar[int]
    side = SIDE

    mask: str = setting("all", "pixels that are tokens", choices=("all", "nonzero"))

    @property
    def padding(self) -> int | None:
        """The token that is none."""
        return 0 if self.mask == "nonzero" else None

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse another length than that of an image."""
        super().require_fits(config)
        seq_len, pixels = config["seq_len"], self.side**2
        require_setting("seq_len", seq_len, seq_len == pixels, f"{pixels}, the pixels of task.name={self.name}")

    def task(self, source: str, vocabulary: int, rows: Mapping[str, kept.Array]) -> Task:
        """The task of images that are kept."""
        sizes = {split: len(rows[split]) for split in SPLITS}
        answers: dict[str, Any] = {"classes": self.classes, "padding": self.padding}
        return kept.KeptExamples(source, vocabulary, self.causal, sizes, rows, (SIDE**2,), **answers)


@dataclass
class Image(data_sets.HubSettings, ImageSettings):
    """Name the class of an image from its grey pixels, read row by row.

    Long Range Arena (Tay et al. 2021, section 2.2.4): CIFAR-10 in 256 levels of grey; the first 90 % of its training
    images train, the others are for validation. A stand-in is `digits`: the 1,797 handwritten digits of 8 x 8 pixels
    that scikit-learn ships, three times enlarged, at a random place of a black image (of 16 x 16 as they are); the
    original digits of the three splits differ (80 %, 10 %, 10 %), and every example is fresh.

    Attributes:
        data: `cifar10` on the hub, a folder of its files (columns `img` and `label`; `train` or `test` in their names),
            or `digits`.
        side: 32, of digits also 16: what a laptop trains on in minutes.
    """

    name: ClassVar[str] = "image"
    known: ClassVar[tuple[str, ...]] = ("cifar10", DIGITS)
    repository: ClassVar[str] = "uoft-cs/cifar10"
    columns: ClassVar[tuple[str, ...]] = ("img", "label")
    classes: ClassVar[int] = 10

    data: str = setting("cifar10", "cifar10, a folder of its files, or digits (a stand-in)")
    side: int = setting(SIDE, "pixels of a side: 32, of digits also 16", minimum=16, maximum=SIDE)

    def require_fits(self, config: Mapping[str, Any]) -> None:
        """Refuse also a side that the images do not have."""
        holds = self.side == SIDE or (self.side == 16 and self.data == DIGITS)
        require_setting("task.side", self.side, holds, f"{SIDE}, or 16 with task.data={DIGITS}")
        super().require_fits(config)

    def require_data(self, config: Mapping[str, Any], cache_dir: Path) -> None:
        """Refuse images that are neither kept nor to be had."""
        self.require_kept((with_pixels(self.identity(split)) for split in PARTS), cache_dir)

    def packages(self) -> tuple[str, ...]:
        """That which brings the digits."""
        return ("scikit-learn",) if self.data == DIGITS else ()

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Task:
        """Read the images, or find them in `cache_dir`; raises as `bench.tasks.open_task`."""
        if self.data == DIGITS:
            answers: dict[str, Any] = {"classes": self.classes, "padding": self.padding}
            source = "digits of scikit-learn, each class split alike (stand-in for CIFAR-10)"
            how = (dict.fromkeys(SPLITS), functools.partial(_digit, self.side), config["seed"])
            return Fresh(source, LEVELS, self.causal, *how, unit="digits", **answers)
        train, test = (rows(self.identity(s), self._grey(s), cache_dir) for s in PARTS)
        first = len(train) * 9 // 10
        return self.task(self.source, LEVELS, {"train": train[:first], "validation": train[first:], "test": test})

    def _grey(self, split: str) -> Iterator[Labelled]:
        """The images of a split of CIFAR-10."""
        pillow = package("PIL.Image", "task.name='image'", "-e '.[lra]'")
        for record in self.rows(split):
            image = record["img"]
            if isinstance(image, Mapping):  # the bytes of a file that does not say that its column holds images
                image = pillow.open(io.BytesIO(image["bytes"]))
            colours = np.asarray(image.convert("RGB")) / 255
            # TensorFlow's conversion from 0..1 to eight bits.
            grey = np.floor(colours @ np.array(LUMINANCE) * 255.5).astype(np.uint8)
            yield grey, data_sets.label(self.data, record["label"], self.classes)


def _digit(side: int, draws: Draws, split: str) -> Drawn:
    """One of the digits of a split, enlarged, somewhere on a black image."""
    digits, labels = _digits()[split]
    number = draws.integers(len(digits), 1)
    enlarged = 3 * side // SIDE
    row, column = draws.integers(side + 1 - enlarged * digits.shape[1], 2)
    large = np.kron(digits[number[0]], np.ones((enlarged, enlarged), np.int64)) * (LEVELS - 1) // 16
    image = np.zeros((side, side), np.int64)
    image[row : row + len(large), column : column + len(large)] = large
    return Drawn(image.reshape(-1), labels[number], int(number[0]))


@functools.cache
def _digits() -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """The digits of each split, `(count, 8, 8)` of 0..16, and their classes.

    Every tenth of a class is held out: the file repeats 0 to 9 in order, so every tenth of all would be of few classes.
    """
    found = package("sklearn.datasets", f"task.data={DIGITS}", "-e '.[lra]'").load_digits()
    images, labels = found.images.astype(np.int64), found.target.astype(np.int64)
    split = np.empty(len(labels), dtype=object)
    for label in np.unique(labels):
        of_label = np.flatnonzero(labels == label)
        split[of_label] = [HELD_OUT.get(number % 10, "train") for number in range(len(of_label))]
    return {name: (images[split == name], labels[split == name]) for name in SPLITS}


def with_pixels(key: Mapping[str, Any]) -> dict[str, Any]:
    """A key of images."""
    return {"pixels": SIDE**2, **key}


def rows(key: Mapping[str, Any], images: Iterable[Labelled], cache_dir: Path) -> kept.Array:
    """The images of a split as they are kept: pixels, then the class."""
    pieces = ItemProgress("images read").over(row(image, label) for image, label in images)
    return kept.array(with_pixels(key), pieces, np.dtype(np.uint8), cache_dir).reshape(-1, SIDE**2 + 1)


def row(image: NDArray[np.uint8], label: int) -> NDArray[np.uint8]:
    """An image as it is kept."""
    return np.append(image.reshape(-1), np.uint8(label))
