"""The test of trained weights at other lengths, against the same weights run by hand in double precision."""

import planted
import pytest
import torch

from bench import models, tasks
from bench.measures import train
from bench.measures.context import CellContext

SIZES = {"seq_len": 16, "num_heads": 1, "head_dim": 8, "batch_size": 8, "training__steps": 20, "seed": 0}
LENGTHS, TESTED = (8, 40), 10


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
def test_the_loss_at_another_length_is_that_of_the_same_weights_there(dtype, tolerance, tmp_path, monkeypatch):
    made, make = [], train.make_trainer
    monkeypatch.setattr(train, "make_trainer", lambda context: made.append(make(context)) or made[0])
    text = planted.written(tmp_path, "text", planted.documents(200, 3, copies=2))
    sizes = SIZES | {"dtype": dtype, "training__test_examples": TESTED, "training__test_lengths": list(LENGTHS)}
    (config,) = planted.configs(tmp_path, text, "flash", **sizes)
    found = train.Train().measure(CellContext(config, tmp_path / "inputs"))["longer"]
    assert set(found) == {str(length) for length in LENGTHS}
    for length in LENGTHS:
        there = {**config, "seq_len": length}
        task = tasks.open_task(there, tmp_path / "inputs")
        model = models.build(there, task.vocabulary, None, 0).double()
        model.load_state_dict(made[0].model.state_dict())
        # As many tokens as at the length of training, from all over the text.
        count = TESTED * SIZES["seq_len"] // length
        batch = task.batch("test", [number * task.size("test") // count for number in range(count)])
        with torch.no_grad():
            losses = torch.nn.functional.cross_entropy(model.eval()(batch.tokens).mT, batch.targets)
        assert found[str(length)]["loss"] == pytest.approx(losses.item(), rel=tolerance)
