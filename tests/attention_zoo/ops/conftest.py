"""What the tests of several kernels share."""

import pytest
import torch


@pytest.fixture
def poisoned(monkeypatch):
    """What is not written is seen."""

    def fill(make):
        return lambda *sizes, **given: make(*sizes, **given).fill_(torch.nan)

    monkeypatch.setattr(torch.Tensor, "new_empty", fill(torch.Tensor.new_empty))
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, fill(getattr(torch, name)))
