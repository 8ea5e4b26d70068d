"""Training as a user starts it: the same curve every time, in however many pieces or processes."""

import contextlib
import os
import random
import subprocess
import time

import psutil
import pytest
import torch
from command import bench, command, environment, python
from safetensors.torch import load_file

from bench.records.store import Store, latest

pytestmark = pytest.mark.commands
TINY = """bench=train task=reversal model=encoder seq_len=8 batch_size=16 tracking=none device=cpu training.warmup=5
    training.evaluate_every=10 training.evaluation_examples=32 training.test_examples=37"""


def settings(folder, *arguments):
    return [*TINY.split(), f"results_dir={folder}", *arguments]


def run(folder, *arguments):
    done = bench(*settings(folder, *arguments))
    return done, list(latest(Store(folder).load()).values())


def trained(folder, *arguments):
    done, records = run(folder, *arguments)
    assert done.returncode == 0, done.stderr
    (record,) = records
    return record


def weights(folder):
    (file,) = folder.glob("training/*/model.safetensors")
    return load_file(file)


def assert_equal(weights, others):
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["performer_redraw", "softmax_dropout"])
def test_a_run_killed_ten_times_ends_with_the_same_weights(tmp_path, attention):
    """Every other time the child that trains is killed, else all of the sweep's processes."""
    arguments = (f"attention={attention}", "training.steps=400", "training.checkpoint_seconds=0")
    whole = trained(tmp_path / "whole", *arguments).measurements
    chance, folder = random.Random(attention), tmp_path / "killed"
    for number in range(10):
        words = command(*settings(folder, *arguments))
        sweep = subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE, text=True)
        before = {path.name for path in folder.glob("training/*/step-*.pt")}
        deadline = time.monotonic() + 60
        while {path.name for path in folder.glob("training/*/step-*.pt")} <= before and sweep.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        family = psutil.Process(sweep.pid).children(recursive=True) if sweep.poll() is None else []
        victims = family if number % 2 else [*family, *([psutil.Process(sweep.pid)] if family else [])]
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        sweep.communicate(timeout=60)
    last = trained(folder, *arguments).measurements
    assert last["resumed_from"] > 0
    assert last["curve"] == whole["curve"] and last["test"] == whole["test"]
    assert [found["loss"] for found in last["validation"]] == [found["loss"] for found in whole["validation"]]
    assert_equal(weights(folder), weights(tmp_path / "whole"))
    assert not list(folder.glob("training/*/step-*"))


def test_a_time_limit_leaves_a_checkpoint_to_go_on_from(tmp_path):
    """The limit falls into the middle of the steps, as long as an uninterrupted run takes here."""
    arguments = ("attention=softmax", "training.steps=500", "training.checkpoint_seconds=0.2")
    for attempt in range(3):  # a busy machine is not twice as fast
        whole = trained(tmp_path / f"whole{attempt}", *arguments)
        limit = whole.duration_s - sum(whole.measurements["seconds"]) / 2
        done, (record,) = run(folder := tmp_path / f"limit{attempt}", *arguments, f"timeout={limit:.1f}")
        if kept := sorted(folder.glob("training/*/step-*.pt")):
            break
    assert done.returncode == 1 and record.status == "timeout" and not record.measurements
    newest = kept[-1]
    os.mkfifo(pipe := newest.with_name("step-9999999999.pt"))
    done, (record,) = run(folder, *arguments)
    assert done.returncode == 0 and record.measurements["resumed_from"] == int(newest.stem.removeprefix("step-"))
    assert record.measurements["test"] == whole.measurements["test"]
    assert done.stderr.count(f": {pipe.name}: passed over, is no regular file, and stays as it is\n") == 1
    assert list(newest.parent.glob("step-*")) == [pipe]


def test_two_processes_learn_what_one_does(tmp_path):
    arguments = ("attention=polynomial_p4", "training.steps=40", "training.accumulate=2", "model.layers=2")
    alone = trained(tmp_path / "alone", *arguments).measurements
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = python(*torchrun, "-m", "bench", *settings(tmp_path / "two", *arguments))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| ok ") == 1
    (record,) = latest(Store(tmp_path / "two").load()).values()
    together = record.measurements
    assert together["processes"] == 2 and alone["processes"] == 1
    assert [found["step"] for found in alone["validation"]] == [10, 20, 30, 40] and alone["test"]["examples"] == 37
    assert alone["test"].keys() - alone["validation"][0].keys() == {"loss_by_position", "loss_by_unit"}
    assert all(len(values) == 40 for values in (*alone["curve"].values(), alone["seconds"]))
    # Of the four digits that are kept the last one may differ.
    assert together["curve"]["train_loss"] == pytest.approx(alone["curve"]["train_loss"], rel=1.01e-3)
    assert together["test"]["loss"] == pytest.approx(alone["test"]["loss"], rel=1e-5)
    one, two = weights(tmp_path / "alone"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)


def test_what_several_processes_cannot_do_is_one_line(tmp_path):
    """What else they cannot do: test_training_steps.py."""
    several = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "29500"}
    done = bench(*settings(tmp_path, "attention=softmax", "batch_size=15"), timeout=100, **several)
    assert done.returncode == 2 and done.stderr.startswith("error: batch_size=15: must be divisible by"), done.stderr
    assert done.stderr.count("\n") == 1
