"""Every mechanism and variant on another device: a GPU where there is one, else the fake accelerator."""

import contextlib
import copy
import dataclasses
import itertools
import traceback

import pytest
import torch
from closeness import assert_within, elsewhere
from small import decode, gradients, sized
from small import padding_mask as padding_of_length
from zoo_cases import VARIANTS, marks_of, runs_here, takes_causal, variant

import attention_zoo
from attention_zoo import UnsupportedError
from attention_zoo.sampled import SampledAttention
from attention_zoo.v_mean import SCAN_BLOCK, cumulative_sum

HEADS, HEAD_DIM, BATCH = 2, 16, 3
SIZE, BLOCK, LENGTH = 4, 4, 22  # several blocks, no multiple of one
draw = sized(LENGTH)
HAS_GPU = torch.cuda.is_available()
fake = None if HAS_GPU else pytest.importorskip("fake_accelerator", exc_type=ImportError)
DEVICES = [
    pytest.param("fake", marks=pytest.mark.skipif(HAS_GPU, reason="there is a GPU")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
every_device = pytest.mark.parametrize("device", DEVICES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
every_mask = pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
# The fake device runs the same code in either dtype: there one is enough without a mask, and another with one.
every_kind = pytest.mark.parametrize(
    "device, dtype, padded",
    [
        pytest.param(*device.values, dtype, padded, marks=device.marks)
        for device in DEVICES
        for dtype, padded in itertools.product((torch.float32, torch.bfloat16), (False, True))
        if device.values == ("cuda",) or padded == (dtype == torch.bfloat16)
    ],
    ids=str,
)


def full(label):
    """The variant's name and hyperparameters as they are."""
    given = variant(label)
    return given.pop("name"), given


def small(label):
    """With sizes that make several blocks and leave something out."""
    name, given = full(label)
    given.pop("dropout", None)  # of which each device draws its own; test_dropout.py has it
    size = attention_zoo.info(name).size
    sizes = {size: SIZE, "block_size": BLOCK, "bucket_size": BLOCK, "num_samples": SIZE}
    return name, given | {key: small for key, small in sizes.items() if key in given or (key and key == size)}


def runs_somewhere(name):
    info = attention_zoo.info(name)
    return runs_here(name) or (HAS_GPU and info.package in (None, "fla-core") and runs_here("fla_gla"))


def distinct_cases():
    """(label, causal) of every variant that is still another one when small."""
    cases = {}
    for label in VARIANTS:
        name, given = small(label)
        if not runs_somewhere(name) or given.get("backend", "auto") != "auto":
            continue  # test_flash.py has the forced kernels
        for causal in (False, True):
            if takes_causal(name) if causal else attention_zoo.info(name).bidirectional:
                cases.setdefault((name, causal, str(sorted(given.items(), key=str))), (label, causal))
    return list(cases.values())


# Whose fast path is `ops.fused_softmax`.
BY_SOFTMAX = ("bigbird", "informer", "linformer", "nystromformer", "reformer", "skeinformer")


def case_of(label, causal):
    return pytest.param(label, causal, id=label + "-causal" * causal, marks=marks_of(label))


CASES = [case_of(*case) for case in distinct_cases()]
every_case = pytest.mark.parametrize("label, causal", CASES)


def make(label, causal, dtype, impl="auto", length=LENGTH, shrink=small, **given):
    name, settings = shrink(label)
    common = {"head_dim": HEAD_DIM, "num_heads": HEADS, "causal": causal, "max_seq_len": length, "impl": impl}
    try:
        return attention_zoo.create(name, dtype=dtype, **(common | settings | given))
    except UnsupportedError as error:
        pytest.skip(str(error))


def move(attention, device):
    """To the device; the fake one takes what a GPU takes."""
    if device == "fake" and "cuda" in attention.info.devices:
        attention.info = dataclasses.replace(attention.info, devices=(*attention.info.devices, "fake"))
    return attention.to(device)


def inputs(dtype, device="cpu", exact=None, length=LENGTH, batch=BATCH, head_dim=HEAD_DIM):
    """Queries, keys and values of `dtype`, or in another dtype the numbers that they are in `dtype`."""
    drawn = draw(length, h=head_dim, batch=batch, dtype=dtype)
    return [x.to(device, exact or dtype).requires_grad_() for x in drawn]


def padding_mask(label, padded, device="cpu", length=LENGTH):
    """None, or a batch of three: padding anywhere, in front, nothing else."""
    if not padded:
        return None
    if not attention_zoo.info(small(label)[0]).padding:
        pytest.skip("refuses padding")
    return padding_of_length(length, front=True).to(device)


def forward_and_gradients(attention, given, mask):
    """The output, and the gradients of the inputs and parameters."""
    out = attention(*given, mask)
    return [out, *gradients(out, [*given, *attention.parameters()])]


def results(attention, given, mask):
    """The output, the gradients, the attention matrix where there is one, and the outputs of steps where it decodes."""
    found = forward_and_gradients(attention, given, mask)
    with contextlib.suppress(UnsupportedError):
        found.append(attention.attention_matrix(*given[:2], mask, value=given[2]))
    return found + ([decoded(attention, given, mask)] if attention.info.decode and attention.causal else [])


@torch.no_grad()
def decoded(attention, given, mask):
    """A prompt of all tokens but three, then one by one."""
    prompt = LENGTH - 3
    out, state = attention.prefill(*(x[:, :, :prompt] for x in given), None if mask is None else mask[:, :prompt])
    return torch.cat([out, decode(attention, given, state, prompt)], 2)


def relative_error(attention, actual, expected):
    """Of the whole tensor, or of the median row where samples are drawn by the data: rounding may swap some."""
    difference, scale = (actual.double().cpu() - expected.double()).norm(dim=-1), expected.double().norm(dim=-1)
    if isinstance(attention, SampledAttention):
        return (difference / scale.clamp_min(1e-30)).median()
    return difference.norm() / scale.norm().clamp_min(1e-30)


def assert_same(attention, actual, expected, device, dtype):
    """But for rounding, of which the fake device does little: only the order of some sums is another.

    A GPU's bfloat16 is compared with float64 here, at sizes where sums cancel; where they do not, below.
    """
    assert actual.device.type == device and actual.dtype == dtype and actual.isfinite().all()
    tolerances = {"fake": (1e-6, 4e-3), "cuda": (5e-3, 0.3)}[device]
    assert_within(relative_error(attention, actual.detach(), expected.detach()), tolerances[dtype == torch.bfloat16])


def moved(label, causal, dtype, device, **given):
    """The variant on the device, after a call on the CPU: what is cached there must not stay there."""
    info = attention_zoo.info(small(label)[0])
    if dtype not in info.dtypes:
        pytest.skip(f"refuses {dtype}")
    attention = make(label, causal, dtype, "reference" if device == "fake" else "auto", **given)
    if "cpu" in info.devices:
        attention(*inputs(dtype, head_dim=attention.head_dim))
    return move(attention, device)


def pair(label, causal, dtype, device, **given):
    """The variant on the CPU, the dtype it computes in there, and the variant on the device."""
    there = moved(label, causal, dtype, device, **given)
    exact = dtype if device == "fake" else max(there.info.dtypes, key=lambda dtype: dtype.itemsize)
    here = make(label, causal, exact, "reference", **given)
    here.load_state_dict(there.state_dict())
    return here, exact, there


@contextlib.contextmanager
def skip_where_a_package_waits():
    """What its plain functions do is not ours, and is not what runs on a GPU."""
    try:
        yield
    except RuntimeError as error:
        if any("/fla/ops/" in frame.filename for frame in traceback.extract_tb(error.__traceback__)):
            pytest.skip(str(error))
        raise


@contextlib.contextmanager
def no_synchronisation(device):
    if device == "fake":
        with fake.no_synchronisation():
            yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- The same function ----------------------------------------------------------------------------


@every_kind
@every_case
def test_what_it_computes_is_that_of_the_cpu(label, causal, device, dtype, padded):
    if device == "fake" and dtype not in attention_zoo.info(small(label)[0]).dtypes:
        dtype = torch.float32
    here, exact, there = pair(label, causal, dtype, device)
    masks = padding_mask(label, padded), padding_mask(label, padded, device)
    if padded:
        here.resample(5), there.resample(5)
    expected = results(here, inputs(dtype, exact=exact), masks[0])
    actual = results(there, inputs(dtype, device), masks[1])
    for one, other in zip(actual, expected, strict=True):
        assert_same(there, one, other, device, dtype)


@every_kind
@pytest.mark.parametrize("label, causal", [case for case in CASES if small(case.values[0])[0] in BY_SOFTMAX])
def test_the_fast_path_by_kernels_of_softmax_is_that_of_the_cpu(label, causal, device, dtype, padded):
    """The fake device has those kernels, too, and refuses what they refuse."""
    here, there = (make(label, causal, dtype, "fused") for _ in range(2))
    masks = padding_mask(label, padded), padding_mask(label, padded, device)
    there = move(there, device)
    expected = forward_and_gradients(here, inputs(dtype), masks[0])
    actual = forward_and_gradients(there, inputs(dtype, device), masks[1])
    assert there.executed.impl == "fused"
    tolerance = {torch.float32: {"fake": 1e-5, "cuda": 5e-3}[device], torch.bfloat16: 6e-2}[dtype]
    for one, same, rounding in zip(actual, expected, errors_of_the_cpu(here, dtype, masks[0]), strict=True):
        assert one.device.type == device and one.dtype == dtype and one.isfinite().all()
        assert_within(relative_error(there, one.detach(), same.detach()), max(tolerance, 6 * rounding))


def errors_of_the_cpu(attention, dtype, mask):
    """The largest of each result near these inputs: a pseudo-inverse magnifies rounding, by how much is chance.

    Two devices are apart by the errors of both, and the worst of a few draws is not the worst there is.
    """
    exact, errors, generator = copy.deepcopy(attention).double(), [], torch.Generator().manual_seed(5)
    for _ in range(6):
        given = [elsewhere(x.detach(), dtype, generator).requires_grad_() for x in inputs(dtype)]
        doubles = [x.detach().double().requires_grad_() for x in given]
        both = (forward_and_gradients(*x, mask) for x in ((attention, given), (exact, doubles)))
        pairs = zip(*both, strict=True)
        errors.append([relative_error(attention, x.detach(), y.detach()) for x, y in pairs])
    return [max(of_one) for of_one in zip(*errors, strict=True)]


@every_device
@every_case
def test_made_on_the_device_is_made_on_the_cpu_and_moved(label, causal, device):
    dtype = torch.float32
    other = moved(label, causal, dtype, device)
    made = move(make(label, causal, dtype, other.impl, device=device), device)
    for attention in (made, other):
        attention.resample(3)
    given = inputs(dtype, device)
    results = ([*attention.state_dict().values(), attention(*given)] for attention in (made, other))
    for one, same in zip(*results, strict=True):
        assert one.device == same.device and torch.equal(one.cpu(), same.cpu())


# --- Without waiting ------------------------------------------------------------------------------


@every_mask
@every_device
@every_case
def test_a_warm_call_does_not_wait_for_the_device(label, causal, device, padded):
    """Nor does its backward pass: the queue would run dry, and no graph could be captured."""
    there = moved(label, causal, torch.float32, device)
    given, mask = inputs(torch.float32, device), padding_mask(label, padded, device)
    forward_and_gradients(there, given, mask)
    direction = torch.ones_like(given[0])
    with no_synchronisation(device), skip_where_a_package_waits():
        out = there(*given, mask)
        torch.autograd.grad(out, given, direction, allow_unused=True)


@every_device
@pytest.mark.parametrize("label, causal", [case for case in CASES if case.values[1]])
def test_a_step_of_decoding_does_not_wait_for_the_device(label, causal, device):
    if not attention_zoo.info(small(label)[0]).decode:
        pytest.skip("does not decode")
    there = moved(label, causal, torch.float32, device).eval()
    with torch.no_grad():
        given = inputs(torch.float32, device)
        tokens = [[x[:, :, at : at + 1] for x in given] for at in range(LENGTH)]
        state = there.init_state(BATCH, device=device)
        there.step(*tokens[0], state)
        with no_synchronisation(device):
            for token in tokens[1:]:  # blocks are folded and caches grow
                there.step(*token, state)


# --- As fast as the device allows -----------------------------------------------------------------


@every_device
@pytest.mark.parametrize("length", [1, SCAN_BLOCK - 1, SCAN_BLOCK, SCAN_BLOCK + 1, 5 * SCAN_BLOCK + 3])
def test_a_sum_in_blocks_is_the_sum(length, device):
    x = torch.randn(2, 3, length, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    summed = cumulative_sum(x.to(device))
    assert summed.device.type == device
    torch.testing.assert_close(summed.cpu(), x.cumsum(2))


# --- On a GPU, at the sizes of the papers ---------------------------------------------------------

GPU_HEAD_DIM = 64
FULL = {"shrink": full, "head_dim": GPU_HEAD_DIM}


def gpu_inputs(length, dtype, device="cuda", exact=None, batch=1):
    return inputs(dtype, device, exact, length, batch, GPU_HEAD_DIM)


def is_linear(label):
    """Whether the variant's time and memory grow with n, in few enough steps of Python to be run at 32k."""
    name, given = full(label)
    info = attention_zoo.info(name)
    quadratic = given.get("unreduced") or given.get("row_normalization") == "none"
    one_by_one = given.get("causal_algorithm") == "cumulative_sum" or info.package
    return not (quadratic or one_by_one or "n^2" in info.complexity.split(";")[0])


# No multiples of what kernels like, and 1100 is more than one block of 1024.
@pytest.mark.gpu
@pytest.mark.parametrize("length", [127, 1100])
@every_dtype
@every_case
def test_a_gpu_is_as_near_to_float64_as_a_cpu_with_gradients(label, causal, dtype, length):
    """Or nearer than 5e-3 (TF32 rounds at 2^-11) and 6e-2 (bfloat16 at 2^-9)."""
    here, exact, there = pair(label, causal, dtype, "cuda", length=length, **FULL)
    rounded = make(label, causal, dtype, "reference", length=length, **FULL)
    rounded.load_state_dict(there.state_dict())
    expected = forward_and_gradients(here, gpu_inputs(length, dtype, "cpu", exact, batch=2), None)
    on_cpu = forward_and_gradients(rounded, gpu_inputs(length, dtype, "cpu", batch=2), None)
    actual = forward_and_gradients(there, gpu_inputs(length, dtype, batch=2), None)
    base = {torch.float32: 5e-3, torch.bfloat16: 6e-2}[dtype]
    # The gradient of a parameter is a sum over all positions, which cancels beyond what 16 bits hold.
    compared = len(actual) if dtype == torch.float32 else 4
    for one, same, other in list(zip(actual, on_cpu, expected, strict=True))[:compared]:
        allowed = max(base, 4 * relative_error(there, same.detach(), other.detach()))
        assert one.isfinite().all()
        assert_within(relative_error(there, one.detach(), other.detach()), allowed)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [8192, 32768])
@pytest.mark.parametrize("label, causal", [case for case in distinct_cases() if is_linear(case[0])])
def test_long_sequences_are_finite_and_equal_float64(label, causal, length):
    here, exact, there = pair(label, causal, torch.bfloat16, "cuda", length=length, **FULL)
    with torch.no_grad():
        actual = there(*gpu_inputs(length, torch.bfloat16))
        expected = here(*gpu_inputs(length, torch.bfloat16, "cpu", exact))
    assert actual.isfinite().all()
    # A kernel that lost its last block would hide among so many rows.
    for rows in (slice(None), slice(-64, None)):
        assert_within(relative_error(there, actual[:, :, rows], expected[:, :, rows]), 6e-2)


def peak_bytes(label, length):
    """Of a forward and backward pass, over what was allocated before; a first pass fills caches and workspaces."""
    attention = make(label, True, torch.bfloat16, length=length, **FULL).cuda()
    given = gpu_inputs(length, torch.bfloat16)
    forward_and_gradients(attention, given, None)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    forward_and_gradients(attention, given, None)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["polysketch_random_r32", "polysketch_learned_local_r32", "linear", "performer"])
def test_memory_of_both_passes_grows_with_the_length_not_its_square(label):
    """Four times the length takes at most five times the bytes, far fewer than the n x n matrix of one head."""
    short, long = peak_bytes(label, 8192), peak_bytes(label, 32768)
    assert 0 < long < 5 * short
    assert long < 2 * 32768**2
