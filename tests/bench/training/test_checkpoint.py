"""Checkpoints: whole or not there, and gone on from where they hold and fit, whatever happens to disk and files."""

import errno
import functools
import os

import pytest
import torch
from loops import trained, trainer, weights

from bench.execution.results_folder import prepare_folder
from bench.training import checkpoint


def saved(folder, *steps, **model):
    for step in steps:
        checkpoint.save(folder, step, trained(trainer(**model), step).state())
    return folder / f"step-{steps[-1]:010d}.pt"


@functools.cache
def whole():
    return trained(trainer(), 6)


def resumed(folder):
    """Where a new run goes on, and the lines that it says; what it then learns is what a whole run learns."""
    lines, one = [], trainer()
    checkpoint.resume(folder, one, lines.append)
    step = one.step
    assert torch.equal(weights(trained(one, 6)), weights(whole())) and one.curve == whole().curve
    return step, lines


def edited(path):
    """Zeroed weights, and all else as it was."""
    with open(path, "r+b") as file:
        file.seek(checkpoint.DIGEST)
        state = torch.load(file, weights_only=True)
        state["model"]["out.bias"].zero_()
        file.seek(checkpoint.DIGEST)
        torch.save(state, file)


def unlinked(make):
    return lambda path: (path.unlink(), make(path))


def of_another_cell(path):
    path.unlink()
    saved(path.parents[1] / "another", 4).rename(path)


def without_a_digest(path):
    torch.save({"cell": path.parent.name, **trained(trainer(), 4).state()}, path)


CHANGED = "does not have the contents that it was written with"
IRREGULAR = "is no regular file, and stays as it is"
DAMAGES = {
    "empty": (lambda path: path.write_bytes(b""), CHANGED),
    "zeroed weights": (edited, CHANGED),
    "of an older version": (without_a_digest, CHANGED),
    "of another model": (lambda path: saved(path.parent, 4, width=4), "Error(s) in loading state_dict for Small:"),
    "of another cell": (of_another_cell, "is of another cell, another"),
    "a pipe": (unlinked(os.mkfifo), IRREGULAR),
    "a folder": (unlinked(os.mkdir), IRREGULAR),
    "a link": (lambda path: path.rename(path.with_name("good")) and path.symlink_to("good"), IRREGULAR),
}


def test_the_newest_is_gone_on_from_and_older_ones_go(tmp_path):
    folder = tmp_path / "deeper"
    assert resumed(folder) == (0, [])
    saved(folder, 1, 2, 4)
    assert resumed(folder) == (4, [])
    assert len(list(folder.iterdir())) == checkpoint.KEPT
    checkpoint.clear(folder)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_that_does_not_hold_or_fit_is_named_and_the_one_before_it_used(tmp_path, damage):
    make, why = DAMAGES[damage]
    path = saved(tmp_path / "cell", 2, 4)
    make(path)
    line = f"{path.name}: passed over, {why}"
    assert resumed(path.parent) == (2, [line])


def test_none_that_was_passed_over_costs_a_new_one(tmp_path):
    spoiled = [saved(tmp_path, step) for step in (4, 5)]
    for path in spoiled:
        path.write_bytes(b"")
    saved(tmp_path, 1, 2, 3)
    assert resumed(tmp_path) == (3, [f"{path.name}: passed over, {CHANGED}" for path in reversed(spoiled)])
    checkpoint.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_of_a_training_on_another_text_is_passed_over(tmp_path):
    """The hub may answer again, where `task.fallback` was read before."""
    folder, one, said = tmp_path / "cell", trainer(), []
    folder.mkdir()
    one.train_step()
    checkpoint.save(folder, one.step, one.state() | {"source": "another text"})
    two = trainer()
    checkpoint.resume(folder, two, said.append)
    assert two.step == 0 and "was trained on another text" in said[0]


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    class Malice:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    checkpoint.save(tmp_path, 9, {"step": 9, "model": Malice()})
    step, (line,) = resumed(tmp_path)
    assert step == 0 and line.startswith("step-0000000009.pt: passed over") and not (tmp_path / "ran").exists()


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    path = saved(tmp_path, 1)

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        saved(tmp_path, 2)
    assert list(tmp_path.iterdir()) == [path]
    assert resumed(tmp_path) == (1, [])


def test_a_sweep_removes_the_halves_that_killed_ones_left_and_nothing_else(tmp_path):
    prepare_folder(str(tmp_path))
    path = saved(tmp_path / "training" / ("0" * 16), 1)
    whole = (path.name, "model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")
    halves = [path.with_name(f".{name}.0a1b2c3d.tmp") for name in whole]
    names = ("model.safetensors", "step-x.pt", ".mine.tmp", ".step-1.pt.0a1b2c3d.tmp", ".notes.0a1b2c3d.tmp")
    others = [path.with_name(name) for name in names]
    for each in (*halves, *others):
        each.write_bytes(b"half")
    pipes = [path.with_name(name) for name in (f".{path.name}.ff.tmp", "step-0000000007.pt")]
    for pipe in pipes:
        os.mkfifo(pipe)
    prepare_folder(str(tmp_path))
    assert set(path.parent.iterdir()) == {path, *pipes, *others}
    halves[0].write_bytes(b"half")
    checkpoint.clear(path.parent)
    assert set(path.parent.iterdir()) == {*pipes, *others}


def test_a_sweep_removes_the_halves_of_lists_for_jobs(tmp_path):
    """In the folder of the sweep's jobs, and in no other."""
    kept = ("slurm/a.json", "slurm/a_0.out", "slurm/.a.tmp", "other/.a.json.0a1b2c3d.tmp")
    for name in (*kept, "slurm/.a.json.0a1b2c3d.tmp"):
        file = tmp_path / "sweeps" / ("0" * 16) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("[]")
    (tmp_path / ".attention-zoo").write_text("results of the attention zoo\n")
    prepare_folder(str(tmp_path))
    folder = tmp_path / "sweeps" / ("0" * 16)
    assert {str(file.relative_to(folder)) for file in folder.glob("*/*")} == {*kept}
