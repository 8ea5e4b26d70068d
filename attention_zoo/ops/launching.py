"""What all Triton kernels share: where they run, how they see a tensor, which configuration of tiles a call gets.

On a CPU they run in Triton's interpreter, which `TRITON_INTERPRET=1` turns on before they are imported: that is for
tests, and no mechanism chooses it by itself.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attention_zoo.ops.configurations import TABLE, Configuration

# What a kernel is compiled for where it is only interpreted.
INTERPRETED = 90
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Bytes that the start of a tensor and its rows are multiples of, to be loaded by tiles.
ALIGNED = 16


class Dims(NamedTuple):
    """Sizes that a configuration may depend on; 0 where a kernel has no such size."""

    head_dim: int = 0
    sketch_size: int = 0
    width: int = 0


def on_gpu(x: Tensor) -> bool:
    """Whether kernels are for this tensor."""
    return x.device.type == "cuda"


def refusal_of(x: Tensor, head_dims: tuple[int, ...] = ()) -> str | None:
    """Why no kernel takes `(batch, heads, seq_len, head_dim)` tensors like x; None if one does.

    Args:
        x: a query, key or value.
        head_dims: what the kernel is made for; empty is any.
    """
    if importlib.util.find_spec("triton") is None:
        return "the kernels need the package triton"
    if x.dtype not in DTYPES:
        return f"the kernels take {', '.join(str(dtype) for dtype in DTYPES)}, the input is {x.dtype}"
    if head_dims and x.shape[-1] not in head_dims:
        return f"the kernels take a head_dim of {', '.join(map(str, head_dims))}, the input has {x.shape[-1]}"
    return None


@functools.cache
def architecture(device: torch.device) -> int:
    """80 for compute capability 8.0."""
    if device.type != "cuda":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def configuration(kernel: str, x: Tensor, **dims: int) -> Configuration:
    """The configuration of a kernel for tensors like x: the first row of the table that fits.

    Args:
        kernel: its name in the table.
        x: says device and dtype.
        dims: those of `Dims` that the kernel has.
    """
    return _configuration(kernel, architecture(x.device), x.element_size() * 8, Dims(**dims))


@functools.cache
def _configuration(kernel: str, arch: int, bits: int, dims: Dims) -> Configuration:
    for row in TABLE:
        if row.kernel == kernel and row.fits(arch, bits, dims._asdict()):
            return row.configuration
    raise LookupError(f"{kernel}: no configuration for sm_{arch}, {bits} bits, {dims}")


def launch_options(chosen: Configuration) -> dict[str, Any]:
    """What a launch takes beside its arguments: the tiles and how they are compiled."""
    options = {**chosen.tiles, "num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    return options if chosen.registers is None else {**options, "maxnreg": chosen.registers}


def by_tiles(x: Tensor) -> Tensor:
    """x, or a copy of it whose layout can be loaded by tiles: numbers of a row side by side, rows aligned."""
    size = x.element_size()
    aligned = all(stride * size % ALIGNED == 0 for stride in x.stride()[:-1]) and x.data_ptr() % ALIGNED == 0
    return x if x.stride(-1) == 1 and aligned else x.contiguous()


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What `F.scaled_dot_product_attention` does to its arguments under autocast."""
    device = tensors[0].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)
