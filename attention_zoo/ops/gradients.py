"""Gradients that cannot be differentiated again, and say so; passes that are computed again."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

NO_SECOND = "no second derivatives: this implementation has none; impl=reference has them where it computes the matrix"


class _Refused(torch.autograd.Function):
    """Copies of the first `count` tensors, which depend on all of them; differentiating these is an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.clone() for x in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError(NO_SECOND)


class _ReadOnce:
    """The context of a backward pass, with saved tensors that are unpacked: a checkpoint allows that once."""

    def __init__(self, ctx: Any) -> None:
        self._ctx, self.saved_tensors = ctx, ctx.saved_tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)


def in_a_backward_pass() -> bool:
    """Whether autograd runs in this thread: what calls a module then is a checkpoint, which computes it again."""
    # Private, seen in PyTorch 2.13, as nothing public says it; without it every pass counts. A compiler cannot ask.
    current = getattr(torch._C, "_current_graph_task_id", lambda: -1)
    return not torch.compiler.is_compiling() and current() != -1


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass of `torch.autograd.Function` whose results raise `NotImplementedError` if differentiated.

    PyTorch's decorator of this name raises only if a leaf's `grad` is asked for: `torch.autograd.grad` with respect to
    the inputs silently leaves the second derivatives out.
    """

    @functools.wraps(backward)
    def once(ctx: Any, *gradients: Tensor | None) -> Any:
        # Compiled functions refuse second derivatives themselves.
        is_final = not torch.is_grad_enabled() or torch.compiler.is_compiling()
        context = ctx if is_final else _ReadOnce(ctx)
        with torch.no_grad():
            made = backward(context, *gradients)
        if is_final:
            return made
        sources = [x for x in (*gradients, *context.saved_tensors) if isinstance(x, Tensor) and x.requires_grad]
        places = [i for i, x in enumerate(made) if isinstance(x, Tensor)]
        marked = _Refused.apply(len(places), *(made[i] for i in places), *sources)
        by_place = dict(zip(places, marked, strict=True))
        return tuple(by_place.get(i) for i in range(len(made)))

    return once
