"""The loop on a small model: steps against AdamW by hand, accumulation, what is not finite."""

import math
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from loops import LENGTH, VOCABULARY, Ramps, trained, trainer, weights
from torch import nn

from bench.common.errors import NonFiniteError
from bench.tasks import IGNORED, Batch
from bench.training.loop import derived_seed, training_indices
from bench.training.world import World


def test_steps_are_those_of_adamw_written_out():
    one = trainer(clip=None, weight_decay=0.1)
    reference = trainer().model
    parameters = list(reference.parameters())
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for step in range(6):
        batch = one.task.batch("train", training_indices(5, step, 8, 24))
        logits = reference(batch.tokens)
        chosen = batch.targets != IGNORED
        loss = -logits.log_softmax(-1).gather(-1, batch.targets.clamp_min(0)[..., None])[..., 0][chosen].mean()
        gradients = torch.autograd.grad(loss, parameters)
        rate = 0.02 * ((step + 1) / 3 if step < 3 else (20 - step) / 17)
        with torch.no_grad():
            for p, g, m, v in zip(parameters, gradients, first, second, strict=True):
                m.mul_(0.9).add_(0.1 * g)
                v.mul_(0.98).add_(0.02 * g * g)
                decay = 0.1 if p.dim() > 1 else 0.0
                corrected = m / (1 - 0.9 ** (step + 1)) / ((v / (1 - 0.98 ** (step + 1))).sqrt() + 1e-8)
                p.sub_(rate * decay * p + rate * corrected)
        one.train_step()
        assert one.curve["train_loss"][-1] == pytest.approx(loss.item(), rel=1e-12)
        assert one.curve["learning_rate"][-1] == pytest.approx(rate, rel=1e-12)
    torch.testing.assert_close(weights(one), torch.cat([p.flatten() for p in parameters]), rtol=1e-10, atol=1e-12)


def test_an_accumulated_batch_is_the_whole_one_and_parts_with_fewer_questions_weigh_less():
    class Uneven(Ramps):
        def batch(self, split, indices):
            tokens, targets, _ = super().batch(split, indices)
            targets[: len(targets) // 2, 2:] = IGNORED
            return Batch(tokens, targets)

    whole, accumulated = (trained(trainer(task=Uneven(), accumulate=parts), 10) for parts in (1, 4))
    torch.testing.assert_close(weights(accumulated), weights(whole), rtol=0, atol=1e-12)


def test_a_batch_that_asks_nothing_teaches_nothing():
    """In pretraining none of a few tokens may be hidden."""

    class Silent(Ramps):
        def batch(self, split, indices):
            tokens, targets, _ = super().batch(split, indices)
            return Batch(tokens, torch.full_like(targets, IGNORED))

    one = trainer(task=Silent(), weight_decay=0.0)
    before = weights(one)
    one.train_step()
    assert one.curve["train_loss"] == [0.0] and torch.equal(weights(one), before)


def test_evaluation_changes_nothing_and_is_that_of_all_examples_at_once():
    quiet, looked_at = trainer(0.3), trainer(0.3)
    for _ in range(6):
        quiet.train_step()
        looked_at.train_step()
        looked_at.evaluate("validation", 13)
    assert torch.equal(weights(quiet), weights(looked_at))
    found = looked_at.evaluate("validation", 13)
    # From all over the split: each example is a unit of its own, since they are fewer than units at most.
    of_split = [number * 16 // 13 for number in range(13)]
    batch = looked_at.task.batch("validation", of_split)
    looked_at.model.eval()
    logits = looked_at.model(batch.tokens)
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
    right = logits.argmax(-1) == batch.targets
    assert found["loss"] == pytest.approx(losses[:, 1:].mean().item(), rel=1e-12)
    assert found["token_accuracy"] == pytest.approx(right[:, 1:].double().mean().item())
    assert found["example_accuracy"] == pytest.approx(right[:, 1:].all(1).double().mean().item())
    assert found["loss_by_position"][0] is None and found["examples"] == 13
    assert found["loss_by_unit"] == pytest.approx(losses[:, 1:].mean(1).tolist(), rel=1e-12)
    assert found["loss_by_position"][1:] == pytest.approx(losses[:, 1:].mean(0).tolist(), rel=1e-12)


def test_an_evaluation_says_how_far_it_is():
    one, said = trainer(), []
    one.report = lambda done, total, note: said.append(f"{done}/{total} {note}")
    one.evaluated(one.model, one.task, "test", 1000, ", without sketch")
    assert said == [f"{done}/16 test examples, without sketch" for done in range(one.batch_size, 17, one.batch_size)]
    assert len(said) > 1


def test_it_learns():
    one = trained(trainer(steps=60, warmup=5, learning_rate=0.1), 60)
    found = one.evaluate("test", 1000)
    assert found["example_accuracy"] > 0.9 and found["examples"] == 16, "a split is read to its end only"
    assert one.curve["train_loss"][0] == pytest.approx(math.log(VOCABULARY), rel=0.2)


def test_what_is_not_finite_is_named_with_its_step():
    one = trained(trainer(), 4)
    with torch.no_grad():
        one.model.out.bias.fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"step=4: loss nan, the gradient of embedding.weight is not finite"):
        one.train_step()


def test_gradients_are_clipped_to_a_norm():
    one = trainer(clip=1e-3)
    one.train_step()
    norm = torch.cat([p.grad.flatten() for p in one.model.parameters()]).norm()
    assert norm == pytest.approx(1e-3, rel=1e-3) and one.curve["gradient_norm"][0] > 1e-2


def test_bfloat16_computes_so_and_keeps_its_weights():
    one = trainer()
    one.model.float()
    one.dtype = torch.bfloat16
    one.optimizer = torch.optim.AdamW(one.model.parameters())
    seen = []
    one.model.out.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    one.train_step()
    assert seen == [torch.bfloat16] and {p.dtype for p in one.model.parameters()} == {torch.float32}


# --- which examples a step learns from, and which of them each of several processes


@pytest.mark.parametrize(("size", "batch_size"), [(24, 8), (10, 4), (7, 20), (1, 3)])
def test_every_epoch_has_each_example_once(size, batch_size):
    steps = 3 * size  # batch_size epochs and more
    seen = [index for step in range(steps) for index in training_indices(3, step, batch_size, size)]
    for epoch in range(len(seen) // size):
        assert sorted(seen[epoch * size : (epoch + 1) * size]) == list(range(size))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [tuple(training_indices(seed, epoch, 50, 50)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9 and tuple(range(50)) not in orders
    assert orders[4] == tuple(training_indices(1, 1, 50, 50))


def test_without_end_nothing_comes_twice():
    assert [index for step in range(3) for index in training_indices(0, step, 16, None)] == list(range(48))


def test_the_number_of_a_key_is_large_and_its_own():
    numbers = {derived_seed(seed, "order", epoch) for seed in range(30) for epoch in range(30)}
    assert len(numbers) == 900 and all(0 <= n < 2**63 for n in numbers)
    assert derived_seed(1, 23) != derived_seed(12, 3)


@pytest.mark.parametrize(("size", "count"), [(1, 6), (3, 1), (3, 42), (7, 6), (2, 7)])
def test_every_row_is_one_processs(size, count):
    worlds = [World(SimpleNamespace(process_index=rank, num_processes=size)) for rank in range(size)]
    rows = [list(range(count))[world.rows(count)] for world in worlds]
    assert list(chain(*rows)) == list(range(count))
    assert max(map(len, rows)) - min(map(len, rows)) <= 1


def test_a_test_whose_loss_is_no_number_ends_the_training_with_that_reason():
    one = trainer()
    with torch.no_grad():
        next(one.model.parameters()).fill_(math.nan)
    with pytest.raises(NonFiniteError, match="the loss of the test split is nan"):
        one.evaluate("test", 4)


def test_a_batch_of_pairs_has_the_tokens_of_both():
    class Pairs(Ramps):
        def batch(self, split, indices):
            one = super().batch(split, indices)
            return Batch(torch.stack([one.tokens, one.tokens], 1), one.targets)

    assert trainer(task=Pairs()).tokens == 2 * trainer().tokens == 2 * 8 * LENGTH
