"""What a training step takes, against steps whose time and memory are known, and against the loop that trains."""

from types import SimpleNamespace

import cells
import pytest
import torch
from cells import said
from fake_gpu import FakeGpu

from bench import measures
from bench.common.errors import ConfigError
from bench.execution import child
from bench.execution.ranks import require_joint
from bench.measures import train_step
from bench.measures.context import CellContext
from bench.measures.train_step import PARTS, Part, step_bytes

LENGTH, BATCH = 24, 6


def config(bench, label="flash", training=None, **changes):
    if bench["name"] != "largest_batch":
        bench = {"min_sample_ms": 0.0, **bench}
    of_training = {
        "model": {"name": "transformer", "layers": 2, "dropout": 0.0, "activation_checkpointing": False},
        "task": {"name": "induction_heads", "alphabet": 16, "examples": 8},
        "training": {"warmup": 0, "learning_rate": 1e-2, **(training or {})},
        "attention": {"name": "flash"},
    }
    sizes = {"seq_len": LENGTH, "batch_size": BATCH, "causal": True, "seed": 3, "repeats": 4}
    return cells.config(label, bench, **of_training, **{**sizes, **changes})


def measure(name, tmp_path, memory_limit=None, own=None, **changes):
    return cells.measure(CellContext(config({"name": name, **(own or {})}, **changes), tmp_path, memory_limit))


def made(tmp_path, **changes):
    return train_step.make_trainer(CellContext(config({"name": "train"}, **changes), tmp_path))


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
    measured = measure("train_step", tmp_path, training={"accumulate": 3})
    number = said("train_step", measured)
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


@pytest.mark.parametrize(("host_ns", "device_ns"), [(9e5, 2e3), (1e4, 4e6)])
def test_on_a_gpu_a_step_takes_as_long_as_a_user_waits(host_ns, device_ns, tmp_path, monkeypatch):
    """Whether the host's launches are slower or the device's kernels: one for each part, and a wait for the norm."""
    trainer = made(tmp_path)
    gpu = FakeGpu().install(monkeypatch)
    loss, update = trainer.loss, trainer.update

    def launching_loss(*piece):
        gpu.launch(host_ns, device_ns)
        found = loss(*piece)
        found.register_hook(lambda gradient: gpu.launch(host_ns, device_ns))
        return found

    monkeypatch.setattr(trainer, "loss", launching_loss)
    monkeypatch.setattr(trainer, "update", lambda of: (gpu.wait(), update(of), gpu.launch(host_ns, device_ns)))
    monkeypatch.setattr(train_step, "make_trainer", lambda context: trainer)
    parts = measure("train_step", tmp_path, device="cuda")["parts"]
    compared = measure("compare_train_step", tmp_path, device="cuda")
    one, step = host_ns + device_ns, 2 * (host_ns + device_ns) + max(host_ns, device_ns)
    assert parts["step"]["samples"] == compared["samples"]["flash"] == pytest.approx([step] * 4)
    assert parts["forward"]["samples"] == parts["backward"]["samples"] == pytest.approx([one] * 4)
    assert parts["step"]["method"] == compared["method"] == "perf_counter"


def test_the_memory_of_a_step_is_at_least_that_of_its_gradients(tmp_path):
    """And a batch holds the model, the optimiser's state, and that."""
    whole = measure("train_step", tmp_path)
    weights = 4 * whole["parameters"]
    trainer = made(tmp_path)
    tensors = len(list(trainer.model.parameters()))
    assert whole["optimizer_bytes"] == 2 * weights + 4 * tensors  # two moments, and each tensor's count of steps
    assert weights < whole["model_bytes"] < 2 * weights
    assert weights < whole["peak_bytes"] == said("train_step", whole)["peak_memory"].value
    assert measure("train_step", tmp_path, training={"accumulate": 2})["peak_bytes"] < whole["peak_bytes"]
    part = Part("step", trainer)
    part.run(part.prepare())  # after it there are the state of the optimiser, and gradients, which count all the same
    assert part.peak_bytes() == whole["peak_bytes"]
    assert step_bytes(trainer, BATCH) == sum(whole[key] for key in ("model_bytes", "optimizer_bytes", "peak_bytes"))


def test_a_comparison_says_times_rates_and_the_ratio():
    samples = {"slow": [6e7] * 8, "quick": [2e7] * 8}
    numbers = list(measures.get("compare_train_step").quantities({"labels": ["slow", "quick"], "samples": samples}))
    found = {(one.metric, one.attention): one.value for one in numbers}
    times = {("step_time", "slow"): 6e7, ("step_time", "quick"): 2e7, ("speedup", "quick"): 3}
    rates = {("steps_per_second", "slow"): 1e9 / 6e7, ("steps_per_second", "quick"): 50}
    assert found == pytest.approx(times | rates) and numbers[-1].baseline == "slow"
    assert measures.get("compare_train_step").headline(numbers).startswith("quick 3x")


def test_every_entry_of_a_comparison_trains_its_own_model(tmp_path, monkeypatch):
    seen = {}

    def noted(context, make=train_step.make_trainer):
        seen[context.config["label"]] = trainer = make(context)
        return trainer

    monkeypatch.setattr(train_step, "make_trainer", noted)
    other = {"label": "performer", "attention": {"name": "performer"}, "dtype": "bfloat16"}
    measured = measure("compare_train_step", tmp_path, own={"against": [other]}, repeats=2)
    assert measured["labels"] == ["flash", "performer"] and list(measured["samples"]) == measured["labels"]
    names = {label: trainer.model.blocks[0].multihead.attention.info.name for label, trainer in seen.items()}
    assert names == {"flash": "flash", "performer": "performer"}
    assert [trainer.dtype for trainer in seen.values()] == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("wanted, pieces", [(6, 1), pytest.param(96, 2, marks=pytest.mark.slow)])
def test_the_largest_batch_is_the_last_below_the_limit_and_the_cells_own_in_the_fewest_pieces(tmp_path, wanted, pieces):
    own = {"memory_limit": 1 / 1024, "largest_limit": 64}  # of a MiB
    measured = measure("largest_batch", tmp_path, own=own, batch_size=wanted, training={"accumulate": pieces})
    tried = {int(size): peak for size, peak in measured["tried"].items()}
    assert list(tried.values()) == sorted(tried.values()) and list(tried) == sorted(tried)
    largest = measured["largest"]
    assert tried[largest] <= measured["limit_bytes"] < tried[largest + pieces] and largest % pieces == 0
    fitting = [n for n in range(1, wanted + 1) if wanted % n == 0 and wanted / n <= largest // pieces]
    assert measured["accumulation"] == fitting[0]
    number = {name: one.value for name, one in said("largest_batch", measured).items()}
    assert number == {"largest_batch": largest, "accumulation": fitting[0], "limit": 2**20}


def test_memory_that_runs_out_is_an_answer_and_the_limit_of_the_search_is_kept(tmp_path, monkeypatch):
    def peak(self):
        if len(self.pieces[0][0]) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return len(self.pieces[0][0]) * 2**20

    monkeypatch.setattr(Part, "peak_bytes", peak)
    measured = measure("largest_batch", tmp_path)
    assert measured["largest"] == 5 and measured["limit_bytes"] is None
    assert measured["tried"]["6"] is None is measured["tried"]["8"] and measured["tried"]["5"] > 0
    assert measure("largest_batch", tmp_path, own={"largest_limit": 3})["largest"] == 3
    limit = measured["tried"]["4"]
    assert measure("largest_batch", tmp_path, memory_limit=limit)["largest"] == 4
    with pytest.raises(MemoryError, match=r"a step of 1 sequences takes \d+ bytes, the limit is 7"):
        measure("largest_batch", tmp_path, memory_limit=7)


def test_on_a_cpu_the_process_may_take_more_than_the_batch(monkeypatch):
    monkeypatch.setattr(child.resource, "setrlimit", lambda *_: None)

    def limit(name):
        return child.limit_memory({"device": "cpu", "bench": {"name": name, "memory_limit": 0.001}})

    assert limit("largest_batch") > 2**26 and limit("train_step") == int(0.001 * 2**30)


def test_what_several_processes_cannot_do_is_refused(monkeypatch):
    """What is measured in one process would not be called equally often."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_PORT", "29500")

    def cell(name, **changes):
        return SimpleNamespace(config=config({"name": name}, training={"accumulate": 1}, **changes))

    for name in ("train_step", "compare_train_step", "largest_batch"):
        with pytest.raises(ConfigError, match=f"WORLD_SIZE=2: must be 1 for bench={name}"):
            require_joint([cell(name)], "cells")
    require_joint([cell("train")], "cells")
    with pytest.raises(ConfigError, match="WORLD_SIZE=2: must be 1 for hydra/launcher=slurm"):
        require_joint([cell("train")], "slurm")
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(ConfigError, match="MASTER_PORT=: must be the port where"):
        require_joint([cell("train")], "cells")
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match="WORLD_SIZE='two': must be a number"):
        require_joint([cell("train")], "cells")


@pytest.mark.gpu
def test_the_peak_of_a_step_on_a_gpu_holds_its_gradients(tmp_path):
    first, second = (measure("train_step", tmp_path, device="cuda") for _ in range(2))
    assert first["peak_bytes"] == second["peak_bytes"] > 4 * first["parameters"]
