"""The optimizer: AdamW, or Muon for weight matrices inside the model."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bench.training.settings import Training

# Their weights may have two or three dimensions, and are neither matrices nor stacks of matrices.
NOT_MATRICES = (nn.Embedding, nn.Conv1d, nn.Conv2d)


class FloatProducts(TorchFunctionMode):
    """Inside it, products of bfloat16 matrices are computed in float32 and rounded once.

    torch's Muon multiplies in bfloat16, which a processor without such products emulates: ten times slower.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call `func`, a product with converted arguments."""
        kwargs = kwargs or {}
        if func in (Tensor.matmul, torch.addmm) and args[0].dtype == torch.bfloat16:
            return func(*(each.float() for each in args), **kwargs).bfloat16()
        return func(*args, **kwargs)


class Optimizers:
    """Several optimizers used as one; each updates its own weights.

    Args:
        optimizers: no weight is in two of them.
        stacks: tensors of several matrices, each with views of its matrices, which are what the optimizers update.
    """

    def __init__(
        self, optimizers: Iterable[torch.optim.Optimizer], stacks: Iterable[tuple[Tensor, list[nn.Parameter]]] = ()
    ) -> None:
        self.parts = tuple(optimizers)
        self.stacks = tuple(stacks)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for part in self.parts for group in part.param_groups]

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """The state of each weight."""
        return {weight: state for part in self.parts for weight, state in part.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        for part in self.parts:
            part.zero_grad(set_to_none)
        for stack, _ in self.stacks:
            stack.grad = None

    def step(self) -> None:
        """Update all weights once."""
        for stack, matrices in self.stacks:
            gradients = [None] * len(matrices) if stack.grad is None else stack.grad.unbind()
            for matrix, gradient in zip(matrices, gradients, strict=True):
                matrix.grad = gradient
        weight = next(weight for group in self.param_groups for weight in group["params"])
        with FloatProducts() if weight.device.type == "cpu" else contextlib.nullcontext():
            for part in self.parts:
                part.step()

    def state_dict(self) -> dict[str, Any]:
        """The state of all optimizers."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`."""
        for part, own in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(own)


def optimizer_of(model: nn.Module, settings: Training) -> torch.optim.Optimizer | Optimizers:
    """The optimizer for a model's weights. Matrices get weight decay, vectors (biases, norms, decay rates) do not.

    Muon (Jordan et al. 2024) orthogonalises the updates of matrices; torch's implementation is used. Its updates are
    scaled like AdamW's (Liu et al. 2025, "Muon is scalable for LLM training"), so both use one learning rate. A weight
    of three dimensions is a stack of matrices (the networks of a learned sketch), each with an update of its own. One
    of queries, keys and values together is one matrix: where queries and keys have no gradient, as with `identity`,
    values move up to sqrt(3) times as far. AdamW still updates embeddings and convolutions, whose weights are no such
    matrices.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    others = {id(p) for each in model.modules() if isinstance(each, NOT_MATRICES) for p in each.parameters()}
    # A module names its weights of two dimensions that are no matrices, as timm's models do.
    named = {id(getattr(each, name)) for each in model.modules() for name in getattr(each, "no_weight_decay", ())}
    kept = [p for p in trained if _is_matrix(p) and id(p) not in others | named]
    hidden = kept if settings.optimizer == "muon" else []
    by_muon = {id(p) for p in hidden}
    rest = [p for p in trained if id(p) not in by_muon]
    matrices, vectors = (
        [p for p in rest if (p.dim() > 1 and id(p) not in named) is wanted] for wanted in (True, False)
    )
    groups = ({"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0})
    adamw = torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=(settings.beta1, settings.beta2), eps=settings.epsilon
    )
    if not hidden:
        return adamw
    rate, decay = settings.learning_rate, settings.weight_decay
    stacks = [(p, [nn.Parameter(matrix) for matrix in p.detach().unbind()]) for p in hidden if p.dim() == 3]
    hidden = [p for p in hidden if p.dim() == 2] + [matrix for _, matrices in stacks for matrix in matrices]
    muon = torch.optim.Muon(hidden, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return Optimizers([adamw, muon], stacks)


def _is_matrix(weight: Tensor) -> bool:
    """Whether it is a matrix or a stack of matrices; a convolution of each channel has a row for each."""
    return weight.dim() == 2 or (weight.dim() == 3 and min(weight.shape[1:]) > 1)
