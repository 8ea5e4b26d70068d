"""The operations that have kernels by their formulas, and how results of kernels are compared with those in float64."""

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from closeness import assert_near, of_float32, with_rounding
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attention_zoo.ops.fused_softmax import HIDDEN, is_blind

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

Function = Callable[..., Tensor | Sequence[Tensor]]


def drawn(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def direction(out, seed=9):
    """A gradient of the output; of float16, that it is the same for all dtypes."""
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(seed)).half().to(out)


def with_gradients(function: Function, tensors, upstream=direction, *, parameters=()):
    """The outputs, and the gradients of what there is of the tensors, and of parameters of the function."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in tensors]
    out = function(*leaves)
    outputs = [out] if isinstance(out, Tensor) else list(out)
    given = [*(x for x in leaves if x is not None), *parameters]
    gradients = torch.autograd.grad(outputs, given, [upstream(x) for x in outputs])
    return [*(x.detach() for x in outputs), *gradients]


def assert_equals_formula(
    kernels: Function,
    formula: Function,
    tensors,
    tolerance=None,
    gradient_tolerance=None,
    *,
    ones=None,
    rounding=torch.float32,
    upstream=direction,
):
    """Outputs and gradients are those of the formula in float64, as near as rounding the inputs leaves them.

    `ones` makes of the tensors what the formula takes by that name, which changes nothing but by its rounding;
    without a dtype of `rounding` nothing is allowed besides the tolerances.
    """
    doubles = [None if x is None else x.double() for x in tensors]
    more = ones(*doubles) if ones else ()

    def exactly(*given):
        *leaves, given_ones = *given[: len(doubles)], {"ones": given[len(doubles) :]} if ones else {}
        return with_gradients(functools.partial(formula, **given_ones), leaves, upstream)

    expected, besides = with_rounding(exactly, [*doubles, *more], rounding) if rounding else (exactly(*doubles), None)
    actual = with_gradients(kernels, tensors, upstream)
    outputs, tolerance = slice(len(actual) - sum(x is not None for x in tensors)), tolerance or of_float32()
    gradients = slice(outputs.stop, None)
    for some, allowed in ((outputs, tolerance), (gradients, gradient_tolerance or tolerance)):
        assert_near(actual[some], expected[some], allowed, besides=besides and besides[some])


class Called(TorchDispatchMode):
    """The operators that are called inside, and their arguments."""

    def __enter__(self):
        self.calls = []
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls.append((function, args))
        return function(*args, **(kwargs or {}))


def use_tiles(monkeypatch, bits, *modules):
    """Without a GPU, those of so many bits for all numbers: the larger ones, of 16, take the interpreter less time."""
    for module in () if HAS_GPU else modules:
        rows = tuple(row._replace(bits=None) for row in module.ROWS if row.bits in (None, bits))
        monkeypatch.setattr(module, "ROWS", rows)


# --- Formulas -------------------------------------------------------------------------------------


def product_weights(
    left, right, query=None, key=None, log_scale=None, *, ones=1.0, causal, degree, block_size=None, local_degree=1
):
    """The n x n weights; exact ones inside blocks where there are a query and a key."""
    terms = (left.abs() @ right.abs().mT) ** degree
    weights = (left @ right.mT) ** degree + (ones - 1) * terms.detach()
    if query is not None:
        block = torch.arange(left.shape[2], device=left.device) // block_size
        weights = torch.where(block[:, None] == block, (query @ key.mT) ** local_degree, weights)
    if log_scale is not None:
        running = log_scale.detach().cummax(-1).values
        exponent = log_scale[:, :, None] - running[..., None]
        # With the slope of an exponent of zero, which of `clamp` is torch's choice.
        weights = weights * torch.where(exponent > 0, 0, exponent).exp()
    return weights.tril() if causal else weights


def feature_product(left, right, value, *others, ones=(1.0, 1.0), bias, **given):
    weights, of_totals = product_weights(left, right, *others, ones=ones[0], **given), ones[1]
    total = bias + weights.sum(-1, keepdim=True)
    total = of_totals * total + (1 - of_totals) * total.detach()
    return torch.where(total != 0, weights @ value / total.masked_fill(total == 0, 1), 0)


def product_ones(left, right, value, *_):
    """Rounded they are the sums over products of features, whose terms cancel, and two sums that cancel in the
    gradient.
    """
    return torch.ones_like(left @ right.mT), torch.ones_like(left[..., :1] @ value[..., :1, :])


def exponential_features(x, projection, scale, eps):
    x = math.sqrt(scale) * x
    exponents = x @ projection.to(x.dtype).T
    largest = exponents.max(-1, keepdim=True).values
    features = ((exponents - largest).exp() + eps) / math.sqrt(len(projection))
    return features, largest.squeeze(-1) - x.square().sum(-1) / 2


def random_sketch(x, y, weight, bias, matrices, factor):
    """Behind a layer norm where there is a weight."""
    x = x if weight is None else F.layer_norm(x, x.shape[-1:], weight, bias, 0.1)
    left, right = matrices.to(x.dtype).unbind(2)  # (groups, width, r), of all heads or of each
    return factor * (x @ left) * ((x if y is None else y) @ right)


def sketch_networks(inputs, parameters):
    w1, w2, w3, w4, gain1, shift1, gain2, shift2 = parameters
    results = []
    for i, x in enumerate((inputs[0], inputs[-1])):
        normed = F.layer_norm(x, x.shape[-1:], gain1[i], shift1[i])
        between = F.gelu(normed @ w1[i], approximate="tanh") @ w2[i]
        normed = F.layer_norm(between, between.shape[-1:], gain2[i], shift2[i])
        results.append(F.gelu(normed @ w3[i], approximate="tanh") @ w4[i])
    root = math.sqrt(w2.shape[-1])
    return root * torch.tanh(results[0] * results[1] / root)


def networks_by(module, count):
    """`sketch_networks` of this module and by its formula, as functions of so many inputs and the parameters."""

    def kernels(*tensors):
        inputs, parameters = tensors[:count], tensors[count:]
        return module.sketch_networks(*inputs, weights=parameters[:4], norms=[parameters[4:6], parameters[6:]])

    return kernels, lambda *tensors: sketch_networks(tensors[:count], tensors[count:])


def network_parameters(width, r, groups=1):
    """Weights of four layers, weight and bias of two norms, each of both networks."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(width, 8 * r), (8 * r, r), (r, 8 * r), (8 * r, r)]
    weights = [torch.randn(2, groups, *size, generator=generator) * size[0] ** -0.5 for size in sizes]
    norms = [
        torch.randn(2, 2, size, generator=generator) + torch.tensor([1.0, 0])[:, None, None] for size in (width, r)
    ]
    return [x.to(DEVICE) for x in (*weights, *(part for norm in norms for part in norm))]


def polynomial(query, key, value, *, ones=(1.0,), degree, scale=1.0, bias=1.0, causal=False, padding=None):
    """Ones are times how the total changes: their rounding is that of two sums that cancel in the gradient."""
    weights = (scale * (query @ key.mT)) ** degree
    if causal:
        weights = weights.tril()
    if padding is not None:
        weights = weights.masked_fill(padding[:, None, None], 0)
    total = bias + weights.sum(-1, keepdim=True)
    total = torch.where(total > 0, ones[0] * total + (1 - ones[0]) * total.detach(), torch.inf)
    return weights @ value / total


def polynomial_ones(query, *_):
    return (torch.ones_like(query),)


def softmax(query, key, value, *, scale, hidden=None):
    """The output and the log-sum-exp."""
    scores = query @ key.mT * scale
    scores = scores if hidden is None else scores.masked_fill(hidden, HIDDEN)
    lse = scores.logsumexp(-1)
    return (scores.softmax(-1) @ value).masked_fill(is_blind(lse)[..., None], 0), lse
