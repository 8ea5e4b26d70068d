"""What `torch.autocast` does to the inputs of an operation that it does not know."""

from __future__ import annotations

import torch
from torch import Tensor


def has_autocast(device: str) -> bool:
    """As `torch.amp.is_autocast_available`, which code compiled by PyTorch 2.11 cannot ask."""
    return device != "meta"


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What `F.scaled_dot_product_attention` does to its arguments under autocast."""
    device = tensors[0].device.type
    if not has_autocast(device) or not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)
