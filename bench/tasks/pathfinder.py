"""Pathfinder of Long Range Arena: whether two marks are on one contour of dashes."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import ConfigError, one_line, package
from bench.common.schema import require_setting, setting
from bench.tasks import data_sets, images, kept, snakes
from bench.tasks.base import SPLITS, Draws, Task
from bench.tasks.progress import ItemProgress

SHARES = {"train": (0.0, 0.8), "validation": (0.8, 0.9), "test": (0.9, 1.0)}
"""Of the archive's images, in the order of a hash of their path."""
PER_MINUTE = 5000
"""Images with contours of 14 paddles that a core draws, about; every three paddles more double the time."""
PART = 2000
"""Images, of which an interruption costs fewer."""
FORMAT = 1
"""Of what is drawn: raise it when the same settings come to give other images."""


@dataclass
class Pathfinder(images.ImageSettings):
    """Say whether two marks are on one contour: 1 where they are.

    Linsley et al. 2018; Long Range Arena (Tay et al. 2021, section 2.2.5), its harder images of contours of 14 paddles,
    32 x 32 pixels of 256 levels of grey, read row by row. Skeinformer has 512 ids, of which 256 occur. Of the archive
    80 % of the images train, 10 % are for validation and 10 % for test; LRA does not say which, here a hash of their
    path does. Where no folder is given images are drawn by the published rules (`bench.tasks.snakes`): so many for
    training and an eighth of that for validation and for test, the same for every seed, once for all.

    Attributes:
        data: `drawn`, or the archive's folder (`curv_contour_length_14`) with its folders `imgs` and `metadata`.
        contour_length: with less than the archive's 14 the labels are easier to learn.
        marker_radius: larger marks are easier to find.
    """

    name: ClassVar[str] = "pathfinder"
    classes: ClassVar[int] = 2
    known: ClassVar[tuple[str, ...]] = ("drawn",)

    data: str = setting("drawn", "drawn, or the archive's folder of images and metadata")
    examples: int = setting(160_000, "images to train on that are drawn", minimum=8)
    contour_length: int = setting(14, "paddles of a contour that is drawn", minimum=3, maximum=18)
    marker_radius: float = setting(1.5, "of the marks that are drawn, in pixels", minimum=1, maximum=5)

    def open(self, config: Mapping[str, Any], cache_dir: Path) -> Task:
        """Read or draw the images, or find them in `cache_dir`; raises as `bench.tasks.open_task`."""
        drawn = self.data == "drawn"
        try:
            rows = self._drawn(cache_dir) if drawn else self._read(cache_dir)
        except OSError as error:
            raise ConfigError(one_line(error)) from error
        source = f"drawn (stand-in for the archive: contours of {self.contour_length})" if drawn else self.data
        return self.task(source, 512, rows)

    def own_files(self) -> dict[str, Any]:
        """One hash of the archive's lists and of the images in them; refuses a folder that is no archive's."""
        if self.data == "drawn":
            return {}
        folder = Path(self.data)
        listed = _lists(folder)
        require_setting("task.data", self.data, bool(listed), "drawn, or a folder with metadata/*.npy and imgs")
        try:
            return {"files": data_sets.digest(self.data, [*listed, *(folder / image for image, _ in _images(folder))])}
        except (OSError, ValueError) as error:
            raise ConfigError(f"task.data={self.data!r}: cannot be read: {one_line(error)}") from error

    def to_make(self, config: Mapping[str, Any], cache_dir: Path) -> str | None:
        """The images that are not drawn yet."""
        count = sum(self._parts(split).missing(cache_dir) for split in SPLITS) if self.data == "drawn" else 0
        minutes = round(count / PER_MINUTE * 2 ** ((self.contour_length - 14) / 3))
        return f"{count:,} images of task.name={self.name} to draw, about {minutes} min" if minutes else None

    def _drawn(self, cache_dir: Path) -> dict[str, kept.Array]:
        parts = {split: self._parts(split) for split in SPLITS}
        drawn = ItemProgress("images drawn", sum(each.missing(cache_dir) for each in parts.values()))
        return {split: each.array(cache_dir, drawn).reshape(-1, images.SIDE**2 + 1) for split, each in parts.items()}

    def _parts(self, split: str) -> kept.Parts:
        count = self.examples if split == "train" else self.examples // 8
        settings = {"contour_length": self.contour_length, "marker_radius": self.marker_radius}
        key = images.with_pixels({"pathfinder": FORMAT, **settings, "split": split, "count": count})
        return kept.Parts(key, count, functools.partial(self._draw, split), np.dtype(np.uint8), PART)

    def _draw(self, split: str, index: int) -> NDArray[np.uint8]:
        drawing = snakes.draw(Draws(0, split, index), self.contour_length, self.marker_radius)
        return images.row(drawing.image, drawing.label)

    def _read(self, cache_dir: Path) -> dict[str, kept.Array]:
        folder, archive = Path(self.data), self.own_files()
        read = {split: _archived(folder, share) for split, share in SHARES.items()}
        return {split: images.rows({"archive": archive, "split": split}, read[split], cache_dir) for split in SPLITS}


def _lists(folder: Path) -> list[Path]:
    return sorted(folder.glob("metadata/*.npy"))


def _images(folder: Path) -> Iterator[tuple[str, int]]:
    """The images that the archive lists, by their paths in it, and their classes."""
    for path in _lists(folder):
        for line in path.read_text().splitlines():
            place, name, _, label, *_ = line.split(" ")
            yield f"{place}/{name}", int(label)


def _archived(folder: Path, share: tuple[float, float]) -> Iterator[images.Labelled]:
    """The images of a share of the archive. Empty files, of which it has one, are left out."""
    pillow = package("PIL.Image", "task.name='pathfinder'", "-e '.[lra]'")
    for image, label in _images(folder):
        number = int.from_bytes(hashlib.sha256(image.encode()).digest()[:8]) / 2**64
        if share[0] <= number < share[1] and (folder / image).stat().st_size:
            with pillow.open(folder / image) as opened:
                yield _grey(opened, image), label


def _grey(opened: Any, name: str) -> NDArray[np.uint8]:
    pixels = np.asarray(opened)
    if pixels.shape != (images.SIDE, images.SIDE) or pixels.dtype != np.uint8:
        raise ValueError(f"task.data: {name} must have 32 x 32 pixels of 8-bit grey, it has {pixels.shape}")
    return pixels
