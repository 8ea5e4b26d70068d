"""Checkpoints: whole or not there, and gone on from where they hold and fit, whatever happens to disk and files."""

import errno
import io
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.execution.results_folder import prepare_folder
from bench.tasks import Batch
from bench.training import checkpoint
from bench.training.loop import Trainer
from bench.training.settings import Training

TOKENS = torch.arange(16)[:, None] % 5
TASK = SimpleNamespace(size=lambda split: 16, batch=lambda split, rows: Batch(TOKENS[rows], TOKENS[rows]))


class Model(nn.Sequential):
    def __init__(self, width=4):
        super().__init__(nn.Embedding(5, width), nn.Linear(width, 5))

    def forward(self, tokens, asked=None):
        logits = super().forward(tokens)
        return logits if asked is None else logits[asked]


def trainer(steps=0, **model):
    torch.manual_seed(0)
    one = Trainer(Model(**model), TASK, Training(steps=50), seed=1, batch_size=4, dtype=torch.float32)
    for _ in range(steps):
        one.train_step()
    return one


def saved(folder, *steps, **model):
    for step in steps:
        checkpoint.save(folder, step, trainer(step, **model).state())
    return folder / f"step-{steps[-1]:010d}.pt"


def resumed(folder):
    """Where a new run goes on, and the lines that it says; what it then learns is what a whole run learns."""
    lines, one, whole = [], trainer(), trainer(6)
    checkpoint.resume(folder, one, lines.append)
    step = one.step
    while one.step < whole.step:
        one.train_step()
    assert one.curve == whole.curve
    for got, wanted in zip(one.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(got, wanted)
    return step, lines


def edited(change):
    """What changes the state that a checkpoint holds, and leaves all else."""

    def make(path):
        head, data = path.read_bytes()[: checkpoint.DIGEST], path.read_bytes()[checkpoint.DIGEST :]
        state, changed = torch.load(io.BytesIO(data), weights_only=True), io.BytesIO()
        change(state)
        torch.save(state, changed)
        path.write_bytes(head + changed.getvalue())

    return make


def unlinked(make):
    return lambda path: (path.unlink(), make(path))


def of_another_model(path):
    saved(path.parent, 4, width=8)


def of_another_cell(path):
    path.unlink()
    saved(path.parents[1] / "another", 4).rename(path)


def without_a_digest(path):
    torch.save({"cell": path.parent.name, **trainer(4).state()}, path)


CHANGED = "does not have the contents that it was written with"
IRREGULAR = "is no regular file, and stays as it is"
DAMAGES = {
    "empty": (lambda path: path.write_bytes(b""), CHANGED),
    "garbage": (lambda path: path.write_bytes(b"PK" * 999), CHANGED),
    "cut": (lambda path: os.truncate(path, path.stat().st_size - 100), CHANGED),
    "zeroed weights": (edited(lambda state: [weight.zero_() for weight in state["model"].values()]), CHANGED),
    "another step": (edited(lambda state: state.update(step=10**6)), CHANGED),
    "of an older version": (without_a_digest, CHANGED),
    "of another model": (of_another_model, "Error(s) in loading state_dict for Model:"),
    "of another cell": (of_another_cell, "is of another cell, another"),
    "a pipe": (unlinked(os.mkfifo), IRREGULAR),
    "a folder": (unlinked(os.mkdir), IRREGULAR),
    "a link to a good one": (
        lambda path: path.rename(path.with_name("good")) and path.symlink_to("good"),
        IRREGULAR,
    ),
    "a link to nothing": (unlinked(lambda path: path.symlink_to("nothing")), IRREGULAR),
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
    (path.parent / "step-0000000002.pt").unlink()
    assert resumed(path.parent) == (0, [line])


def test_none_that_was_passed_over_costs_a_new_one(tmp_path):
    spoiled = [saved(tmp_path, step) for step in (4, 5)]
    for path in spoiled:
        path.write_bytes(b"")
    saved(tmp_path, 1, 2, 3)
    assert resumed(tmp_path) == (3, [f"{path.name}: passed over, {CHANGED}" for path in reversed(spoiled)])
    checkpoint.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []


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
    halves = [path.with_name(f".{name}.0a1b2c3d.tmp") for name in (path.name, "model.safetensors", "config.json")]
    others = [path.with_name(name) for name in (".mine.tmp", ".step-1.pt.0a1b2c3d.tmp", ".notes.0a1b2c3d.tmp")]
    for each in (*halves, *others):
        each.write_bytes(b"half")
    os.mkfifo(pipe := path.with_name(f".{path.name}.ff.tmp"))
    prepare_folder(str(tmp_path))
    assert set(path.parent.iterdir()) == {path, pipe, *others}
    halves[0].write_bytes(b"half")
    checkpoint.clear(path.parent)
    assert set(path.parent.iterdir()) == {pipe, *others}


def test_other_files_are_left_alone(tmp_path):
    others = [tmp_path / name for name in ("model.safetensors", "step-x.pt", ".mine.tmp")]
    for other in others:
        other.write_bytes(b"mine")
    os.mkfifo(pipe := tmp_path / "step-0000000007.pt")
    saved(tmp_path, 1, 2, 3)
    checkpoint.clear(tmp_path)
    assert set(tmp_path.iterdir()) == {*others, pipe}
