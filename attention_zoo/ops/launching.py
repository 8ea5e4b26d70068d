"""What all Triton kernels share: on which device they run, how they take a tensor, which tiles a call gets.

On a CPU they run in Triton's interpreter, which `TRITON_INTERPRET=1` turns on before they are imported. That is for
tests; no mechanism chooses it by itself.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# As Triton reads it, when the kernels are imported.
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on")
# Whether mechanisms import the kernels: that takes longer than all else of this package, for nothing where PyTorch is
# built for CPUs alone.
HAS_KERNELS = importlib.util.find_spec("triton") is not None and (torch.backends.cuda.is_built() or IS_INTERPRETED)
# The architecture to assume where a kernel is only interpreted.
INTERPRETED = 90
# The oldest that Triton compiles for.
OLDEST = 80
# Architectures whose blocks have 99 KiB of shared memory, where others have 163 or 227 (CUDA C++ Programming Guide,
# technical specifications). For sm_120, which has as little, Triton's code needs less.
SMALL_SHARED_MEMORY = (86, 89)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class Configuration(NamedTuple):
    """Tile sizes, by the kernel's names for them, and compiler options.

    `num_warps` work on a tile together, loads run `num_stages` ahead; `registers` caps those of a thread.
    """

    tiles: Mapping[str, int]
    num_warps: int
    num_stages: int
    registers: int | None = None

    @property
    def name(self) -> str:
        """For example `block_m128_block_n64_w4_s3`, and `_r128` at the end if registers are capped."""
        sizes = {**self.tiles, "w": self.num_warps, "s": self.num_stages}
        sizes |= {} if self.registers is None else {"r": self.registers}
        return "_".join(f"{name.lower()}{size}" for name, size in sizes.items())

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of a launch."""
        options = {**self.tiles, "num_warps": self.num_warps, "num_stages": self.num_stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


class Entry(NamedTuple):
    """An entry of a tuning table: a kernel's configuration, for which architectures, bits of an element, largest sizes.

    The first entry of a table that fits is used, so special ones come first. Until they are measured on a GPU, they are
    chosen by the compiled code.
    """

    kernel: str
    configuration: Configuration
    arch: tuple[int, int] = (0, 999)
    bits: int | None = None
    at_most: Mapping[str, int] = {}

    def fits(self, arch: int, bits: int, dims: Mapping[str, int]) -> bool:
        """Whether the entry is for this architecture, bits of an element and sizes."""
        first, last = self.arch
        fitting = all(dims[name] <= most for name, most in self.at_most.items())
        return first <= arch <= last and self.bits in (None, bits) and fitting


class Strided(NamedTuple):
    """A tensor `(batch, heads, rows, width)` and its strides, for kernels that load by pointers instead of descriptors.

    The last dimension is contiguous, the other strides are arbitrary.
    """

    data: Tensor
    batch_stride: int
    head_stride: int
    row_stride: int
    rows: int

    @classmethod
    def of(cls, x: Tensor) -> Strided:
        """Take x, or a copy of it if its last dimension is not contiguous."""
        x = by_rows(x)
        return cls(x, x.stride(0), x.stride(1), x.stride(2), x.shape[2])


def is_gpu(device: torch.device) -> bool:
    """Whether the kernels run on this device."""
    return device.type == "cuda"


def on_gpu(x: Tensor) -> bool:
    """Whether the kernels run on the device of x."""
    return is_gpu(x.device)


def kernel_norm(norm: nn.Module) -> nn.LayerNorm | None:
    """The norm if kernels can apply it: a LayerNorm with weight and bias. None: it is to be applied before them."""
    if type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None:
        return None
    return norm


def why_unsupported(x: Tensor, head_dims: tuple[int, ...] = ()) -> str | None:
    """Why no kernel takes `(batch, heads, seq_len, head_dim)` tensors like x; None if one does.

    Args:
        x: a query, key or value.
        head_dims: those that the kernel takes; empty is any.
    """
    if not HAS_KERNELS:
        return "the kernels need the package triton, and a PyTorch built for GPUs"
    if torch.version.hip is not None:
        return "the kernels are for NVIDIA's GPUs"
    if x.is_cuda and IS_INTERPRETED:
        return "TRITON_INTERPRET is set, with which the kernels would run on the CPU"
    if on_gpu(x) and architecture(x.device) < OLDEST:
        return "the kernels are for GPUs of compute capability 8.0 and later"
    if x.dtype not in DTYPES:
        return f"the kernels take {', '.join(str(dtype) for dtype in DTYPES)}, the input is {x.dtype}"
    if head_dims and x.shape[-1] not in head_dims:
        return why_not_among("head_dim", x.shape[-1], head_dims)
    return None


def why_not_among(name: str, size: int, sizes: tuple[int, ...]) -> str | None:
    """Why kernels that take only `sizes` do not take this one; None if they do."""
    if size in sizes:
        return None
    return f"the kernels take a {name} of {', '.join(map(str, sizes))}, not {size}"


@functools.cache
def architecture(device: torch.device) -> int:
    """The GPU's architecture as a number: 80 for compute capability 8.0."""
    if device.type != "cuda":
        return INTERPRETED
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def launcher(kernel: Any, x: Tensor, *grid: int) -> Callable[..., Any]:
    """`kernel[grid]` on the device of x: Triton launches on the current device, whichever its arguments are on."""

    def launch(*arguments: Any, **options: Any) -> Any:
        with torch.cuda.device_of(x):
            return kernel[grid](*arguments, **options)

    return launch


def precision(x: Tensor) -> str:
    """The `input_precision` of `tl.dot`: float32 is multiplied as three products in TF32."""
    return "tf32x3" if x.dtype == torch.float32 else "tf32"


def configuration(table: tuple[Entry, ...], kernel: str, x: Tensor, **dims: int) -> Configuration:
    """The configuration for this kernel, tensors like x, and sizes `dims`: the first entry of the table that fits."""
    return fitting(table, kernel, architecture(x.device), x.element_size() * 8, dims)


def fitting(table: tuple[Entry, ...], kernel: str, arch: int, bits: int, dims: Mapping[str, int]) -> Configuration:
    """The first entry that fits; `tools.kernels` replaces this function to see and change what is used."""
    for entry in table:
        if entry.kernel == kernel and entry.fits(arch, bits, dims):
            return entry.configuration
    raise LookupError(f"{kernel}: no configuration for sm_{arch}, {bits} bits, {dict(dims)}")


def by_rows(x: Tensor) -> Tensor:
    """x, or a copy of it whose last dimension is contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
