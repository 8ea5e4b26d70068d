"""The kernels of the learned sketch's networks against their formula in float64: interpreted, and compiled on a GPU."""

import operations
import pytest
import torch
from closeness import assert_near
from operations import DEVICE, assert_equals_formula, use_tiles
from operations import network_parameters as parameters

from attention_zoo.ops import launching
from attention_zoo.ops.sketch_networks import triton as networks
from attention_zoo.ops.sketch_networks.tiles import why_unsupported
from attention_zoo.polysketch import LearnedSketch

pytestmark = pytest.mark.usefixtures("poisoned")
BATCH, HEADS = 2, 3


@pytest.fixture(autouse=True)
def bits(request, monkeypatch):
    """The tiles of 16 bits, which are larger, take the interpreter less time."""
    use_tiles(monkeypatch, getattr(request, "param", 16), networks)


def inputs(n, width, count=1, batch=BATCH, dtype=torch.float32):
    generator = torch.Generator().manual_seed(n + width)
    # A mean and a size of its own for each row.
    scale, shift = torch.rand(2, count, batch, HEADS, n, 1, generator=generator)
    made = (0.1 + scale) * torch.randn(count, batch, HEADS, n, width, generator=generator) + 3 * shift
    return list(made.to(DEVICE, dtype).unbind(0))


def assert_equals(inputs, parameters, *tolerances):
    both = operations.networks_by(networks, len(inputs))
    assert_equals_formula(*both, [*inputs, *parameters], *(tolerances or (1e-5,)))


@pytest.mark.parametrize("bits", [32], indirect=True)
def test_tiles_of_32_bits_equal_the_formula(bits):
    assert_equals([x[:, :2] for x in inputs(20, 32, batch=1)], parameters(32, 16))


@pytest.mark.parametrize(("width", "r"), [(32, 64), (64, 16), (64, 32), (128, 32)])
def test_every_size_equals_the_formula(width, r):
    assert_equals([x[:, :1] for x in inputs(9, width, batch=1)], parameters(width, r))


@pytest.mark.parametrize(("groups", "count", "programs"), [(HEADS, 1, 1), (1, 2, 8)])
def test_groups_and_inputs_in_any_number_equal_the_formula(groups, count, programs, monkeypatch):
    """By one program for all rows of a weight, and by several, of several tiles each."""
    monkeypatch.setattr(networks, "PROGRAMS", programs)
    assert_equals(inputs(45, 16, count), parameters(16, 16, groups))


def test_rows_that_hardly_vary_are_normalised_with_layer_norms_epsilon():
    (x,) = inputs(5, 32, batch=1)
    assert_equals([3e-3 * x], parameters(32, 16))


def test_float16_equals_the_formula():
    (x,), given = inputs(40, 32, batch=1, dtype=torch.float16), parameters(32, 16)
    kernels, formula = operations.networks_by(networks, 1)
    out = kernels(x, *given)
    assert out.dtype == torch.float16
    assert_near(out, formula(x.double(), *(p.double() for p in given)), 1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [1, HEADS], ids=["shared", "per_head"])
@pytest.mark.parametrize("r", [16, 32, 64])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_16_bits_equal_the_formula(dtype, groups, r, width):
    for count in (1, 2):
        assert_equals(inputs(1000, width, count, dtype=dtype), parameters(width, r, groups), 1e-2, 2e-2)


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


def test_the_module_runs_its_levels_by_kernels(monkeypatch):
    monkeypatch.setattr(launching, "on_gpu", lambda x: True)
    launched = []
    launch = networks.launch_networks
    monkeypatch.setattr(networks, "launch_networks", lambda *given: launched.append(given) or launch(*given))
    sketch, exact = learned(4, 32, 16, HEADS), learned(4, 32, 16, HEADS).double()
    (x,) = inputs(4, 32, batch=1)
    actual = operations.with_gradients(sketch.forward_fused, [x], parameters=sketch.parameters())
    assert len(launched) == 2 * 3, "both passes of three levels"
    assert_near(actual, operations.with_gradients(exact, [x.double()], parameters=exact.parameters()), 3e-5)


@pytest.mark.parametrize(("width", "r"), [(48, 16), (32, 24)])
def test_the_module_runs_itself_where_no_kernel_takes_the_input(width, r, monkeypatch):
    monkeypatch.setattr(launching, "on_gpu", lambda x: True)
    monkeypatch.setattr(networks, "launch_networks", None)
    sketch, (x,) = learned(2, width, r), inputs(4, width)
    assert torch.equal(sketch.forward_fused(x), sketch(x))
