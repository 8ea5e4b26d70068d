"""A small model that learns ramps, for tests of the loop and of checkpoints."""

import torch
from torch import nn

from bench.models import build
from bench.tasks import IGNORED, Batch, Task
from bench.training.loop import Trainer
from bench.training.settings import Training

VOCABULARY, LENGTH = 7, 5


class Ramps(Task):
    """Predict the next token of a ramp: (a, a + b, a + 2b, ...) modulo the vocabulary; the first is not asked."""

    def __init__(self):
        super().__init__("ramps", VOCABULARY, True, {"train": 24, "validation": 16, "test": 16})

    def batch(self, split, indices):
        first = {"train": 0, "validation": 1000, "test": 2000}[split]
        rows = torch.tensor([first + index for index in indices])[:, None]
        ramp = (rows + (rows % 3 + 1) * torch.arange(LENGTH + 1)) % VOCABULARY
        targets = ramp[:, 1:].clone()
        targets[:, 0] = IGNORED
        return Batch(ramp[:, :-1], targets)


class Small(nn.Module):
    def __init__(self, dropout=0.0, width=8):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, dtype=torch.float64)
        self.mixer = nn.GRU(width, width, batch_first=True, dtype=torch.float64)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, VOCABULARY, dtype=torch.float64)

    def forward(self, tokens, asked=None):
        mixed = self.dropout(self.mixer(self.embedding(tokens))[0])
        return self.out(mixed if asked is None else mixed[asked])


class Noisy(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.generator = inner, torch.Generator().manual_seed(3)

    def forward(self, tokens, asked=None):
        return self.inner(tokens, asked) * (1 + torch.rand((), generator=self.generator, dtype=torch.float64))


def trainer(dropout=0.0, width=8, task=None, noisy=False, **settings):
    torch.manual_seed(0)
    chosen = Training(**({"steps": 20, "warmup": 3, "learning_rate": 0.02} | settings))
    model = Noisy(Small(dropout, width)) if noisy else Small(dropout, width)
    return Trainer(model, task or Ramps(), chosen, seed=5, batch_size=8, dtype=torch.float64)


def trained(one, steps, looks=False):
    while one.step < steps and not one.is_finished:
        one.train_step()
        if looks:
            one.validate()
    return one


def weights(one):
    return torch.cat([p.detach().flatten() for p in one.model.parameters()])


class Letters(Task):
    """Which of two letters is in a text of others, with padding behind it; token 0 is padding."""

    def __init__(self):
        sizes = {"train": 24, "validation": 16, "test": 40}
        super().__init__("letters", VOCABULARY, False, sizes, classes=2, padding=0)

    def batch(self, split, indices):
        first = {"train": 0, "validation": 1000, "test": 2000}[split]
        rows = torch.tensor([first + index for index in indices])[:, None]
        tokens = 3 + (rows * rows + torch.arange(LENGTH)) % (VOCABULARY - 3)
        tokens[:, 1:2] = 1 + rows % 2
        tokens[:, 3:].masked_fill_(rows % 3 == 0, 0)
        return Batch(tokens, rows % 2, tokens != 0)


def classifier(dropout=0.1, **settings):
    """A trainer of the suite's own classifier, which learns letters."""
    model = {"name": "classifier", "layers": 1, "dropout": dropout, "pooling": "all"}
    cell = {"model": model, "attention": {"name": "softmax"}, "num_heads": 2, "head_dim": 4, "seq_len": LENGTH}
    built = build({**cell, "causal": False, "seed": 1, "impl": "auto"}, VOCABULARY, 2).double()
    chosen = Training(**({"steps": 20, "warmup": 3, "learning_rate": 0.02, "evaluate_every": 2} | settings))
    return Trainer(built, Letters(), chosen, seed=5, batch_size=8, dtype=torch.float64)
