"""What `torch.autocast` does to the inputs of an operation that it does not know."""

from __future__ import annotations

import torch
from torch import Tensor


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What `F.scaled_dot_product_attention` does to its arguments under autocast."""
    device = tensors[0].device.type
    # `is_autocast_available` would tell, too, but code compiled by PyTorch 2.11 cannot ask it.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(device)) for x in tensors)
