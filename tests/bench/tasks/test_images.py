"""Images: CIFAR-10's files of the published form, its grey levels and splits, and the digits that stand in."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from bench.inputs import models, texts
from bench.tasks import SPLITS, images, open_task

datasets_of_digits = pytest.importorskip("sklearn.datasets")


@pytest.fixture
def opened(tmp_path):
    def of(seed=0, **changes):
        config = {"task": {"name": "image", **changes}, "seq_len": 1024, "causal": False, "seed": seed}
        return open_task(config, tmp_path / "cache")

    return of


def picture(number):
    """Its first row tells which it is, in red, green and blue; then come a black and a white one."""
    pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
    pixels[0] = (number, 2 * number, 255 - number)
    pixels[1:3] = [[[0]], [[255]]]
    return Image.fromarray(pixels)


def grey(number):
    """As TensorFlow: a weighted sum of colours from 0 to 1, and back to eight bits by cutting off x * 255.5."""
    colours = np.asarray(picture(number)).astype(float) / 255
    weighted = 0.2989 * colours[..., 0] + 0.5870 * colours[..., 1] + 0.1140 * colours[..., 2]
    return np.floor(weighted * 255.5).astype(int).reshape(-1).tolist()


def check(task):
    assert task.sizes == {"train": 18, "validation": 2, "test": 3}
    assert (task.classes, task.vocabulary, task.padding) == (10, 256, None)
    for split, first in (("train", 0), ("validation", 18), ("test", 100)):
        tokens, targets, _ = batch = task.batch(split, range(task.size(split)))
        numbers = range(first, first + task.size(split))
        assert tokens.tolist() == [grey(number) for number in numbers]
        assert targets[:, 0].tolist() == [number % 10 for number in numbers] and batch.mask is None


def test_images_of_the_hub_are_grey_and_the_last_tenth_validates(opened, monkeypatch):
    def records(path, config, revision, split, key, columns):
        assert (path, columns) == ("uoft-cs/cifar10", ("img", "label"))
        numbers = range(20) if split == "train" else range(100, 103)
        return ({"img": picture(number), "label": number % 10} for number in numbers)

    monkeypatch.setattr(models, "hub_answers", lambda: True)
    monkeypatch.setattr(texts, "records", records)
    check(opened())
    masked = opened(mask="nonzero").batch("train", [0])
    assert torch.equal(masked.mask, masked.tokens != 0) and not masked.mask.all()


def test_images_are_read_from_a_folder_of_files(opened, tmp_path):
    pytest.importorskip("datasets")
    pandas = pytest.importorskip("pandas")
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for split, numbers in (("train", range(20)), ("test", range(100, 103))):
        rows = []
        for number in numbers:
            picture(number).save(file := io.BytesIO(), "png")
            rows.append({"img": {"bytes": file.getvalue(), "path": None}, "label": number % 10})
        pandas.DataFrame(rows).to_parquet(folder / f"{split}-00000-of-00001.parquet")
    check(opened(data=str(folder)))


def test_every_split_of_the_digits_has_every_class_alike_often():
    """The file repeats 0 to 9 in order: every tenth digit would be of few classes, and one guess worth much."""
    for digits, labels in images._digits().values():
        shares = np.bincount(labels, minlength=10) / len(digits)
        assert 0.09 < shares.min() <= shares.max() < 0.11


def test_digits_are_enlarged_to_a_random_place_and_an_original_is_in_one_split(opened):
    task = opened(data="digits")
    assert task.sizes == dict.fromkeys(SPLITS) and (task.classes, task.vocabulary) == (10, 256)
    assert "stand-in" in task.source
    originals = datasets_of_digits.load_digits()
    number_of = {image.astype(np.uint8).tobytes(): number for number, image in enumerate(originals.images)}
    assert len(number_of) == 1797
    assert [len(images._digits()[split][1]) for split in SPLITS] == [1444, 177, 176]
    # Of 300 images on 81 places two places are left out on average.
    seen, places = {}, set()
    for split in SPLITS:
        tokens, targets, _ = task.batch(split, range(100))
        units = task.units(split, range(100))
        numbers = []
        for image, label in zip(tokens.reshape(-1, 32, 32).numpy(), targets[:, 0].tolist(), strict=True):
            small, place = found(image, number_of)
            places.add(place)
            numbers.append(number_of[small])
            assert originals.target[numbers[-1]] == label
        assert len(set(zip(units, numbers, strict=True))) == len(set(units)) == len(set(numbers))
        seen[split] = set(numbers)
    assert not seen["train"] & seen["test"] and not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"] and len(places) > 75
    assert not torch.equal(opened(1, data="digits").batch("test", [0]).tokens, task.batch("test", [0]).tokens)


def found(image, number_of):
    """The digit that an image shows, and where."""
    for row, column in itertools.product(range(9), repeat=2):
        part = image[row : row + 24, column : column + 24]
        if part.sum() == image.sum():
            small = part[::3, ::3]
            # From 0..16 to 0..255 and back.
            digit = np.ceil(small * 16 / 255).astype(np.uint8).tobytes()
            if digit in number_of and np.array_equal(part, small.repeat(3, 0).repeat(3, 1)):
                return digit, (row, column)
    raise AssertionError("no digit is shown")
