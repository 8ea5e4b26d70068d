"""How the kernels load tiles of a tensor: by a descriptor, from rows that are aligned."""

from collections.abc import Sequence

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

# Bytes: to be loaded by tiles, a tensor and each of its rows start at a multiple of this.
ALIGNED = 16


def descriptor(x: Tensor, block: Sequence[int]) -> TensorDescriptor:
    """The tensor descriptor by which a kernel loads tiles of x; outside of x it loads zeros.

    Raises:
        ValueError: no copy of x has rows of a multiple of `ALIGNED` bytes.
    """
    strides = _strides(x)
    if strides is None:
        x = by_tiles(x)
        strides = _strides(x)
    if strides is None:
        raise ValueError(f"shape={tuple(x.shape)}: rows must be of a multiple of {ALIGNED} bytes")
    return TensorDescriptor(x, list(x.shape), strides, list(block))


def by_tiles(x: Tensor) -> Tensor:
    """x, or a copy of it that can be loaded by tiles: its last dimension is contiguous, its rows are aligned."""
    # `contiguous` would return x itself where only dimensions of size 1 have the wrong strides.
    return x if _strides(x) is not None else x.clone(memory_format=torch.contiguous_format)


def _strides(x: Tensor) -> list[int] | None:
    """The strides for loading by tiles, None if x does not allow it; the stride of a dimension of size 1 is free."""
    unit, sizes, strides = ALIGNED // x.element_size(), x.shape, list(x.stride())
    if (strides[-1] != 1 and sizes[-1] != 1) or x.data_ptr() % ALIGNED:
        return None
    strides[-1] = 1
    for i in range(len(strides) - 1):
        if sizes[i] == 1:
            strides[i] = unit
        elif strides[i] <= 0 or strides[i] % unit:
            return None
    return strides
