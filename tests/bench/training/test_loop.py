"""The loop on a small model: steps against AdamW by hand, accumulation, interruptions, what is not finite."""

import math

import pytest
import torch
from torch import nn

from bench.common.errors import NonFiniteError
from bench.tasks import IGNORED, Batch
from bench.training import checkpoint
from bench.training.loop import Trainer, training_indices
from bench.training.settings import Training

VOCABULARY, LENGTH = 7, 5


class Shifted:
    """Predict the next token of a ramp: (a, a + b, a + 2b, ...) modulo the vocabulary; the first is not asked."""

    vocabulary, source = VOCABULARY, "ramps"

    def __init__(self, examples=24):
        self.examples = examples

    def size(self, split):
        return self.examples if split == "train" else 16

    def batch(self, split, indices):
        first = {"train": 0, "validation": 1000, "test": 2000}[split]
        rows = torch.tensor([first + index for index in indices])[:, None]
        ramp = (rows + (rows % 3 + 1) * torch.arange(LENGTH + 1)) % VOCABULARY
        targets = ramp[:, 1:].clone()
        targets[:, 0] = IGNORED
        return Batch(ramp[:, :-1], targets)


class Small(nn.Module):
    def __init__(self, dropout=0.0, dtype=torch.float64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8, dtype=dtype)
        self.mixer = nn.GRU(8, 8, batch_first=True, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, VOCABULARY, dtype=dtype)

    def forward(self, tokens, asked=None):
        mixed = self.dropout(self.mixer(self.embedding(tokens))[0])
        return self.out(mixed if asked is None else mixed[asked])


def trainer(dropout=0.0, batch_size=8, task=None, **settings):
    torch.manual_seed(0)
    chosen = Training(**({"steps": 20, "warmup": 3, "learning_rate": 0.02} | settings))
    return Trainer(Small(dropout), task or Shifted(), chosen, seed=5, batch_size=batch_size, dtype=torch.float64)


def weights(one):
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


def trained(one, steps):
    while one.step < steps:
        one.train_step()
    return one


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


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_an_accumulated_batch_is_the_whole_one(parts):
    whole, accumulated = trained(trainer(), 10), trained(trainer(accumulate=parts), 10)
    torch.testing.assert_close(weights(accumulated), weights(whole), rtol=0, atol=1e-12)


def test_parts_with_fewer_questions_weigh_less():
    class Uneven(Shifted):
        def batch(self, split, indices):
            tokens, targets = super().batch(split, indices)
            targets[: len(targets) // 2, 2:] = IGNORED
            return Batch(tokens, targets)

    whole, accumulated = (trained(trainer(task=Uneven(), accumulate=parts), 10) for parts in (1, 4))
    torch.testing.assert_close(weights(accumulated), weights(whole), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("stops", [[7], [1, 2, 13, 19]])
def test_an_interrupted_run_ends_with_the_same_weights(tmp_path, dropout, stops):
    whole = trained(trainer(dropout), 20)
    for stop in stops:
        part = trainer(dropout)
        checkpoint.resume(tmp_path, part, pytest.fail)
        torch.manual_seed(stop)
        torch.rand(stop)  # whatever else draws in the process
        trained(part, stop)
        checkpoint.save(tmp_path, part.step, part.state())
    last = trainer(dropout)
    checkpoint.resume(tmp_path, last, pytest.fail)
    assert last.step == stops[-1]
    trained(last, 20)
    assert torch.equal(weights(last), weights(whole)) and last.curve == whole.curve
    assert all(
        torch.equal(a, b)
        for one, other in zip(last.optimizer.state.values(), whole.optimizer.state.values(), strict=True)
        for a, b in zip(one.values(), other.values(), strict=True)
    )


def test_evaluation_changes_nothing_and_is_that_of_all_examples_at_once():
    quiet, looked_at = trainer(0.3), trainer(0.3, batch_size=8)
    for _ in range(6):
        quiet.train_step()
        looked_at.train_step()
        looked_at.evaluate("validation", 13)
    assert torch.equal(weights(quiet), weights(looked_at))
    found = looked_at.evaluate("validation", 13)
    batch = looked_at.task.batch("validation", range(13))
    looked_at.model.eval()
    logits = looked_at.model(batch.tokens)
    losses = nn.functional.cross_entropy(logits.transpose(1, 2), batch.targets, reduction="none")
    right = logits.argmax(-1) == batch.targets
    assert found["loss"] == pytest.approx(losses[:, 1:].mean().item(), rel=1e-12)
    assert found["token_accuracy"] == pytest.approx(right[:, 1:].double().mean().item())
    assert found["example_accuracy"] == pytest.approx(right[:, 1:].all(1).double().mean().item())
    assert found["loss_by_position"][0] is None and found["examples"] == 13
    assert found["loss_by_position"][1:] == pytest.approx(losses[:, 1:].mean(0).tolist(), rel=1e-12)


def test_a_split_is_read_to_its_end_only():
    assert trainer().evaluate("test", 1000)["examples"] == 16


def test_it_learns():
    one = trained(trainer(steps=400, warmup=20), 400)
    assert one.evaluate("test", 16)["example_accuracy"] > 0.9
    assert one.curve["train_loss"][0] == pytest.approx(math.log(VOCABULARY), rel=0.2)


@pytest.mark.parametrize("poisoned", ["embedding.weight", "out.bias"])
def test_what_is_not_finite_is_named_with_its_step(poisoned):
    one = trained(trainer(), 4)
    with torch.no_grad():
        one.model.get_parameter(poisoned).fill_(math.nan)
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


class Noisy(torch.nn.Module):
    """Draws from a generator of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.out, self.generator = inner, inner.out, torch.Generator().manual_seed(3)

    def forward(self, tokens, asked=None):
        noise = torch.rand((), generator=self.generator, dtype=torch.float64)
        return self.inner(tokens, asked) * (1 + noise)


def test_a_generator_of_a_module_goes_on_where_it_was(tmp_path):
    def noisy():
        one = trainer()
        return Trainer(Noisy(one.model), one.task, one.settings, seed=5, batch_size=8, dtype=torch.float64)

    whole = trained(noisy(), 20)
    part = trained(noisy(), 7)
    checkpoint.save(tmp_path, part.step, part.state())
    last = noisy()
    checkpoint.resume(tmp_path, last, pytest.fail)
    assert last.step == 7 and torch.equal(weights(trained(last, 20)), weights(whole)) and last.curve == whole.curve
