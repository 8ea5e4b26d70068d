"""What the tests of several kernels share."""

import dataclasses
import functools

import pytest
import torch

from attention_zoo.ops import launching


@pytest.fixture
def poisoned(monkeypatch):
    """What is not written is seen."""

    def fill(make):
        def filled(*sizes, **given):
            with torch.no_grad():  # checkpoints of torch 2.11 make an empty tensor that requires a gradient
                return make(*sizes, **given).fill_(torch.nan)

        return filled

    monkeypatch.setattr(torch.Tensor, "new_empty", fill(torch.Tensor.new_empty))
    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, fill(getattr(torch, name)))


@pytest.fixture(scope="session", autouse=launching.HAS_KERNELS and launching.IS_INTERPRETED)
def patched_once():
    """What a function of a kernel finds in `triton.language` is replaced once, not at each call of it.

    Triton 3.7 does that again each time, and looks for integers that overflow in each sum and product, as no compiled
    kernel does and none of these sizes can: over half of what these tests would take. They pass without this as well.
    """
    from triton.runtime import interpreter

    options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patch = functools.cache(interpreter._patch_lang)

    def call(function, *args, **kwargs):
        patch(function.fn)
        return function.rewrite()(*args, **kwargs)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
        monkeypatch.setattr(interpreter.interpreter_builder, "options", options)
        yield
