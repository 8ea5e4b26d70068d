"""What is so of every operation: outputs and gradients are its formula's, wherever its tensors are and who calls it."""

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import operations
import pytest
import torch
import torch.nn.functional as F
from closeness import assert_near
from operations import DEVICE, HAS_GPU, assert_equals_formula, direction, drawn, use_tiles, with_gradients
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from attention_zoo.ops.feature_product import tiles
from attention_zoo.ops.feature_product import triton as product
from attention_zoo.ops.feature_product.reference import LocalInputs
from attention_zoo.ops.fused_softmax import attend
from attention_zoo.ops.polynomial import triton as polynomial
from attention_zoo.ops.random_features import triton as random_features
from attention_zoo.ops.sketch_networks import cpu as cpu_networks
from attention_zoo.ops.sketch_networks import triton as networks

pytestmark = pytest.mark.usefixtures("poisoned")


class Operation(NamedTuple):
    """Kernels and formula take so many inputs `(batch, heads, n, width)` and the parameters; all have gradients.

    `heads` are the least there can be.
    """

    kernels: operations.Function
    formula: operations.Function
    inputs: int
    parameters: tuple[torch.Tensor, ...] = ()
    width: int = 16
    compared: Mapping[str, Any] = MappingProxyType({})
    heads: int = 1

    def rows(self, n, batch=1, heads=None):
        return [drawn(batch, heads or self.heads, n, self.width, seed=seed) for seed in range(self.inputs)]

    def assert_equals_formula(self, rows, **options):
        tensors = [*rows, *self.parameters]
        assert_equals_formula(self.kernels, self.formula, tensors, **self.compared, **options)


def of_product(inputs, **given):
    def positive(left, right):
        """As features of degree 1 are."""
        return (left, right) if given["degree"] == 2 else (left.abs(), right.abs())

    def kernels(left, right, value, *exact):
        local = LocalInputs(*exact, 4) if exact else None
        return product.normalised_product(*positive(left, right), value, local=local, block_size=32, **given)[0]

    def formula(left, right, *others, ones):
        settings = {"block_size": 32, "local_degree": 4, **given}
        return operations.feature_product(*positive(left, right), *others, ones=ones, **settings)

    return Operation(kernels, formula, inputs, compared={"ones": operations.product_ones})


def of_exponential_features():
    def kernels(x):
        features, log_scale = random_features.exponential_features(x, projection, scale=0.3, eps=1e-2, columns=64)
        return features[..., :40], log_scale

    projection = drawn(40, 16, seed=3)
    formula = functools.partial(operations.exponential_features, projection=projection, scale=0.3, eps=1e-2)
    return Operation(kernels, formula, 1, compared={"rounding": None})


def of_random_sketch(inputs, groups):
    """Of one input behind a layer norm, or of two."""
    matrices, norm = drawn(groups, 16, 2, 16, seed=3), (drawn(16, seed=4) + 1, drawn(16, seed=5))

    def kernels(x, *others):
        given = (None, polynomial.Norm(*others, 0.1)) if inputs == 1 else (*others, None)
        return random_features.random_sketch(x, *given, matrices, 0.3)

    def formula(x, *others):
        given = (None, *others) if inputs == 1 else (*others, None, None)
        return operations.random_sketch(x, *given, matrices, 0.3)

    parameters = norm if inputs == 1 else ()
    compared = {"tolerance": 2e-6, "rounding": None}
    return Operation(kernels, formula, inputs, parameters, compared=compared, heads=groups)


def of_sketch_networks(inputs, groups, by=networks):
    parameters = tuple(operations.network_parameters(16, 16, groups))
    given = {"compared": {"tolerance": 1e-5}, "heads": groups}
    return Operation(*operations.networks_by(by, inputs), inputs, parameters, **given)


def of_polynomial(causal, *norm):
    """With a weight and a bias behind a layer norm."""
    given = {"degree": 4, "scale": 0.3, "causal": causal}

    def kernels(query, key, value, *norm):
        return polynomial.polynomial_attention(
            query, key, value, norm=polynomial.Norm(*norm, 1e-5) if norm else None, **given
        )

    def formula(query, key, value, *norm, **ones):
        query, key = (F.layer_norm(x, (32,), *norm) if norm else x for x in (query, key))
        return operations.polynomial(query, key, value, **ones, **given)

    compared = {"tolerance": 2 * operations.of_float32(), "ones": operations.polynomial_ones}
    return Operation(kernels, formula, 3, norm, width=32, compared=compared)


def of_softmax():
    def kernels(*tensors):
        return attend(*tensors, scale=0.3)[:2]

    return Operation(kernels, functools.partial(operations.softmax, scale=0.3), 3)


BY_TRITON = {
    "squares": of_product(3, degree=2, bias=1.0, causal=False),
    "causal squares": of_product(3, degree=2, bias=1.0, causal=True),
    "causal squares local": of_product(5, degree=2, bias=1.0, causal=True),
    "features": of_product(3, degree=1, bias=0.0, causal=False),
    "causal features": of_product(3, degree=1, bias=0.0, causal=True),
    "exponential features": of_exponential_features(),
    "random sketch": of_random_sketch(1, 1),
    "random sketch per head of two inputs": of_random_sketch(2, 2),
    "sketch networks": of_sketch_networks(1, 1),
    "sketch networks per head of two inputs": of_sketch_networks(2, 2),
    "polynomial": of_polynomial(False),
    "causal polynomial behind a norm": of_polynomial(True, drawn(32, seed=4) + 1, drawn(32, seed=5)),
}
ON_CPU = {
    "sketch networks on a cpu": of_sketch_networks(1, 1, cpu_networks),
    "sketch networks per head of two inputs on a cpu": of_sketch_networks(2, 2, cpu_networks),
}
REGISTERED = BY_TRITON | ({} if HAS_GPU else ON_CPU)
OPERATIONS = REGISTERED | {"softmax": of_softmax()}
# One of each operator.
OPERATORS = [
    *("causal squares local", "exponential features", "random sketch per head of two inputs"),
    *("sketch networks per head of two inputs", "causal polynomial behind a norm"),
    *(() if HAS_GPU else ["sketch networks on a cpu"]),
]
every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
registered = pytest.mark.parametrize("operation", REGISTERED.values(), ids=REGISTERED)


@pytest.fixture(autouse=True)
def large_tiles(monkeypatch):
    use_tiles(monkeypatch, 16, tiles, random_features, networks, polynomial)


@every_operation
@pytest.mark.parametrize("n", [1, 129])
def test_every_length(n, operation):
    """One row, and one more than several blocks or whole tiles."""
    operation.assert_equals_formula(operation.rows(n))


def layouts(x):
    wide = x.new_zeros(*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
    wide[:, :, ::2, 1 : 1 + x.shape[3]] = x
    return [
        x.transpose(1, 2).contiguous().transpose(1, 2),
        x.mT.contiguous().mT,
        wide[:, :, ::2, 1 : 1 + x.shape[3]],  # begins where no tile can
        x[:, :1, :1].expand_as(x),
    ]


@pytest.mark.parametrize(
    ("first", "operation"),
    [
        pytest.param(first, operation, id=f"{first}-{name}")
        for name, operation in OPERATIONS.items()
        for first in range(0, 4, min(operation.inputs, 2))
    ],
)
def test_any_strides(first, operation):
    """Another layout of each input, all of them; once the gradient is that of a sum, which is one number, expanded."""
    rows = operation.rows(17, batch=2, heads=2)
    upstream = direction if first else lambda out: out.new_ones(()).expand(out.shape)
    operation.assert_equals_formula([layouts(x)[(first + i) % 4] for i, x in enumerate(rows)], upstream=upstream)


@every_operation
def test_a_row_of_a_wider_one(operation):
    """Contiguous, whatever its strides."""
    operation.assert_equals_formula([F.pad(x, (0, 1))[..., :-1] for x in operation.rows(1)])


@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_or_behind_a_checkpoint_it_is_the_same(name):
    operation = OPERATIONS[name]
    tensors = [*operation.rows(20), *operation.parameters]

    def again(*tensors):
        return checkpoint(operation.kernels, *tensors, use_reentrant=False)

    compiled = torch.compile(operation.kernels, fullgraph=True, dynamic=True, backend="aot_eager")
    expected, by_compiler, by_checkpoint = (with_gradients(f, tensors) for f in (operation.kernels, compiled, again))
    assert_near(by_compiler, expected, 1e-6)
    assert all(map(torch.equal, by_checkpoint, expected))


@registered
def test_autocast_is_what_casting_is(operation):
    if operation.compared.get("ones") is operations.product_ones and not HAS_GPU:
        pytest.skip("in bfloat16, whose products are not interpreted")
    rows = operation.rows(20)
    with torch.autocast(DEVICE, dtype=torch.float16):
        actual = operation.kernels(*rows, *operation.parameters)
    expected = operation.kernels(*(x.half() for x in rows), *operation.parameters)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


@registered
def test_operators_are_what_they_are_registered_as(operation):
    tensors = [*operation.rows(20), *operation.parameters]
    with operations.Called() as called:
        with_gradients(operation.kernels, tensors)
    own = [(function, args) for function, args in called.calls if function.namespace == "attention_zoo"]
    (forward, args), (backward, backward_args) = own

    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    args = tree_map_only(torch.Tensor, lambda x: x.detach().requires_grad_(), args)
    torch.library.opcheck(forward, args, test_utils=tests)
    torch.library.opcheck(backward, tree_map_only(torch.Tensor, torch.Tensor.detach, backward_args), test_utils=tests)
