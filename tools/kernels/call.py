"""A call: one use of kernels at one shape, to be compiled, tuned or timed."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """A call can be compiled on tensors without memory (`meta`), and run and timed on a GPU.

    `make` takes a device, makes the inputs there and returns the launch. `name` is unique and has operation, pass and
    shape, such as `polynomial forward p4 h64 causal`. `streaming` names those of its kernels whose loops over products
    with the left operand in registers must stay pipelined: no wait for all products, no store to shared memory, and
    no load without prefetch.
    """

    name: str
    dtype: torch.dtype
    make: Callable[[torch.device], Callable[[], Any]]
    streaming: tuple[str, ...] = ()


def normal(device: torch.device, *size: int) -> Tensor:
    """A float32 tensor of this size from a standard normal distribution."""
    return torch.randn(*size, device=device)


def shape_name(shape: str, dtype: torch.dtype, groups: int = 1, inputs: int = 1) -> str:
    """The shape, plus what is unusual: parameters per head, two inputs, another dtype than bfloat16."""
    words = [shape, *(["per head"] if groups > 1 else []), *(["two inputs"] if inputs > 1 else [])]
    return " ".join([*words, *([] if dtype == torch.bfloat16 else [str(dtype).removeprefix("torch.")])])


def catalogue() -> dict[str, list[Call]]:
    """All calls by operation, from the modules `<operation>_calls` in this folder."""
    folder = importlib.import_module(__package__)
    modules = [module.name for module in pkgutil.iter_modules(folder.__path__) if module.name.endswith("_calls")]
    return {
        name.removesuffix("_calls"): list(importlib.import_module(f"{__package__}.{name}").calls()) for name in modules
    }
