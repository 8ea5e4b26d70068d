"""Custom operators, which `torch.compile` and autograd treat as one operation, and autocast of their inputs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


def register(
    name: str,
    function: Callable[..., Any],
    shapes: Callable[..., Any],
    *,
    mutates: Sequence[str] = (),
    schema: str = "",
) -> Any:
    """Register `function` as the operator `attention_zoo::name`.

    Args:
        name: of the operator.
        function: runs the kernels.
        shapes: takes the same arguments and returns empty tensors of the shapes and dtypes of the results.
        mutates: names of the arguments that the function writes to.
        schema: types of arguments and results in PyTorch's notation; empty takes them from the function's annotations.
    """
    operator = torch.library.custom_op(f"attention_zoo::{name}", function, mutates_args=mutates, schema=schema or None)
    operator.register_fake(shapes)
    return operator


def register_with_gradient(
    name: str,
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    shapes: Callable[..., Any],
    *,
    tensors: str,
    settings: str,
    gradients: int,
    outputs: int = 1,
    differentiable: int = 1,
    saves_outputs: bool = False,
    saved: Callable[..., Iterable[Tensor | None]] | None = None,
) -> tuple[Any, Any]:
    """Register `forward(*tensors, *settings)` as `attention_zoo::name` and its backward pass as `name_backward`.

    The backward pass is `backward(*d_outputs, *saved, *settings)`. It returns the gradients of the first arguments,
    empty for those that are None: `like(...)`.

    Args:
        name: of the operator; `shapes` is as in `register`, for the forward pass.
        forward: runs the kernels of the forward pass.
        backward: runs the kernels of the backward pass; the gradient of an output that is not used is None.
        tensors: types and names of the arguments that are tensors, for example `Tensor x, Tensor? bias`.
        settings: types and names of the other arguments, for example `float eps, bool causal`.
        gradients: how many of the tensors, counted from the first, have a gradient.
        outputs: how many results the forward pass has; `differentiable` of them, the first ones, have a gradient.
        saves_outputs: whether the backward pass reads the results.
        saved: takes arguments and results, returns the tensors to save instead of the default ones, as many as these.
    """
    count = tensors.count("Tensor")
    d_outputs = ", ".join(f"Tensor? d_output{i}" for i in range(differentiable))
    of_outputs = "".join(f"Tensor output{i}, " for i in range(outputs if saves_outputs else 0))
    operator = register(name, forward, shapes, schema=f"({tensors}, {settings}) -> {_results(outputs)}")

    def shapes_of_gradients(*arguments: Any) -> Any:
        made = like(*arguments[differentiable : differentiable + gradients])
        return made if gradients > 1 else made[0]

    operator_backward = register(
        *(f"{name}_backward", backward, shapes_of_gradients),
        schema=f"({d_outputs}, {tensors}, {of_outputs}{settings}) -> {_results(gradients)}",
    )

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if outputs > 1 else (output,)
        default = *inputs[:count], *(results if saves_outputs else ())
        ctx.save_for_backward(*(saved(inputs, results) if saved else default))
        ctx.settings = inputs[count:]
        ctx.mark_non_differentiable(*results[differentiable:])
        ctx.set_materialize_grads(False)

    def differentiate(ctx: Any, *d_results: Tensor | None) -> tuple[Tensor | None, ...]:
        made = operator_backward(*d_results[:differentiable], *ctx.saved_tensors, *ctx.settings)
        made = list(made) if gradients > 1 else [made]
        made += [None] * (len(ctx.needs_input_grad) - gradients)
        return tuple(x if is_needed else None for x, is_needed in zip(made, ctx.needs_input_grad, strict=True))

    operator.register_autograd(differentiate, setup_context=setup)
    return operator, operator_backward


def like(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Uninitialised gradients of these tensors; with no elements for those that are None."""
    some = next(x for x in tensors if x is not None)
    return tuple(some.new_empty(0) if x is None else x.new_empty(x.shape) for x in tensors)


def _results(number: int) -> str:
    return "Tensor" if number == 1 else f"({', '.join(['Tensor'] * number)})"


def has_autocast(device: str) -> bool:
    """Like `torch.amp.is_autocast_available`, which PyTorch 2.11 cannot compile."""
    return device != "meta"


def current_autocast(device: torch.device) -> tuple[str, torch.dtype, bool]:
    """The arguments of a `torch.autocast` that does the same as the current one, if there is any.

    A backward pass runs outside of autocast: what it computes again must be as it was, and products of mixed dtypes are
    errors there.
    """
    kind = device.type if has_autocast(device.type) else "cpu"
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of x, or that of products with it under autocast, which leaves float64 as it is."""
    device = x.device.type
    if x.dtype == torch.float64 or not has_autocast(device) or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast the tensors as `F.scaled_dot_product_attention` does under autocast."""
    return tuple(x.to(product_dtype(x)) for x in tensors)
