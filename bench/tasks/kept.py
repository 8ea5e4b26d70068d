"""Arrays on the disk, made once, in parts where that takes long, and mapped into memory; examples that lie there."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bench.records.disk import is_file, replacing, require_file
from bench.tasks.base import Example, Task
from bench.tasks.progress import ItemProgress

FORMAT = 1
"""Part of every key: raise it when the same fields come to mean another array."""

Array = NDArray[np.unsignedinteger[Any]]


@dataclass
class KeptExamples(Task):
    """Examples with classes that lie on the disk: each row of a split has the tokens and, at the end, the class.

    Attributes:
        rows: of each split, `(size, tokens of an example + 1)`.
        shape: of the tokens of an example.
    """

    rows: Mapping[str, Array]
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        for split, rows in self.rows.items():
            if not len(rows):
                raise ValueError(f"{self.source}: has no example for {split}")

    def example(self, split: str, index: int) -> Example:
        """A row."""
        row = self.rows[split][index].astype(np.int64)
        return row[:-1].reshape(self.shape), row[-1:]


@dataclass(frozen=True)
class Parts:
    """An array of pieces that are costly: it is made in parts, of which an interruption costs the last one only.

    Attributes:
        key: of the array.
        count: of pieces.
        piece: makes one, by its number.
        dtype: of the pieces.
        size: pieces of a part.
    """

    key: Mapping[str, Any]
    count: int
    piece: Callable[[int], NDArray[Any]]
    dtype: np.dtype[Any]
    size: int

    def missing(self, cache_dir: Path) -> int:
        """How many pieces are still to be made."""
        if has(self.key, cache_dir):
            return 0
        return sum(len(numbers) for key, numbers in self._parts() if not has(key, cache_dir))

    def array(self, cache_dir: Path, progress: ItemProgress) -> Array:
        """As the function `array`; `progress` counts the pieces that are made."""
        parts = self._parts()
        made = (array(key, progress.over(map(self.piece, numbers)), self.dtype, cache_dir) for key, numbers in parts)
        whole = array(self.key, made, self.dtype, cache_dir)
        for key, _ in parts:
            _path(key, "npy", cache_dir).unlink(missing_ok=True)
        return whole

    def _parts(self) -> list[tuple[dict[str, Any], range]]:
        numbers = range(self.count)
        starts = range(0, self.count, self.size)
        return [({**self.key, "from": start}, numbers[start : start + self.size]) for start in starts]


def array(key: Mapping[str, Any], pieces: Iterable[NDArray[Any]], dtype: np.dtype[Any], cache_dir: Path) -> Array:
    """The pieces one after the other, read-only; they are asked for where the file of this key is not there yet."""
    path = place(key, "npy", cache_dir)
    # A file that cannot be read, cut short on its way here perhaps, is made again.
    with contextlib.suppress(FileNotFoundError, ValueError, EOFError):
        return _mapped(path, dtype)
    count = 0
    with replacing(path) as file:
        _write_header(file, dtype, 0)
        for piece in pieces:
            file.write(np.asarray(piece, dtype).tobytes())
            count += len(piece)
        file.seek(0)
        _write_header(file, dtype, count)
    return _mapped(path, dtype)


def place(key: Mapping[str, Any], suffix: str, cache_dir: Path) -> Path:
    """The file of a key; raises OSError where something else than a file is."""
    path = _path(key, suffix, cache_dir)
    require_file(path)
    return path


def has(key: Mapping[str, Any], cache_dir: Path) -> bool:
    """Whether the array of a key was made."""
    return is_file(_path(key, "npy", cache_dir))


def _path(key: Mapping[str, Any], suffix: str, cache_dir: Path) -> Path:
    content = json.dumps({"format": FORMAT, **key}, sort_keys=True)
    return cache_dir / f"{hashlib.sha256(content.encode()).hexdigest()}.{suffix}"


def _mapped(path: Path, dtype: np.dtype[Any]) -> Array:
    tokens = np.load(path, mmap_mode="r")
    if tokens.dtype != dtype or tokens.ndim != 1 or tokens.nbytes + tokens.offset != path.stat().st_size:
        raise ValueError(f"{path}: not what was written there")
    return tokens


def _write_header(file: BinaryIO, dtype: np.dtype[Any], count: int) -> None:
    """Of a length that does not depend on the count: NumPy leaves room for it to grow."""
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, described)
