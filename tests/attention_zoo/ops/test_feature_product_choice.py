"""Where kernels are chosen: feature products and polynomial attention, refusals, operators, launches and memory."""

import re

import operations
import pytest
import torch
from closeness import assert_near
from operations import DEVICE, drawn, use_tiles
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import attention_zoo
from attention_zoo import UnsupportedError
from attention_zoo.ops import launching
from attention_zoo.ops.feature_product import gradient_kernels, output_kernels, state_kernels, tiles, triton
from attention_zoo.ops.sketch_networks import triton as networks

HEADS, LENGTH = 2, 40


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    """Kernels are chosen wherever tensors are; the tiles of 16 bits, which are larger, are interpreted sooner."""
    monkeypatch.setattr(launching, "is_gpu", lambda device: True)
    use_tiles(monkeypatch, 16, tiles, networks)


def qkv(length=LENGTH, head_dim=16, dtype=torch.float32, batch=2):
    return [drawn(batch, HEADS, length, head_dim, seed=seed).to(dtype) for seed in range(3)]


def make(name, head_dim=16, impl="fused", dtype=torch.float32, **given):
    made = attention_zoo.create(name, head_dim=head_dim, num_heads=HEADS, impl=impl, **given)
    return made.to(DEVICE, dtype)


def with_gradients(attention, tensors, padding=None):
    """The output, and the gradients of inputs and parameters."""
    return operations.with_gradients(lambda *x: attention(*x, padding), tensors, parameters=attention.parameters())


# --- Mechanisms -----------------------------------------------------------------------------------


def case(id, name, form, **given):
    return pytest.param(name, form, given, id=id)


CASES = [
    case("linear", "linear", "quadratic"),
    case("linear-b32", "linear", "blocks", block_size=32, eps=0.5),
    case("performer-b32", "performer", "blocks", num_features=40, block_size=32),
    case("polysketch-b32", "polysketch", "blocks", sketch_size=16, block_size=32, bias=0.3, per_head=True),
    case("p2", "polysketch", "blocks", degree=2, block_size=32, scale=0.3),
    case("local", "polysketch", "blocks", sketch_size=16, local=True, block_size=32),
    case("local-whole", "polysketch", "quadratic", sketch_size=16, local=True),
    case("polynomial", "polynomial", "triton", head_dim=32),
    case("polynomial-plain", "polynomial", "triton", head_dim=32, degree=2, scale=0.4, bias=0.5, qk_layernorm=False),
    case("local-learned", "polysketch", "blocks", sketch="learned", sketch_size=16, local=True, block_size=32),
]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("name", "form", "given"), CASES)
def test_a_mechanism_is_its_reference(name, form, given, causal):
    """Padding on the left and everywhere; nowhere: below."""
    if not causal and (form == "quadratic" or given.get("local") or given.get("degree") == 2):
        pytest.skip("of causal attention, or as another one")
    padding = torch.zeros(2, LENGTH, dtype=torch.bool, device=DEVICE)
    padding[0, :25] = padding[1] = True
    fused = make(name, causal=causal, **given)
    reference = make(name, impl="reference", causal=causal, **given).double()
    reference.load_state_dict(fused.state_dict())
    tensors = qkv(head_dim=given.get("head_dim", 16))
    actual = with_gradients(fused, tensors, padding)
    if name != "polynomial":
        form = f"triton_{form if causal else 'blocks'}"
    assert fused.executed == ("fused", form)
    assert_near(actual, with_gradients(reference, [x.double() for x in tensors], padding), 1e-5)
    assert reference.executed == ("reference", None)


@pytest.mark.parametrize(
    ("name", "given", "dtype", "reason"),
    [
        ("linear", {"head_dim": 48}, torch.float32, "take a head_dim of 16, 32, 64, 128, not 48"),
        ("performer", {"block_size": 8}, torch.float32, "take a block_size of at least 16, this is 8"),
        ("performer", {"causal_algorithm": "cumulative_sum"}, torch.float32, "block_size of at least 16, this is 1"),
        ("polysketch", {"sketch_size": 24}, torch.float32, "square 16, 32, 64, 128 features, not 24"),
        ("polysketch", {"sketch_size": 16}, torch.float64, "torch.float32, the input is torch.float64"),
        ("linear", {}, torch.float64, "torch.float32, the input is torch.float64"),
    ],
)
def test_what_the_kernels_do_not_take(name, given, dtype, reason):
    given = {"causal": True, **given}
    tensors = qkv(20, given.get("head_dim", 16), dtype)
    with pytest.raises(UnsupportedError, match=f"^impl=fused: the kernels [^\n]*{re.escape(reason)}$"):
        make(name, dtype=dtype, **given)(*tensors)
    attention = make(name, impl="auto", dtype=dtype, **given)
    out = attention(*tensors)
    assert attention.executed == ("reference", None)
    assert torch.equal(out, make(name, impl="reference", dtype=dtype, **given)(*tensors))


# --- What is computed -----------------------------------------------------------------------------


def test_flops_by_hand():
    def sketches(r, h):
        return 2 * 2 * (2 * h * r)  # queries and keys, two matrices each

    def of(length, h=64, **given):
        return make(impl="auto", head_dim=h, **given).flops(1, length) // HEADS

    whole = {"name": "polysketch", "causal": True, "sketch_size": 32}
    assert of(1000, **whole) == 1000 * sketches(32, 64) + 1000**2 * (32 + 65)
    # 768 of 1024 squares are multiplied with values; the normaliser has all.
    state = 768 * 64 + 32**2
    in_blocks = 5 * 512**2 * (32 + 65)
    assert of(2560, **whole) == 2560 * sketches(32, 64) + 4 * state * (2560 - 512) + in_blocks
    full = {**whole, "causal": False}
    assert of(2560, **full) == 2560 * sketches(32, 64) + 4 * state * 2560
    local = {**whole, "local": True, "block_size": 1024}
    assert of(2048, **local) == 2048 * sketches(32, 64) + 4 * state * 1024 + 2 * 1024**2 * (64 + 65)
    assert of(1000, name="linear", causal=True, block_size=400) == 4 * 64 * 65 * 700 + (2 * 400**2 + 200**2) * 129
    features = 4 * 1000 * 256 * 64
    assert of(1000, name="performer", causal=False) == features + 4 * 1000 * 256 * 65


@pytest.mark.parametrize("given", [{}, {"local": True, "block_size": 64}, {"block_size": 32}], ids=str)
@pytest.mark.parametrize("r", [16, 64])
def test_at_the_minimal_test_length_there_are_blocks(r, given):
    attention = make("polysketch", sketch_size=r, causal=True, **given)
    length, block_size = attention.min_test_length, given.get("block_size") or tiles.BLOCKS[r]
    assert length > 2 * block_size and length % block_size
    if not given:
        assert length > tiles.QUADRATIC[r] >= length - 256 - 129
    else:
        assert length == 64 // block_size * block_size + block_size // 2 + 1 or length // block_size == 3


# --- Operators ------------------------------------------------------------------------------------


def test_compiled_and_twice_in_one_graph():
    """Behind a checkpoint: test_operations.py."""
    common = {"causal": True, "block_size": 16, "impl": "auto"}
    both = [make("performer", num_features=20, **common), make("polysketch", sketch_size=16, local=True, **common)]

    def added(*tensors):
        return both[0](*tensors) + both[1](*tensors)

    compiled = torch.compile(added, fullgraph=True, backend="aot_eager")
    added.parameters = compiled.parameters = nn.ModuleList(both).parameters
    expected = with_gradients(added, qkv(20, batch=1))
    assert [attention.executed.impl for attention in both] == ["fused", "fused"]
    assert_near(with_gradients(compiled, qkv(20, batch=1)), expected, 1e-6)


# --- Launches and memory --------------------------------------------------------------------------


def inputs(case, *, length, batch, heads, r, block, dtype=torch.float32, m=64):
    """Of the operator, without memory: nothing there can wait for a device, or look at a number."""

    def empty(columns):
        return torch.empty(batch, heads, length, columns, device="meta", dtype=dtype)

    squares, is_local = case.startswith("squares"), "local" in case
    features = [empty(r if squares else m) for _ in range(2)]
    local = (empty(64), empty(64)) if is_local else (None, None)
    scale = torch.empty(batch, heads, length, device="meta") if "scales" in case else None
    degrees = (2, 2 if is_local else 1) if squares else (1, 0)
    settings = 1.0, "full" not in case, length if "whole" in case else block, *degrees
    return triton.Inputs(*features, empty(64), *local, scale, *settings)


class Recorded:
    """A kernel that only notes its launches, and the dtypes of what they load by tiles; memory is not held."""

    def __init__(self, launched):
        self.launched = launched

    def __getitem__(self, grid):
        assert grid[0] > 0 and all(size <= 65535 for size in grid[1:])
        return lambda *given, **_: self.launched.append({x.base.dtype for x in given if hasattr(x, "base")})


@pytest.fixture
def launched(monkeypatch):
    """The launches, none of which is done."""
    made = []
    for module in (gradient_kernels, output_kernels, state_kernels):
        for name in vars(module).copy():
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, Recorded(made))
    return made


@pytest.mark.parametrize(
    ("case", "m", "forward", "backward"),
    [
        # Of few heads, whose sums are of parts of the sequence first; those of keys are kept by the forward pass.
        ("squares", 64, 5, 12),
        ("squares local", 64, 5, 12),
        ("squares whole", 64, 1, 3),
        ("squares whole local", 64, 1, 3),
        ("squares full", 64, 3, 8),
        ("squares of many heads", 64, 4, 11),
        ("features", 64, 2, 8),
        ("features scales", 64, 2, 8),
        ("features scales", 256, 2, 9),
        ("features whole", 64, 1, 3),
        ("features full", 64, 2, 6),
    ],
)
def test_a_pass_is_a_few_launches(case, m, forward, backward, launched):
    heads = 200 if "many" in case else HEADS
    given = inputs(case, m=m, r=32, batch=2, heads=heads, length=100_000, block=512)
    out, *kept = triton.forward(given)
    assert len(launched) == forward
    gradients = triton.backward(torch.empty_like(out), given, out, triton.Residuals(*kept))
    assert len(launched) == forward + backward
    assert [x.shape for x in gradients[:3]] == [x.shape for x in given[:3]]


def test_under_autocast_numbers_are_of_16_bits(launched):
    for name in ("linear", "performer", "polysketch"):
        attention = make(name, causal=True, block_size=16)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            assert attention(*qkv()).dtype == torch.float32
        assert set().union(*launched) == {torch.bfloat16}
        launched.clear()


class Memory(TorchDispatchMode):
    """The bytes of what is alive beside what was there before, and the largest of one tensor."""

    def __init__(self, given):
        super().__init__()
        self.before = {x.untyped_storage()._cdata for x in given}
        self.alive, self.peak, self.largest = {}, 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, list | tuple) else [out]:
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if storage._cdata not in self.before:
                    self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        self.largest = max([self.largest, *(size for _, size in self.alive.values())])
        return out


MEGABYTE = 2**20


@pytest.mark.parametrize(
    ("case", "r", "block", "forward", "kept", "backward"),
    [
        ("squares local", 32, 1024, 62, 26, 350),
        ("squares local", 64, 1024, 128, 8, 608),
        ("squares", 32, 512, 99, 27, 363),
        ("squares", 64, 1024, 128, 8, 560),
        ("squares full", 64, 1024, 132, 2, 480),
    ],
)
def test_memory(case, r, block, forward, kept, backward, launched):
    """Of 12 heads of 32k rows in bfloat16, in megabytes: the first pass, what it leaves, both beside the output; the
    second pass in all.
    """
    given = inputs(case, length=32768, batch=1, heads=12, r=r, dtype=torch.bfloat16, block=block)
    tensors, size = [x for x in given if isinstance(x, torch.Tensor)], given.value.nbytes
    with Memory(tensors) as memory:
        out, *left = triton.forward(given)
    extra = memory.peak - size
    assert extra <= min(2 * 4 * size, forward * MEGABYTE)
    assert sum(x.nbytes for x in left) <= kept * MEGABYTE
    d_out = torch.empty_like(out)
    with Memory([*tensors, out, *left, d_out]) as memory:
        gradients = triton.backward(d_out, given, out, triton.Residuals(*left))
    assert len(gradients) == 6 and memory.peak <= backward * MEGABYTE
    assert memory.largest <= given.left.nbytes * r / 8
