"""What a trained hybrid loses without a branch, against a second, naive computation; its loss by kind of token."""

import math
from itertools import product

import numpy as np
import planted
import pytest
import torch
from small import algorithm_2

from attention_zoo.branches import BRANCHES
from bench.measures import train
from bench.measures.context import CellContext

BLOCK = 8
SIZES = {"seq_len": 27, "num_heads": 2, "head_dim": 8, "attention__block_size": BLOCK, "attention__sketch_size": 4}
SIZES |= {"batch_size": 16, "training__steps": 30, "training__test_examples": 8, "seed": 0}
CASES = list(product(BRANCHES, (False, True)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A hybrid that was trained, its trainer, and what the suite measured of it."""
    folder, made = tmp_path_factory.mktemp("hybrid"), []
    text = planted.written(folder, "text", planted.documents(200, 3, copies=2))
    (config,) = planted.configs(folder, text, "polysketch_learned_local_r16", **SIZES)

    def kept(context, make=train.make_trainer):
        made.append(make(context))
        return made[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "make_trainer", kept)
        measured = train.Train().measure(CellContext(config, folder / "inputs"))
    return made[0], measured


def normed(norm, x):
    centred = x - x.mean(-1, keepdims=True)
    weight, bias = (p.detach().double().numpy() for p in (norm.weight, norm.bias))
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + norm.eps) * weight + bias


class Naive(torch.nn.Module):
    """A hybrid less a branch, by the matrix of its weights in float64."""

    def __init__(self, hybrid, branch, keeps_denominator):
        super().__init__()
        self.hybrid, self.branch, self.keeps = hybrid, branch, keeps_denominator
        self.num_heads, self.head_dim = hybrid.num_heads, hybrid.head_dim

    def forward(self, query, key, value):
        q, k, v = (x.detach().double().numpy() for x in (query, key, value))
        exact_q, exact_k = (normed(norm, x) for norm, x in zip(self.hybrid.local_norms, (q, k), strict=True))
        state = {name: tensor.double().numpy() for name, tensor in self.hybrid.state_dict().items()}
        left, right = (algorithm_2(x, state, self.hybrid.sketch.sketch_size) for x in (q, k))
        block = np.arange(q.shape[2]) // BLOCK
        is_near = block[:, None] == block
        weights = np.where(is_near, (exact_q @ exact_k.swapaxes(2, 3)) ** 4, (left @ right.swapaxes(2, 3)) ** 2)
        weights *= np.tri(len(block))
        kept = weights * (is_near if self.branch == "sketch" else ~is_near)
        total = 1 + (weights if self.keeps else kept).sum(-1, keepdims=True)
        return torch.from_numpy(kept @ v / total).to(value.dtype)


@pytest.mark.parametrize(("branch", "keeps"), CASES)
def test_the_loss_without_a_branch_is_that_of_a_model_without_it(trained, branch, keeps):
    trainer, measured = trained
    multihead = trainer.model.blocks[0].multihead
    hybrid = multihead.attention
    multihead.attention = Naive(hybrid, branch, keeps)
    try:
        expected = trainer.evaluated(trainer.model, trainer.task, "test", trainer.settings.test_examples)
    finally:
        multihead.attention = hybrid
    found = measured["branches"][f"{branch}_numerator" if keeps else branch]
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert found["loss_by_unit"] == pytest.approx(expected["loss_by_unit"], abs=1e-6)
    assert abs(found["loss"] - measured["test"]["loss"]) > 1e-3, "a branch that does nothing tells nothing"


def test_the_loss_by_kind_of_token_sums_to_the_loss(trained):
    """Of the trained model, and without each branch."""
    _, measured = trained
    for found in (measured["test"], *measured["branches"].values()):
        parts = found["parts"].values()
        total, answers = (math.fsum(part[name] for part in parts) for name in ("loss", "answers"))
        assert answers == SIZES["seq_len"] * SIZES["training__test_examples"]
        assert total / answers == pytest.approx(found["loss"], rel=0, abs=1e-9)
        assert found["parts"]["other"]["answers"] and found["parts"]["recalled_below_64"]["answers"]
