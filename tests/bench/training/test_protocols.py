"""How a training is done: schedules, order, which weights are tested, when it ends, and hidden tokens first."""

import copy
import math

import numpy as np
import pytest
import torch
from loops import LENGTH, VOCABULARY, Letters, classifier, trained, trainer, weights
from refusals import refused

from bench.records.metrics import Metric
from bench.tasks import IGNORED, Batch
from bench.training import checkpoint
from bench.training.evaluation import linearised
from bench.training.loop import training_indices
from bench.training.pretraining import SHARE, mask_tokens
from bench.training.schedule import beta1, learning_rate
from bench.training.settings import Training, check


@pytest.mark.parametrize(("steps", "warmup"), [(100, 20), (7, 0), (50, 49)])
def test_one_cycle_is_torchs_with_its_cycle_of_beta1(steps, warmup):
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.9, 0.999))
    cycle = {"max_lr": 0.01, "pct_start": warmup / steps, "anneal_strategy": "linear", "total_steps": steps}
    ours = Training(steps=steps, warmup=warmup, learning_rate=0.01, schedule="one_cycle")
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimizer, **cycle)
    for step in range(steps):
        [group] = optimizer.param_groups
        assert learning_rate(ours, step) == pytest.approx(group["lr"], rel=1e-9, abs=1e-15)
        assert beta1(ours, step) == pytest.approx(group["betas"][0], rel=1e-9)
        optimizer.step()
        if step < steps - 1:
            theirs.step()


def test_what_a_schedule_says_reaches_the_optimizer():
    one = trained(trainer(schedule="one_cycle", beta2=0.9, epsilon=1e-3), 3)
    for group in one.optimizer.param_groups:
        assert group["lr"] == 0.02 and group["betas"] == (pytest.approx(0.85), 0.9) and group["eps"] == 1e-3


def test_each_phase_has_a_schedule_of_its_own():
    whole = Training(steps=30, warmup=4, learning_rate=0.1, pretrain_steps=10)
    first, second = (Training(steps=steps, warmup=4, learning_rate=0.1) for steps in (10, 20))
    expected = [learning_rate(each, step) for each, steps in ((first, 10), (second, 20)) for step in range(steps)]
    assert [learning_rate(whole, step) for step in range(30)] == expected


def test_in_sequence_every_epoch_is_the_splits_own():
    seen = [index for step in range(6) for index in training_indices(3, step, 4, 8, "sequential")]
    assert seen == 3 * list(range(8))
    one, batches = trainer(order="sequential"), []
    one.task.batch = lambda split, indices, batch=one.task.batch: batches.append(indices) or batch(split, indices)
    trained(one, 4)
    assert batches == [list(range(8)), list(range(8, 16)), list(range(16, 24)), list(range(8))]


PROTOCOLS = [
    (trainer, [1, 2, 13], {"noisy": True, "dropout": 0.3}),
    (classifier, [7], {"schedule": "one_cycle", "order": "sequential"}),
    (classifier, [3, 8, 13], {"pretrain_steps": 8}),
    (classifier, [13], {"pretrain_steps": 8, "checkpoint": "best", "optimizer": "muon"}),
]


@pytest.mark.parametrize(("make", "stops", "given"), PROTOCOLS)
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path, make, stops, given):
    """A module's generator goes on, too; while it learns hidden tokens, when it is done with these, and later."""
    whole, part = trained(make(**given), 20, looks=True), make(**given)
    for stop in stops:
        trained(part, stop, looks=True)
        checkpoint.save(tmp_path, part.step, part.state())
        best, part = part.best, make(**given)
        checkpoint.resume(tmp_path, part, pytest.fail)
        torch.rand(stop)  # whatever else draws in the process
        assert part.step == stop and (part.best or {}).keys() == (best or {}).keys()
        of_best = (best or {"model": {}})["model"]
        assert all(torch.equal(part.best["model"][name], value) for name, value in of_best.items())
    trained(part, 20, looks=True)
    assert torch.equal(weights(part), weights(whole)) and part.curve == whole.curve
    assert part.evaluations == whole.evaluations
    assert part.load_best_weights() == whole.load_best_weights() and torch.equal(weights(part), weights(whole))


def test_the_best_weights_are_those_of_the_least_validation_loss_and_the_test_decides_nothing():
    """At a rate that is far too high, so that the last are not the best."""
    one = classifier(checkpoint="best", learning_rate=0.3)
    one.task.batch = lambda split, indices, batch=one.task.batch: (
        (split == "test" and pytest.fail()) or batch(split, indices)
    )
    seen = {}
    while not one.is_finished:
        one.train_step()
        one.validate()
        seen[one.step] = weights(one)
    losses = {found["step"]: found["loss"] for found in one.evaluations}
    best = min(losses, key=losses.get)
    assert sorted(losses) == list(range(2, 21, 2)) and best != 20
    assert one.load_best_weights() == best and torch.equal(weights(one), seen[best])
    last = trained(classifier(learning_rate=0.3), 20, looks=True)
    assert last.load_best_weights() == 20 and torch.equal(weights(last), seen[20])


@pytest.mark.parametrize(("steps", "warmup"), [(1, 1), (5, 5), (10, 1)])
def test_a_warm_up_ends_at_the_top(steps, warmup):
    """As torch's OneCycleLR; of a single step that is the step, where torch divides by zero."""
    ours = Training(steps=steps, warmup=warmup, learning_rate=0.01, schedule="one_cycle")
    assert learning_rate(ours, warmup - 1) == 0.01 and beta1(ours, warmup - 1) == pytest.approx(0.85)


def test_without_a_lower_loss_for_as_long_as_patience_says_it_ends():
    one = trainer(patience=3, steps=1000)
    for loss, is_finished in zip((3.0, 2.0, 2.5, 2.1, 1.9, 2, 2, 2), 7 * [False] + [True], strict=True):
        one.evaluations.append({"loss": loss})
        assert one.is_finished == is_finished
    one.settings.patience = None
    assert not one.is_finished


def test_a_loss_that_stays_the_same_is_not_lower():
    one = trainer(patience=3, steps=1000)
    for is_finished in (False, False, False, True):
        one.evaluations.append({"loss": 2.0})
        assert one.is_finished == is_finished


def test_classes_are_counted_by_example_and_by_unit():
    one = trained(classifier(), 1)
    found = one.evaluate("test", 40)
    batch = one.task.batch("test", range(40))
    one.model.eval()
    logits = one.model(batch.tokens, None, batch.mask)
    right = (logits.argmax(-1) == batch.targets[:, 0]).double()
    assert found["example_accuracy"] == found["token_accuracy"] == pytest.approx(right.mean().item())
    losses = torch.nn.functional.cross_entropy(logits, batch.targets[:, 0], reduction="none")
    assert found["loss"] == pytest.approx(losses.mean().item(), rel=1e-12)
    units = torch.arange(40) % 32
    by_unit = [right[units == unit].sum().item() for unit in range(32)]
    assert found["accuracy_by_unit"] == pytest.approx(linearised(by_unit, units.bincount().tolist()))
    assert 0 < right.mean() < 1
    assert "accuracy_by_unit" not in trainer().evaluate("test", 16)


def test_units_of_other_sizes_make_the_share_of_right_answers_and_its_interval():
    """Against the delete-one-group jackknife of the ratio, whose variance the linear part has up to 1 / groups."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(5, 60, (200,), generator=generator).double()
    right = torch.binomial(counts, torch.rand(200, generator=generator).double() / 2 + 0.4, generator=generator)
    values = torch.tensor(linearised(right.tolist(), counts.int().tolist()), dtype=torch.float64)
    share = right.sum() / counts.sum()
    assert values.mean().item() == pytest.approx(share.item(), abs=1e-12)
    without = (right.sum() - right) / (counts.sum() - counts)
    jackknife = 199 / 200 * (without - without.mean()).square().sum()
    assert (values.var() / 200).item() == pytest.approx(jackknife.item(), rel=0.03)
    # A unit without answers is none: what is known of the others is known of no more of them.
    assert linearised([3.0, 0.0, 1.0], [4, 0, 4]) == [0.75, None, 0.25]


def test_a_large_unit_with_a_small_loss_contributes_less_than_nothing():
    """A record with it is one: a model that is nearly always right has such units."""
    contributions = np.array(linearised([0.0, 9.0], [8, 2]))
    assert contributions.min() < 0 and contributions.mean() == pytest.approx(0.9)
    assert Metric("loss_by_unit", 0.9, "nats", raw=contributions).raw is contributions
    with pytest.raises(ValueError, match="loss=-1 nats: must be finite, from 0 to inf"):
        Metric("loss", -1.0, "nats", raw=contributions)
    with pytest.raises(ValueError, match="loss_by_unit=inf nats: must be finite"):
        Metric("loss_by_unit", 0.9, "nats", raw=np.array([math.inf, 1.0]))


def test_accumulated_parts_of_a_padded_batch_are_the_whole_one():
    whole, accumulated = (trained(classifier(dropout=0.0, accumulate=parts), 6) for parts in (1, 4))
    torch.testing.assert_close(weights(accumulated), weights(whole), rtol=0, atol=1e-9)


# --- hidden tokens


def test_what_is_hidden_is_drawn_from_the_seed_and_never_padding():
    batch = Letters().batch("train", range(24))
    many = Batch(*(x.repeat(200, 1) for x in batch))
    asked = mask_tokens(many, 7)
    is_asked = asked.targets != IGNORED
    assert torch.equal(asked.tokens, many.tokens) and torch.equal(asked.mask, many.mask)
    assert torch.equal(asked.targets[is_asked], many.tokens[is_asked]) and not (is_asked & ~many.mask).any()
    deviation = math.sqrt(SHARE * (1 - SHARE) / many.mask.sum())
    assert abs(is_asked.sum() / many.mask.sum() - SHARE) < 4 * deviation
    assert torch.equal(mask_tokens(many, 7).targets, asked.targets)
    assert not torch.equal(mask_tokens(many, 8).targets, asked.targets)
    pairs = Batch(many.tokens.view(-1, 2, LENGTH), many.targets.view(-1, 2)[:, :1])
    assert mask_tokens(pairs, 7).targets.shape == pairs.tokens.shape


def test_first_it_names_hidden_tokens_and_then_classes():
    one = classifier(pretrain_steps=6, learning_rate=0.05)
    head = copy.deepcopy(one.model.head.state_dict())
    trained(one, 6, looks=True)
    assert all(torch.equal(value, head[name]) for name, value in one.model.head.state_dict().items())
    assert one.evaluations == [] and one.curve["train_loss"][0] == pytest.approx(math.log(VOCABULARY), rel=0.3)
    before = one.optimizer
    trained(one, 20, looks=True)
    assert one.optimizer is not before and one.evaluations[0]["step"] == 8
    assert not torch.equal(one.model.head[0].weight, head["0.weight"])
    scratch = trained(classifier(learning_rate=0.05), 20)
    assert len(one.curve["train_loss"]) == len(scratch.curve["train_loss"]) == 20, "equal steps in all"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "training.steps=0: must be a number of at least 1"),
        ({"warmup": 2000}, "training.warmup=2000: must be at most training.steps=1000"),
        ({"learning_rate": "fast"}, "training.learning_rate='fast'"),
        ({"clip": math.nan}, "training.clip="),
        ({"schedule": "cosine"}, "training.schedule='cosine': must be one of linear, constant, one_cycle"),
        ({"order": "random"}, "training.order='random': must be one of shuffled, sequential"),
        ({"checkpoint": "first"}, "training.checkpoint='first': must be one of last, best"),
        ({"epsilon": 0.0}, "training.epsilon=0.0: must be a number above 0"),
        ({"patience": 0}, "training.patience=0: must be a number of at least 1"),
        (
            {"pretrain_steps": 950},
            "training.pretrain_steps=950: must be 0, or 100 to 900: training.steps=1000 counts both phases, first "
            "hidden tokens, then classes, a training.warmup=100 in each",
        ),
        ({"pretrain_steps": 10, "steps": 10, "warmup": 0}, "training.pretrain_steps=10: must be 0, or 1 to 9: tr"),
        ({"pretrain_steps": 5, "steps": 10, "warmup": 6}, "training.pretrain_steps=5: must be 0: training.steps=10 "),
    ],
)
def test_a_mistake_is_one_line(given, message):
    with refused(message):
        check(given)
