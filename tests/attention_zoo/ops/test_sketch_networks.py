"""The kernels of the learned sketch's networks against their formula in float64: interpreted, and compiled on a GPU."""

import math

import closeness
import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from attention_zoo.ops import launching
from attention_zoo.ops.sketch_networks import triton as networks
from attention_zoo.ops.sketch_networks.tiles import ROWS, SKETCH_SIZES, WIDTHS, why_unsupported
from attention_zoo.polysketch import LearnedSketch

HAS_GPU = torch.cuda.is_available()
DEVICE = "cuda" if HAS_GPU else "cpu"

pytestmark = pytest.mark.usefixtures("poisoned")
BATCH, HEADS = 2, 3


@pytest.fixture(autouse=True)
def bits(request, monkeypatch):
    """The tiles of 16 bits, which are larger, take the interpreter less time."""
    chosen = getattr(request, "param", 16)
    if not HAS_GPU:
        rows = tuple(row._replace(bits=None) for row in ROWS if row.bits in (None, chosen))
        monkeypatch.setattr(networks, "ROWS", rows)


def parameters(width, r, groups=1, seed=0):
    """Weights of four layers, weight and bias of two norms, each of both networks."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(width, 8 * r), (8 * r, r), (r, 8 * r), (8 * r, r)]
    weights = [torch.randn(2, groups, *size, generator=generator) * size[0] ** -0.5 for size in sizes]
    norms = [
        torch.randn(2, 2, size, generator=generator) + torch.tensor([1.0, 0])[:, None, None] for size in (width, r)
    ]
    return [x.to(DEVICE) for x in (*weights, *(part for norm in norms for part in norm))]


def inputs(n, width, count=1, batch=BATCH, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n + width)
    # A mean and a size of its own for each row.
    scale, shift = torch.rand(2, count, batch, HEADS, n, 1, generator=generator)
    made = (0.1 + scale) * torch.randn(count, batch, HEADS, n, width, generator=generator) + 3 * shift
    return list(made.to(DEVICE, dtype).unbind(0))


def by_kernels(tensors, parameters):
    norms = [tuple(parameters[4:6]), tuple(parameters[6:])]
    return networks.sketch_networks(*tensors, weights=parameters[:4], norms=norms)


def by_formula(tensors, parameters):
    w1, w2, w3, w4, gain1, shift1, gain2, shift2 = parameters
    results = []
    for i, x in enumerate((tensors[0], tensors[-1])):
        normed = F.layer_norm(x, x.shape[-1:], gain1[i], shift1[i])
        between = F.gelu(normed @ w1[i], approximate="tanh") @ w2[i]
        normed = F.layer_norm(between, between.shape[-1:], gain2[i], shift2[i])
        results.append(F.gelu(normed @ w3[i], approximate="tanh") @ w4[i])
    root = math.sqrt(w2.shape[-1])
    return root * torch.tanh(results[0] * results[1] / root)


def with_gradients(function, tensors, parameters):
    leaves = [x.detach().requires_grad_() for x in (*tensors, *parameters)]
    out = function(leaves[: len(tensors)], leaves[len(tensors) :])
    d_out = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out)
    return [out.detach(), *torch.autograd.grad(out, leaves, d_out)]


def exactly(tensors, parameters):
    return with_gradients(by_formula, [x.double() for x in tensors], [x.double() for x in parameters])


def assert_near(actual, expected, tolerance=1e-5, gradient_tolerance=None, besides=None):
    closeness.assert_near(actual[:1], expected[:1], tolerance, besides=besides and besides[:1])
    closeness.assert_near(actual[1:], expected[1:], gradient_tolerance or tolerance, besides=besides and besides[1:])


def assert_equals_formula(tensors, parameters, *tolerances, function=by_kernels):
    count, doubles = len(tensors), [x.double() for x in (*tensors, *parameters)]
    expected, rounding = closeness.with_rounding(lambda *x: exactly(x[:count], x[count:]), doubles)
    assert_near(with_gradients(function, tensors, parameters), expected, *tolerances, besides=rounding)


@pytest.mark.parametrize(
    ("bits", "n"),
    [(16, 1), (16, 63), (16, 64), (16, 150), (32, 1), (32, 16), (32, 40)],
    indirect=["bits"],
)
def test_networks_and_gradients_equal_the_formula(bits, n):
    assert_equals_formula([x[:, :2] for x in inputs(n, 32, batch=1)], parameters(32, 16))


@pytest.mark.parametrize(("width", "r"), [(32, 64), (64, 16), (64, 32), (128, 32)])
def test_every_size_equals_the_formula(width, r):
    assert_equals_formula([x[:, :1] for x in inputs(9, width, batch=1)], parameters(width, r))


@pytest.mark.parametrize("kernel", ["networks", "input_gradient", "weight_gradients"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("r", SKETCH_SIZES)
def test_every_size_has_tiles_that_divide_its_hidden_units(kernel, dtype, width, r):
    for recompute in (0, 1):
        found = launching.configuration(
            ROWS, kernel, torch.empty(1, dtype=dtype), r=r, width=width, recompute=recompute
        )
        assert (8 * r) % found.tiles["BLOCK_HIDDEN"] == 0


@pytest.mark.parametrize("groups", [1, HEADS], ids=["shared", "per_head"])
@pytest.mark.parametrize("count", [1, 2], ids=["one_input", "two_inputs"])
@pytest.mark.parametrize("programs", [1, 8], ids=["shared_rows", "split_rows"])
def test_groups_and_inputs_in_any_number_equal_the_formula(groups, count, programs, monkeypatch):
    # One program for all rows of a weight, and several, of several tiles each.
    monkeypatch.setattr(networks, "PROGRAMS", programs)
    assert_equals_formula(inputs(45, 16, count), parameters(16, 16, groups))


@pytest.mark.parametrize("groups", [1, HEADS], ids=["shared", "per_head"])
def test_strided_inputs_equal_the_formula(groups):
    token_major = inputs(7, 32)[0].transpose(1, 2).contiguous().transpose(1, 2)
    column_major = inputs(7, 32)[0].mT.contiguous().mT
    expanded = inputs(7, 32, batch=1)[0].expand(BATCH, -1, -1, -1)
    sliced = inputs(7, 48)[0][..., 5:37]
    for x, y in ((token_major, column_major), (expanded, sliced)):
        assert_equals_formula([x, y], parameters(32, 16, groups))


def test_rows_that_hardly_vary_are_normalised_with_layer_norms_epsilon():
    (x,) = inputs(5, 32)
    assert_equals_formula([3e-3 * x], parameters(32, 16))


def test_float16_equals_the_formula():
    (x,) = inputs(40, 32, dtype=torch.float16)
    given = parameters(32, 16)
    out = by_kernels([x], given)
    assert out.dtype == torch.float16
    assert_near([out], [by_formula([x.double()], [p.double() for p in given])], 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, HEADS], ids=["shared", "per_head"])
@pytest.mark.parametrize("r", [16, 32, 64])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_16_bits_equal_the_formula(dtype, groups, r, width):
    for count in (1, 2):
        assert_equals_formula(inputs(1000, width, count, dtype=dtype), parameters(width, r, groups), 1e-2, 2e-2)


def test_operators_are_registered_well():
    folded = [torch.randn(2, 1, *size, device=DEVICE) for size in ((16, 128), (128,), (128, 16)) * 2]
    given = [[x.requires_grad_() for x in inputs(3, 16, 2)], [w.requires_grad_() for w in folded]]
    torch.library.opcheck(networks._networks, given)
    d_out = torch.randn(BATCH, HEADS, 3, 16, device=DEVICE)
    detached = [[x.detach() for x in part] for part in given]
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(networks._backward, (d_out, *detached), test_utils=tests)


def test_compiled_in_one_graph_and_checkpointed_give_the_same():
    tensors, given = inputs(3, 16), parameters(16, 16)
    compiled = torch.compile(by_kernels, fullgraph=True, backend="aot_eager")
    assert_equals_formula(tensors, given, function=compiled)

    def checkpointed(*given):
        return checkpoint(by_kernels, *given, use_reentrant=False)

    assert_equals_formula(tensors, given, function=checkpointed)


def test_autocast_casts_inputs_and_keeps_weights_exact():
    tensors, given = inputs(3, 16), parameters(16, 16)
    with torch.autocast(DEVICE, dtype=torch.float16):
        out = by_kernels(tensors, given)
    assert out.dtype == torch.float16
    assert torch.equal(out, by_kernels([x.half() for x in tensors], given))


def test_what_no_kernel_takes_is_refused_by_name():
    assert why_unsupported(torch.empty(1, 1, 5, 64), 32) is None
    assert why_unsupported(torch.empty(1, 1, 5, 64), 24) == "the kernels take a sketch_size of 16, 32, 64, not 24"
    assert "head_dim of 16, 32, 64, 128, not 48" in why_unsupported(torch.empty(1, 1, 5, 48), 32)
    assert "the input is torch.float64" in why_unsupported(torch.empty(1, 1, 5, 64).double(), 32)


# --- The mechanism's module -----------------------------------------------------------------------


def learned(degree, width, r, groups=1):
    sketch = LearnedSketch("learned", degree, width, r, groups)
    sketch.draw(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in sketch.named_parameters():
            if "layernorms" in name:
                parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return sketch.to(DEVICE)


@pytest.mark.parametrize(("degree", "groups"), [(2, 1), (4, HEADS)])
def test_the_module_runs_its_levels_by_kernels(degree, groups, monkeypatch):
    monkeypatch.setattr(launching, "on_gpu", lambda x: True)
    launched = []
    launch = networks.launch_networks
    monkeypatch.setattr(networks, "launch_networks", lambda *given: launched.append(given) or launch(*given))
    sketch = learned(degree, 32, 16, groups)
    (x,) = (x.requires_grad_() for x in inputs(4, 32))
    out = sketch.forward_fused(x)
    assert len(launched) == degree - 1
    exact = learned(degree, 32, 16, groups).double()
    x_exact = x.detach().double().requires_grad_()
    expected = exact(x_exact)
    d_out = torch.randn_like(expected)
    gradients = torch.autograd.grad(out, [x, *sketch.parameters()], d_out.float())
    expected_gradients = torch.autograd.grad(expected, [x_exact, *exact.parameters()], d_out)
    assert_near([out, *gradients], [expected, *expected_gradients], 1e-5 * len(launched))


@pytest.mark.parametrize(("width", "r", "on_gpu"), [(32, 16, False), (48, 16, True), (32, 24, True)])
def test_the_module_runs_itself_where_no_kernel_takes_the_input(width, r, on_gpu, monkeypatch):
    monkeypatch.setattr(launching, "on_gpu", lambda x: on_gpu)
    monkeypatch.setattr(networks, "launch_networks", None)
    sketch, (x,) = learned(2, width, r), inputs(4, width)
    assert torch.equal(sketch.forward_fused(x), sketch(x))
