"""One use of a kernel at one shape."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Call:
    """What can be compiled on tensors without memory (`meta`), and run and timed on a GPU.

    `make` takes a device, makes the inputs there and returns the launch. `name` is unique and tells operation, pass
    and shape, such as `polynomial forward p4 h64 causal`. `streaming` names those of its kernels whose loops with the
    left operands of products in registers must keep products going: neither wait for all of them, nor store to shared
    memory, nor load what is not loaded ahead.
    """

    name: str
    dtype: torch.dtype
    make: Callable[[torch.device], Callable[[], Any]]
    streaming: tuple[str, ...] = ()


def normal(device: torch.device, *size: int) -> Tensor:
    """Random float32 numbers of a size."""
    return torch.randn(*size, device=device)


def shape_name(shape: str, dtype: torch.dtype, groups: int = 1, inputs: int = 1) -> str:
    """A shape with what is not usual of it: parameters for each head, two inputs, another dtype than bfloat16."""
    words = [shape, *(["per head"] if groups > 1 else []), *(["two inputs"] if inputs > 1 else [])]
    return " ".join([*words, *([] if dtype == torch.bfloat16 else [str(dtype).removeprefix("torch.")])])


def catalogue() -> dict[str, list[Call]]:
    """The calls by operation: those of the modules `<operation>_calls` beside this one."""
    folder = importlib.import_module(__package__)
    modules = [module.name for module in pkgutil.iter_modules(folder.__path__) if module.name.endswith("_calls")]
    return {name.removesuffix("_calls"): importlib.import_module(f"{__package__}.{name}").calls() for name in modules}
