"""What a training step takes, against steps whose time and memory are known, and against the loop that trains."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from command import ROOT, environment

from bench import measures
from bench.common.errors import ConfigError
from bench.execution.ranks import require_joint
from bench.measures import largest_batch, search, step, train
from bench.measures.step import PARTS, Part
from bench.measures.workbench import Workbench
from bench.records.outcomes import classify
from bench.training.settings import Training

LENGTH, BATCH = 24, 6


def config(bench, label="flash", attention=None, **changes):
    training = {"warmup": 0, "learning_rate": 1e-2, **changes.pop("training", {})}
    return {
        "label": label,
        "attention": attention or {"name": "flash"},
        "bench": bench,
        "seq_len": LENGTH,
        "batch_size": BATCH,
        "num_heads": 2,
        "head_dim": 8,
        "dtype": "float32",
        "causal": True,
        "device": "cpu",
        "impl": "auto",
        "seed": 3,
        "repeats": 4,
        "model": {"name": "transformer", "layers": 2, "dropout": 0.0, "activation_checkpointing": False},
        "task": {"name": "induction_heads", "alphabet": 16, "examples": 8},
        "training": training,
        **changes,
    }


def settings(name, **own):
    return {"min_sample_ms": 0.0, **own, "name": name} if name != "largest_batch" else {**own, "name": name}


def measure(config, tmp_path, memory_limit=None):
    bench = config["bench"]
    own = {key: value for key, value in bench.items() if key not in ("name", "against")}
    return measures.get(bench["name"])(**own).measure(Workbench(config, tmp_path, memory_limit))


def told(name, measured):
    return list(measures.get(name).quantities(measured))


def made(tmp_path, **changes):
    return train.make_trainer(Workbench(config({"name": "train"}, **changes), tmp_path))


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def gradients(trainer):
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_step_is_that_of_the_loop(tmp_path, pieces):
    """Of BATCH = 6 examples of the 8 that there are, and then of more than there are."""
    by_loop, by_part = (made(tmp_path, training={"accumulate": pieces}) for _ in range(2))
    before = weights(by_part)
    one = Part("step", by_part)
    by_loop.train_step()
    one.run(one.prepare())
    assert not torch.equal(before, weights(by_part))
    torch.testing.assert_close(weights(by_part), weights(by_loop), rtol=0, atol=1e-5)
    assert len(one.pieces) == pieces and len(Part("step", by_part, 12).pieces[0][0]) == 12 // pieces


def test_parts_do_what_their_names_say(tmp_path):
    trainer = made(tmp_path, training={"clip": None, "accumulate": 2})
    parts = {name: Part(name, trainer) for name in PARTS}
    before = weights(trainer)
    trainer.model.eval()
    parts["forward"].run(parts["forward"].prepare())
    assert trainer.model.training and all(p.grad is None for p in trainer.model.parameters())
    for _ in range(2):  # gradients of the call before do not count
        parts["backward"].run(parts["backward"].prepare())
    once = gradients(trainer)
    trainer.optimizer.zero_grad()
    trainer.loss(*parts["backward"].pieces[0]).backward()
    torch.testing.assert_close(once, gradients(trainer))
    assert torch.equal(before, weights(trainer))
    trainer.optimizer.zero_grad(set_to_none=True)
    prepared = parts["optimizer"].prepare()
    assert torch.equal(before, weights(trainer))
    whole = gradients(trainer)
    parts["optimizer"].run(prepared)
    assert not torch.equal(before, weights(trainer)) and torch.equal(whole, gradients(trainer))


def test_the_numbers_of_a_step_agree(tmp_path):
    measured = measure(config(settings("train_step"), training={"accumulate": 3}), tmp_path)
    number = {one.metric: one for one in told("train_step", measured)}
    assert list(measured["parts"]) == ["forward", "backward", "optimizer", "step"]
    assert number["tokens_per_second"].value == pytest.approx(LENGTH * BATCH * number["steps_per_second"].value)
    assert number["steps_per_second"].value == pytest.approx(1e9 / number["step_time"].value)
    assert number["steps_per_second"].low <= number["steps_per_second"].value <= number["steps_per_second"].high
    for part, pieces in (("forward", 3), ("backward", 3), ("optimizer", 1), ("step", 1)):
        samples = measured["parts"][part]["samples"]
        assert len(samples) == 4
        assert number[f"{part}_time"].raw.tolist() == pytest.approx([pieces * sample for sample in samples])
    text = measures.get("train_step").headline(list(number.values()))
    assert number["tokens_per_second"].text in text and number["peak_memory"].text in text


def test_the_memory_of_a_step_is_at_least_that_of_its_gradients(tmp_path):
    whole = measure(config(settings("train_step")), tmp_path)
    weights = 4 * whole["parameters"]
    tensors = len(list(made(tmp_path).model.parameters()))
    assert whole["optimizer_bytes"] == 2 * weights + 4 * tensors  # two moments, and each tensor's count of steps
    assert weights < whole["model_bytes"] < 2 * weights
    assert weights < whole["peak_bytes"] == told("train_step", whole)[-1].value
    again, halves = (measure(config(settings("train_step"), training=t), tmp_path) for t in ({}, {"accumulate": 2}))
    assert again["peak_bytes"] == whole["peak_bytes"] > halves["peak_bytes"]


class Sleeper:
    """A trainer whose parts last as long as they are told."""

    def __init__(self, forward_s, backward_s, update_s, order=None):
        self.seconds, self.order = (forward_s, backward_s, update_s), order
        self.seed, self.batch_size, self.device = 0, 2, torch.device("cpu")
        self.settings, self.model = Training(), torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters())
        pair = torch.zeros(2, 3), torch.zeros(2, 3)
        self.task = SimpleNamespace(size=lambda split: None, batch=lambda split, indices: pair)

    def loss(self, tokens, targets):
        time.sleep(self.seconds[0])
        out = self.model(torch.ones(1)).sum()
        out.register_hook(lambda gradient: time.sleep(self.seconds[1]))
        return out

    def update(self, loss):
        time.sleep(self.seconds[2])
        if self.order is not None:
            self.order.append(self.seconds[2])


def test_parts_of_known_sleeps(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "make_trainer", lambda workbench: Sleeper(0.05, 0.03, 0.025))
    measured = measure(config(settings("train_step")), tmp_path)
    for part, seconds in (("forward", 0.05), ("backward", 0.03), ("optimizer", 0.025), ("step", 0.105)):
        samples = measured["parts"][part]["samples"]
        # A sleep never ends early; how late it ends is up to the machine's load: less than another part would add.
        assert seconds * 1e9 <= min(samples) < (seconds + 0.02) * 1e9, part


def compared(labels, tmp_path, repeats, **changes):
    against = [{"label": label, "attention": {"name": "flash"}, **changes} for label in labels[1:]]
    cell = config(settings("compare_train_step", against=against), labels[0], repeats=repeats)
    return measure(cell, tmp_path)


def test_a_comparison_finds_the_ratio_of_known_sleeps_and_alternates(tmp_path, monkeypatch):
    order = []
    seconds = {"slow": 0.06, "quick": 0.02}
    monkeypatch.setattr(train, "make_trainer", lambda bench: Sleeper(0, 0, seconds[bench.config["label"]], order))
    measured = compared(("slow", "quick"), tmp_path, 6)
    assert order[-12:] == [0.06, 0.02, 0.02, 0.06] * 3
    numbers = told("compare_train_step", measured)
    (speedup,) = (one for one in numbers if one.metric == "speedup")
    assert (speedup.attention, speedup.baseline) == ("quick", "slow") and speedup.value == pytest.approx(3, rel=0.4)
    times = {one.attention: one.value for one in numbers if one.metric == "step_time"}
    assert times["slow"] / times["quick"] == pytest.approx(3, rel=0.4)
    rates = {one.attention: one.value for one in numbers if one.metric == "steps_per_second"}
    assert rates == pytest.approx({label: 1e9 / value for label, value in times.items()})
    assert measures.get("compare_train_step").headline(numbers).startswith("quick ")


def test_every_entry_of_a_comparison_trains_its_own_model(tmp_path, monkeypatch):
    seen = {}

    def noted(workbench, make=train.make_trainer):
        seen[workbench.config["label"]] = trainer = make(workbench)
        return trainer

    monkeypatch.setattr(train, "make_trainer", noted)
    other = {"attention": {"name": "performer"}, "dtype": "bfloat16"}
    measured = compared(("flash", "performer"), tmp_path, 2, **other)
    assert measured["labels"] == ["flash", "performer"] and list(measured["samples"]) == measured["labels"]
    names = {label: trainer.model.blocks[0].multihead.attention.info.name for label, trainer in seen.items()}
    assert names == {"flash": "flash", "performer": "performer"}
    assert [trainer.dtype for trainer in seen.values()] == [torch.float32, torch.bfloat16]


def bound(tmp_path, limit, wanted=BATCH, **changes):
    """With a limit in MiB."""
    bench = settings("largest_batch", memory_limit=limit / 1024, largest_limit=64)
    return measure(config(bench, batch_size=wanted, **changes), tmp_path)


@pytest.mark.slow
def test_the_largest_batch_is_the_last_below_the_limit(tmp_path):
    largest = []
    for limit in (1, 2):
        measured = bound(tmp_path, limit)
        tried = {int(size): peak for size, peak in measured["tried"].items()}
        peaks = list(tried.values())
        assert peaks == sorted(peaks) and list(tried) == sorted(tried)
        assert tried[measured["largest"]] <= limit * 2**20 < tried[measured["largest"] + 1]
        assert measured["limit_bytes"] == limit * 2**20
        largest.append(measured["largest"])
    assert 1 <= largest[0] < largest[1]


def test_what_a_batch_holds_is_the_model_the_state_and_the_step(tmp_path):
    of_step = measure(config(settings("train_step")), tmp_path)
    held = sum(of_step[key] for key in ("model_bytes", "optimizer_bytes", "peak_bytes"))
    trainer = made(tmp_path)
    first = Part("step", trainer)
    first.run(first.prepare())
    assert largest_batch.step_bytes(trainer, BATCH) == held


def test_gradients_that_were_there_before_do_not_hide_those_of_a_step(tmp_path):
    part = Part("step", made(tmp_path))
    part.run(part.prepare())  # after which the optimiser has its state
    part.trainer.optimizer.zero_grad(set_to_none=True)
    without = part.peak_bytes()
    part.run(part.prepare())
    assert part.peak_bytes() == without


def test_what_is_not_about_memory_is_raised():
    with pytest.raises(ZeroDivisionError):
        search.runs(torch.device("cpu"), lambda: 1 / 0)


@pytest.mark.parametrize(
    ("wanted", "pieces"),
    [(6, 1), pytest.param(128, 1, marks=pytest.mark.slow), pytest.param(96, 2, marks=pytest.mark.slow)],
)
def test_the_cells_own_batch_in_the_fewest_equal_pieces(tmp_path, wanted, pieces):
    measured = bound(tmp_path, 1, wanted, training={"accumulate": pieces})
    piece = measured["largest"] // pieces
    assert measured["largest"] % pieces == 0 and measured["tried"].keys() >= {str(measured["largest"])}
    fitting = [n for n in range(1, wanted + 1) if wanted % n == 0 and wanted / n <= piece]
    assert measured["accumulation"] == fitting[0]
    number = {one.metric: one.value for one in told("largest_batch", measured)}
    assert number == {"largest_batch": measured["largest"], "accumulation": fitting[0], "limit": 2**20}


def test_memory_that_runs_out_is_an_answer_and_the_limit_of_the_search_is_kept(tmp_path, monkeypatch):
    whole = step.Part.peak_bytes

    def peak(self):
        if len(self.pieces[0][0]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(self)

    monkeypatch.setattr(step.Part, "peak_bytes", peak)
    unbound = config(settings("largest_batch"))
    measured = measure(unbound, tmp_path)
    assert measured["largest"] == 5 and measured["limit_bytes"] is None
    assert measured["tried"]["6"] is None is measured["tried"]["8"] and measured["tried"]["5"] > 0
    assert measure(config(settings("largest_batch", largest_limit=3)), tmp_path)["largest"] == 3
    limit = measured["tried"]["4"]
    assert measure(unbound, tmp_path, memory_limit=limit)["largest"] == 4


def test_not_even_one_sequence_is_out_of_memory(tmp_path):
    with pytest.raises(MemoryError, match=r"a step of 1 sequences takes \d+ bytes, the limit is 10485") as error:
        bound(tmp_path, 0.01)
    assert classify(error.value)[0] == "oom"


def test_on_a_cpu_the_process_may_take_more_than_the_batch(tmp_path):
    code = """
from bench.execution.child import limit_memory
limit = lambda name: limit_memory({"device": "cpu", "bench": {"name": name, "memory_limit": 0.001}})
print(limit("largest_batch") > 2**26, limit("train_step") == int(0.001 * 2**30))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment())
    assert done.stdout == "True True\n", done.stderr


@pytest.mark.parametrize("name", ["train_step", "compare_train_step", "largest_batch"])
def test_several_processes_are_refused(monkeypatch, name):
    """They would not call equally often."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")
    cell = SimpleNamespace(config=config({"name": name}, training={"accumulate": 1}))
    with pytest.raises(ConfigError, match=f"WORLD_SIZE=2: must be 1 for bench={name}"):
        require_joint([cell], "cells")
    cell.config["bench"] = {"name": "train"}
    require_joint([cell], "cells")
    with pytest.raises(ConfigError, match="WORLD_SIZE=2: must be 1 for hydra/launcher=slurm"):
        require_joint([cell], "slurm")


@pytest.mark.gpu
def test_the_peak_of_a_step_on_a_gpu_holds_its_gradients(tmp_path):
    first, second = (measure(config(settings("train_step"), device="cuda"), tmp_path) for _ in range(2))
    assert first["peak_bytes"] == second["peak_bytes"] > 4 * first["parameters"]
