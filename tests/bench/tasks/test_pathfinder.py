"""Pathfinder: drawn images show what their label says, and the archive is read as it is published."""

import functools

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from scipy import ndimage

from bench.tasks import SPLITS, leaks, open_task, settings, snakes
from bench.tasks.base import Draws

PLUS, SQUARE = (ndimage.generate_binary_structure(2, connectivity) for connectivity in (1, 2))


def opened(tmp_path, **changes):
    task = {"name": "pathfinder", **changes}
    return open_task({"task": task, "seq_len": 1024, "causal": False, "seed": 0}, tmp_path / "cache")


def drawings(count, length=14):
    return [drawn(index, length) for index in range(count)]


@functools.cache
def drawn(index, length=14):
    return snakes.draw(Draws(0, "test", index), length, 1.5)


# --- what is drawn


def shown(contour):
    """The brightness of a contour alone, 1 where it is white."""
    image = np.zeros((40, 40))
    for paddle in contour:
        window = image[paddle.window]
        np.maximum(window, paddle.stamp.line, out=window)
    return image[4:-4, 4:-4]


def filled(drawing):
    """Whether a flood fill from one mark along its contour gets to the other, and whether this is unambiguous.

    The fill is of bright pixels of the image, without those of other contours; it goes over one dark pixel, the gap
    between paddles. It is ambiguous where the contour shares a pixel with another, or has a wider gap.
    """
    each = np.array([shown(contour) for contour in drawing.contours])
    first, second = drawing.marks
    own = int(each[1][first] > each[0][first])
    clear = not ((each[own] > 0.2) & (np.delete(each, own, 0) > 0.2).any(0)).any()
    bright = (each[own] > 0.15) & (drawing.image > 30)
    pieces, count = ndimage.label(ndimage.binary_dilation(bright, SQUARE), SQUARE)
    return bool(bright[second]) and pieces[first] == pieces[second], clear and count == 1


@pytest.mark.parametrize(
    ("count", "fewest", "most"), [(25, 0, 15), pytest.param(2000, 500, 1000, marks=pytest.mark.slow)]
)
def test_a_flood_fill_finds_the_label_where_the_drawing_is_unambiguous(count, fewest, most):
    found = [(*filled(drawing), drawing.label) for drawing in drawings(count)]
    assert not any(is_clear and reached != label for reached, is_clear, label in found)
    assert fewest < sum(not is_clear for _, is_clear, _ in found) < most


def test_marks_are_visible_and_at_the_ends_of_the_contours_they_are_on():
    for drawing in drawings(25):
        darkest = ndimage.grey_erosion(drawing.image, footprint=PLUS)
        assert min(darkest[mark] for mark in drawing.marks) > 127 and drawing.image.max() == 255
        ends = [(contour[0].place, contour[-1].place) for contour in drawing.contours[:2]]
        (one,) = [number for number, (start, _) in enumerate(ends) if start == drawing.marks[0]]
        assert drawing.marks[1] == ends[one if drawing.label else 1 - one][1]


def test_contours_have_their_paddles_keep_apart_and_turn_little():
    for drawing in drawings(20, length=9):
        assert [len(contour) for contour in drawing.contours[:2]] == [9, 9]
        assert all(len(contour) == 3 for contour in drawing.contours[2:]) and len(drawing.contours) <= 8
        for contour in drawing.contours:
            turns = np.diff([paddle.angle for paddle in contour])
            assert (np.cos(turns) > -1e-9).all()
    distances = [np.hypot(*np.subtract(*(c[0].place for c in d.contours[:2]))) for d in drawings(25)]
    assert max(abs(distance - 7) for distance in distances) < 1


def test_labels_are_balanced_and_tell_nothing_of_the_first_mark():
    drawings_of_four = drawings(150, length=4)
    assert 50 < sum(drawing.label for drawing in drawings_of_four) < 100
    assert 40 < sum(d.marks[0] == d.contours[0][0].place for d in drawings_of_four) < 110


def test_larger_marks_cover_more_and_the_same_index_is_the_same_image():
    for index, one in enumerate(drawings(3)):
        again, other = (snakes.draw(Draws(0, "test", index), 14, radius) for radius in (1.5, 3))
        assert one.marks == other.marks and (other.image >= 200).sum() > (one.image >= 200).sum()
        assert np.array_equal(one.image, again.image)


def test_drawn_images_are_kept_and_no_image_is_in_two_splits(tmp_path):
    task = opened(tmp_path, examples=80, contour_length=5)
    assert task.sizes == {"train": 80, "validation": 10, "test": 10} and (task.classes, task.vocabulary) == (2, 512)
    tokens, targets, _ = task.batch("test", [3, 1])
    drawing = snakes.draw(Draws(0, "test", 3), 5, 1.5)
    assert tokens[0].tolist() == drawing.image.reshape(-1).tolist() and targets[0].tolist() == [drawing.label]
    assert task.padding is None and set(leaks.twins(task).values()) == {0.0}
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    masked = opened(tmp_path, examples=80, contour_length=5, mask="nonzero").batch("test", [3])
    assert np.array_equal(masked.mask, masked.tokens != 0)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == made


# --- the archive


def archive(folder, count=60):
    """Images and text files of what they are, in the archive's form; the first image is empty, as one of its is."""
    for number in range(2):
        (folder / "imgs" / str(number)).mkdir(parents=True)
        lines = []
        for index in range(count):
            image = np.full((32, 32), (number * count + index) % 251, np.uint8)
            name = f"imgs/{number} sample_{index}.png"
            Image.fromarray(image).save(folder / name.replace(" ", "/"))
            lines.append(f"{name} {index} {index % 2} 1.0 14 4 2 0.5 1 1\n")
        (folder / "metadata").mkdir(exist_ok=True)
        (folder / "metadata" / f"{number}.npy").write_text("".join(lines))
    (folder / "imgs" / "0" / "sample_0.png").write_bytes(b"")
    return folder


def test_the_archive_is_read_and_each_image_is_in_one_split(tmp_path):
    folder = archive(tmp_path / "curv_contour_length_14")
    task = opened(tmp_path, data=str(folder))
    assert task.source == str(folder) and sum(task.sizes.values()) == 119
    assert task.size("train") > 80 and min(task.sizes.values()) > 3
    seen = []
    for split in SPLITS:
        tokens, targets, _ = task.batch(split, range(task.size(split)))
        assert (tokens == tokens[:, :1]).all()
        seen += tokens[:, 0].tolist()
        assert targets[:, 0].tolist() == [value % 2 for value in tokens[:, 0].tolist()]
    assert sorted(seen) == [*range(1, 120)]


def test_an_archive_with_another_image_is_another_one(tmp_path):
    """Of the same lists: such as one that was unpacked again after it was damaged. Other files do not count."""
    folder = archive(tmp_path / "archive")

    def read():
        identity = settings({"name": "pathfinder", "data": str(folder)}).own_files()
        rows = opened(tmp_path, data=str(folder)).rows
        return identity, {row.tobytes() for split in SPLITS for row in rows[split]}

    before, images = read()
    (folder / "notes").write_text("mine")
    assert read() == (before, images)
    Image.fromarray(np.full((32, 32), 255, np.uint8) - np.eye(32, dtype=np.uint8)).save(folder / "imgs/1/sample_7.png")
    after, others = read()
    assert after != before and len(images - others) == len(others - images) == 1


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        (lambda folder: folder.mkdir(), "task.data='{}': must be drawn, or a folder with metadata/*.npy and imgs"),
        (
            lambda folder: Image.new("RGB", (32, 32)).save(archive(folder, 4) / "imgs/1/sample_2.png"),
            "task.data: imgs/1/sample_2.png must have 32 x 32 pixels of 8-bit grey, it has (32, 32, 3)",
        ),
        (
            lambda folder: (archive(folder, 4) / "imgs/1/sample_2.png").unlink(),
            "task.data='{}': cannot be read: [Errno 2] No such file",
        ),
    ],
)
def test_what_is_no_archive_is_one_line(broken, line, tmp_path):
    folder = tmp_path / "archive"
    broken(folder)
    with refused(line.format(folder)):
        opened(tmp_path, data=str(folder))
