"""Pathfinder's images: two long contours of paddles, short ones that distract, and two marks (Linsley et al. 2018).

The rules are those of drewlinsley/pathfinder (`snakes.py`, `snakes2.py`) with the numbers of Long Range Arena
(`lra_benchmarks/data/pathfinder.py`, Pathfinder32), what they do by accident included: the last paddle of the first
contour does not keep others away, and the contours that distract are a third brighter than those that are asked about.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.common.errors import package
from bench.tasks.base import Draws

SIDE, PADDING = 32, 1
LENGTH, MARGIN = 2, 1
"""Of a paddle in pixels, and how far others keep from it; it is half a pixel thick."""
SEED_DISTANCE = 7
"""Between the first ends of the two contours."""
DISTRACTORS, RETRIES, PADDLE_RETRIES, FEWEST_FREE = 20, 4, 2, 0.01
"""Paddles of contours that distract; what is tried again; the share of free pixels below which no contour begins."""
CONTOUR, DISTRACTOR = 1.5, 2.0
"""Brightness of paddles; that of the marks is 1."""
FINER = 2
"""Stamps are drawn so many times larger, and reduced."""
REACH = LENGTH + 1 + MARGIN
"""Of a stamp to each side. Images have such an edge while they are drawn, which counts as occupied."""
FULL, FREE = 1.8, 0.3
BORDER = np.pad(np.zeros(2 * (SIDE - 2 * PADDING,)), REACH + PADDING, constant_values=1)
"""What is occupied at first."""

Image = NDArray[np.float64]
Place = tuple[int, int]
"""Row and column."""


class Stamp(NamedTuple):
    """A paddle from the middle of a window of `2 REACH + 1` pixels a side: its brightness, and what it occupies."""

    line: Image
    occupied: Image


class Paddle(NamedTuple):
    """A paddle of a contour.

    Attributes:
        pivot: the pixel around which it was placed; the next one's follows from it.
        angle: from the pivot to its end, in radians.
        stamp: what it draws and occupies.
        place: where the middle of the stamp is.
    """

    pivot: Place
    angle: float
    stamp: Stamp
    place: Place

    @property
    def window(self) -> tuple[slice, slice]:
        """Of the stamp, in an image with its edge."""
        row, column = self.place
        return slice(row, row + 2 * REACH + 1), slice(column, column + 2 * REACH + 1)


class Drawing(NamedTuple):
    """An image and what it was made of.

    Attributes:
        image: `(32, 32)` uint8.
        label: whether the two marks are on one contour.
        contours: the paddles of the two contours, and those of the ones that distract.
        marks: where they are.
    """

    image: NDArray[np.uint8]
    label: int
    contours: list[list[Paddle]]
    marks: tuple[Place, Place]


def draw(draws: Draws, contour_length: int, marker_radius: float) -> Drawing:
    """An image of two contours of so many paddles, each label as likely."""
    numbers = draws.uniform_stream()
    label = int(2 * next(numbers))
    while (made := _two_contours(numbers, contour_length)) is None:
        pass
    contours, occupied = made
    length = max(1, contour_length // 3)
    for _ in range(DISTRACTORS // length):
        for _ in range(1 + RETRIES):
            grown = _distractor(numbers, length, occupied)
            if grown is not None:
                distracting, occupied = grown
                contours += distracting
                break
    first = int(2 * next(numbers))
    second = first if label else 1 - first
    marks = contours[first][0].place, contours[second][-1].place
    return Drawing(_rendered(contours, marks, marker_radius), label, contours, marks)


def _rendered(contours: list[list[Paddle]], marks: tuple[Place, Place], radius: float) -> NDArray[np.uint8]:
    """The brightest of all that is drawn, from 0 to 255."""
    disc = _disc(radius)
    edge = max(REACH, len(disc) // 2)
    image = np.zeros((SIDE + 2 * edge, SIDE + 2 * edge))
    for number, contour in enumerate(contours):
        for paddle in contour:
            _draw_over(image, edge, paddle.place, paddle.stamp.line * (CONTOUR if number < 2 else DISTRACTOR))
    for mark in marks:
        _draw_over(image, edge, mark, disc)
    image = image[edge:-edge, edge:-edge]
    low, high = image.min(), image.max()
    return ((image - low) * (255 / (high - low)) + 0.5).astype(np.uint8)


def _draw_over(image: Image, edge: int, place: Place, stamp: Image) -> None:
    row, column = (coordinate + edge - len(stamp) // 2 for coordinate in place)
    window = image[row : row + len(stamp), column : column + len(stamp)]
    np.maximum(window, stamp, out=window)


def _two_contours(numbers: Iterator[float], length: int) -> tuple[list[list[Paddle]], Image] | None:
    """The two contours, and what is occupied then."""
    angle = _angle(numbers)
    first = _seed(numbers, angle, _central(_heading(angle)))
    second = None if first is None else _opposite(numbers, first)
    if first is None or second is None:
        return None
    return _grown(numbers, [first, second], length, BORDER)


def _distractor(numbers: Iterator[float], length: int, occupied: Image) -> tuple[list[list[Paddle]], Image] | None:
    """A contour that begins anywhere, and what is occupied with it."""
    inside = occupied[REACH:-REACH, REACH:-REACH]
    if (inside <= FREE).mean() < FEWEST_FREE:
        return None
    for _ in range(1 + PADDLE_RETRIES):
        angle = _angle(numbers)
        seed = _seed(numbers, angle, _free(inside > FREE, _heading(angle)))
        if seed is not None:
            return _grown(numbers, [seed], length, occupied)
    return None


def _grown(
    numbers: Iterator[float], seeds: list[Paddle], length: int, occupied: Image
) -> tuple[list[list[Paddle]], Image] | None:
    """Contours that grow in turns, and what is occupied then; none where one of them cannot go on."""
    occupied, contours = occupied.copy(), [[seed] for seed in seeds]
    for _ in range(length - 1):
        for contour in contours:
            following = _next(numbers, contour[-1], occupied)
            if following is None:
                return None
            _draw_over(occupied, REACH, contour[-1].place, contour[-1].stamp.occupied)
            contour.append(following)
    _draw_over(occupied, REACH, contours[-1][-1].place, contours[-1][-1].stamp.occupied)
    return contours, occupied


def _angle(numbers: Iterator[float]) -> float:
    """A whole number of degrees, in radians."""
    return math.radians(int(360 * next(numbers)) - 180)


def _seed(numbers: Iterator[float], angle: float, free: NDArray[np.int64]) -> Paddle | None:
    """The first paddle of a contour, its end at one of the free pixels."""
    if not len(free):
        return None
    row, column = free[int(len(free) * next(numbers))].tolist()
    return _first((row, column), angle)


def _first(place: Place, angle: float) -> Paddle | None:
    """A paddle from a pixel on; none where it leaves the image."""
    head = _moved(place, angle, LENGTH)
    pivot = _moved(head, angle + math.pi, LENGTH + MARGIN)
    if not all(0 <= coordinate < SIDE for coordinate in (*place, *head, *pivot)):
        return None
    return Paddle(pivot, angle, _stamp(_heading(angle)), place)


def _opposite(numbers: Iterator[float], first: Paddle) -> Paddle | None:
    """The first paddle of the second contour, at its distance from the first."""
    for _ in range(1 + PADDLE_RETRIES):
        angle, direction = _angle(numbers), _angle(numbers)
        row = round(first.place[0] + SEED_DISTANCE * math.sin(direction))
        column = round(first.place[1] + SEED_DISTANCE * math.cos(direction))
        if (paddle := _first((row, column), angle)) is not None:
            return paddle
    return None


def _next(numbers: Iterator[float], last: Paddle, occupied: Image) -> Paddle | None:
    """The paddle after another, the more likely the straighter; none where there is no room."""
    row, column = _moved(last.pivot, last.angle, LENGTH + 2 * MARGIN)
    offsets, angles = _circle()
    ends = offsets + np.array((row, column))
    inside = ((ends >= 0) & (ends < SIDE)).all(1)
    rows, columns = (ends + REACH)[inside].T
    # Of a pixel and of those beside it: the largest.
    near = np.maximum.reduce([occupied[rows + down, columns + right] for down, right in _BESIDE])
    turns = np.abs(angles[inside] - last.angle)
    turns = np.minimum(turns, 2 * math.pi - turns)
    weights = (1 - near) * np.cos(np.minimum(turns, math.pi / 2)) ** 2
    sums = weights.cumsum()
    if not len(sums) or sums[-1] < 1e-4:
        return None
    for _ in range(1 + PADDLE_RETRIES):
        chosen = int(np.searchsorted(sums, next(numbers) * sums[-1], side="right"))
        end, angle = ends[inside][chosen], float(angles[inside][chosen])
        stamp = _stamp(_heading(angle + math.pi if angle < 0 else angle - math.pi))
        paddle = Paddle((row, column), angle, stamp, (int(end[0]), int(end[1])))
        if (occupied[paddle.window] + stamp.occupied).max() < FULL:
            return paddle
    return None


_BESIDE = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


@functools.cache
def _circle() -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The pixels on a circle around a pivot, as offsets `(k, 2)`, and their angles."""
    radius = LENGTH + MARGIN
    around = np.arange(0, 2 * math.pi, 1 / radius)
    points = np.stack([np.sin(around), np.cos(around)], 1) * radius
    offsets = np.unique(np.floor(points).astype(np.int64), axis=0)
    return offsets, np.arctan2(offsets[:, 0], offsets[:, 1])


def _moved(place: Place, angle: float, distance: float) -> Place:
    row, column = place
    return math.ceil(row + distance * math.sin(angle)), math.ceil(column + distance * math.cos(angle))


def _heading(angle: float) -> Place:
    """Where the line of a stamp, drawn from its middle, ends: all that a stamp depends on."""
    return _moved((0, 0), angle, FINER * LENGTH)


@functools.cache
def _stamp(heading: Place) -> Stamp:
    """The paddle whose line, drawn larger, ends there."""
    drawing = package("PIL.ImageDraw", "task.name='pathfinder'", "-e '.[lra]'")
    center = FINER * REACH
    large = _pillow().new("L", (2 * center + 1, 2 * center + 1))
    drawing.Draw(large).line([(center, center), (center + heading[1], center + heading[0])], fill=255, width=1)
    line = np.asarray(large)
    reach, wide = FINER * MARGIN, np.zeros_like(line)
    rows, columns = np.ogrid[-reach : reach + 1, -reach : reach + 1]
    for down, right in np.argwhere(rows**2 + columns**2 <= reach**2) - reach:
        wide = np.maximum(wide, np.roll(line, (down, right), (0, 1)))
    return Stamp(_reduced(line), _reduced(wide))


@functools.cache
def _disc(radius: float) -> Image:
    """A mark in the middle of its window."""
    reach = math.ceil(radius) + 3
    large = np.zeros(2 * (FINER * (2 * reach + 1),), np.uint8)
    rows, columns = np.ogrid[: len(large), : len(large)]
    center = FINER * reach
    large[(rows - center) ** 2 + (columns - center) ** 2 <= (FINER * radius) ** 2] = 255
    return _reduced(large)


def _reduced(large: NDArray[np.uint8]) -> Image:
    """Half as large, 0 to 1."""
    size = 2 * (math.ceil(len(large) / FINER),)
    pillow = _pillow()
    return np.asarray(pillow.fromarray(large).resize(size, pillow.Resampling.LANCZOS)) / 255


def _pillow() -> Any:
    return package("PIL.Image", "task.name='pathfinder'", "-e '.[lra]'")


@functools.cache
def _central(heading: Place) -> NDArray[np.int64]:
    """Where a first contour may begin."""
    blocked = np.ones((SIDE, SIDE), bool)
    inner = slice(2 * SEED_DISTANCE, SIDE - 2 * SEED_DISTANCE)
    blocked[inner, inner] = False
    return _free(blocked, heading)


def _free(blocked: NDArray[np.bool_], heading: Place) -> NDArray[np.int64]:
    """The pixels `(k, 2)` from which a paddle touches nothing that is blocked, nor the edge."""
    edged = np.ones((SIDE + 2 * REACH, SIDE + 2 * REACH), bool)
    edged[REACH:-REACH, REACH:-REACH] = blocked
    free = np.ones((SIDE, SIDE), bool)
    for down, right in np.argwhere(_stamp(heading).occupied == 1).tolist():
        free &= ~edged[down : down + SIDE, right : right + SIDE]
    return np.argwhere(free)
