"""What two implementations of one mechanism are compared by."""

import torch


def outcomes(attention, tensors, mask=None):
    """The output, and the gradients of query, key, value and parameters."""
    leaves = [*(x.clone().requires_grad_() for x in tensors), *attention.parameters()]
    out = attention(*leaves[:3], mask)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream, allow_unused=True, materialize_grads=True)]
