"""Every row of every table of tiles that a GPU can reach is used by some case here, and compared with float64 there."""

import copy
import importlib
import itertools
import pkgutil

import pytest
import torch
from closeness import assert_near, of_float32
from operations import DEVICE, HAS_GPU, drawn, with_gradients
from small import decode

import attention_zoo
from attention_zoo import ops
from attention_zoo.ops import launching
from attention_zoo.ops.random_features import triton as random_features

LENGTH, HEADS, BATCH, DECODED = 1000, 2, 2, 3
TABLES = {
    module.name: importlib.import_module(module.name).ROWS
    for module in pkgutil.walk_packages(ops.__path__, "attention_zoo.ops.")
    if module.name.endswith(".tiles")
}


def case(name, head_dim=64, **given):
    return pytest.param(name, head_dim, given, id="-".join(map(str, (name, head_dim, *given.values()))))


SKETCHED = [
    case("polysketch", h, sketch_size=r, block_size=128, causal=True) for r in (16, 32, 64, 128) for h in (64, 128)
]
WHOLE = [case("polysketch", h, sketch_size=r, causal=False) for r, h in ((32, 64), (32, 128), (128, 64))]
LOCAL = [case("polysketch", h, sketch_size=32, block_size=256, local=True, causal=True) for h in (64, 128)]
LEARNED = [
    case("polysketch", h, sketch="learned", sketch_size=r, block_size=256, causal=True)
    for r in (16, 32, 64)
    for h in (64, 128)
]
FEATURES = [
    *(case("linear", h, block_size=256, causal=True) for h in (64, 128)),
    *(case("performer", 64, num_features=m, block_size=256, causal=True) for m in (64, 256)),
    case("performer", 128, num_features=256, causal=False),
]
EXACT = [case("polynomial", h, degree=4, causal=causal) for h in (32, 64, 128) for causal in (False, True)]
STEPS = [
    *(case("linear", h, causal=True) for h in (32, 64, 128)),
    *(case("performer", 64, num_features=m, causal=True) for m in (128, 256, 512, 1024)),
    case("polysketch", 64, sketch_size=32, causal=True),
    *(case("polysketch", h, sketch_size=16, block_size=2, local=True, causal=True) for h in (64, 128)),
]
CASES = [*SKETCHED, *WHOLE, *LOCAL, *LEARNED, *FEATURES, *EXACT]
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """Kernels are chosen wherever tensors are."""
    monkeypatch.setattr(launching, "is_gpu", lambda device: True)


def make(name, head_dim, given, dtype):
    return attention_zoo.create(name, head_dim=head_dim, num_heads=HEADS, **given).to(DEVICE, dtype).eval()


def with_reference(*case):
    """A mechanism by its kernels, and by its reference in float64."""
    fused = make(*case)
    exact = copy.deepcopy(fused).double()
    exact.impl = "reference"
    return fused, exact


def assert_near_float64(actual, expected, dtype):
    assert_near(actual, expected, 2 * of_float32() if dtype == torch.float32 else 2e-2)


def tokens(head_dim, dtype, length):
    return [drawn(BATCH, HEADS, length, head_dim, seed=seed).to(dtype) for seed in range(3)]


def decoded(attention, tensors):
    return decode(attention, tensors, attention.init_state(BATCH, device=DEVICE, dtype=tensors[0].dtype))


# --- On a GPU ---------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, head_dim, given", CASES)
def test_outputs_and_gradients_are_those_of_float64(name, head_dim, given, dtype):
    fused, exact = with_reference(name, head_dim, given, dtype)
    tensors = tokens(head_dim, dtype, LENGTH)
    actual = with_gradients(fused, tensors)
    assert fused.executed.impl == "fused"
    expected = with_gradients(exact, [x.double() for x in tensors])
    assert_near_float64(actual, expected, dtype)


@pytest.mark.gpu
@torch.no_grad()
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, head_dim, given", STEPS)
def test_steps_are_those_of_float64(name, head_dim, given, dtype):
    fused, exact = with_reference(name, head_dim, given, dtype)
    tensors = tokens(head_dim, dtype, DECODED)
    expected = exact(*(x.double() for x in tensors))
    assert_near_float64(decoded(fused, tensors), expected, dtype)


# --- Without one: the cases above leave no row out --------------------------------------------------


def reachable(table, arch, bits):
    """Rows that are the first to fit for some sizes: those of their limits, and larger ones."""
    found = set()
    for kernel in {row.kernel for row in table}:
        rows = [row for row in table if row.kernel == kernel]
        limits = {}
        for row in rows:
            for name, most in row.at_most.items():
                limits.setdefault(name, set()).add(most)
        sizes = [[(name, size) for size in (*most, 2 * max(most) or 1)] for name, most in limits.items()]
        for dims in map(dict, itertools.product(*sizes)):
            first = next((row for row in rows if row.fits(arch, bits, dims)), None)
            found |= set() if first is None else {(kernel, first.configuration.name)}
    return found


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("arch", [80, 86, 89, 90, 100, 120])
def test_every_kernel_has_tiles_everywhere(arch, bits):
    """Also at the largest sizes that a row names, where the fewest fit."""
    for table in TABLES.values():
        for kernel in {row.kernel for row in table}:
            limits = [(name, most) for row in table if row.kernel == kernel for name, most in row.at_most.items()]
            assert launching.fitting(table, kernel, arch, bits, dict(sorted(limits, key=lambda limit: limit[1])))


@pytest.mark.skipif(HAS_GPU, reason="there the cases run")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("arch", [80, 90, 100])
def test_no_row_is_left_out(arch, dtype, monkeypatch):
    used, fitting = set(), launching.fitting

    def look(table, kernel, *sizes):
        chosen = fitting(table, kernel, *sizes)
        used.add((kernel, chosen.name))
        return chosen

    for module in (launching, random_features):
        monkeypatch.setattr(module, "launcher", lambda kernel, x, *grid: lambda *_, **__: None)
    monkeypatch.setattr(launching, "fitting", look)
    monkeypatch.setattr(launching, "architecture", lambda device: arch)
    for name, head_dim, given in (x.values for x in CASES):
        with_gradients(make(name, head_dim, given, dtype), tokens(head_dim, dtype, LENGTH))
    with torch.no_grad():
        for name, head_dim, given in (x.values for x in STEPS):
            decoded(make(name, head_dim, given, dtype), tokens(head_dim, dtype, DECODED))
    wanted = set().union(*(reachable(table, arch, dtype.itemsize * 8) for table in TABLES.values()))
    assert not wanted - used
