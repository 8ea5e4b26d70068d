"""What every registered mechanism promises, whatever it computes. A new mechanism is tested by existing."""

import copy
import dataclasses
import importlib.util
import math
import random

import numpy as np
import pytest
import torch
from small import LargestTensor, gradients, sized
from small import padding_mask as padding_of_length
from zoo_cases import CASES, NAMES, takes_causal

import attention_zoo
from attention_zoo import UnsupportedError, base
from bench.measures.flops import count

HEADS, HEAD_DIM, SIZE, BLOCK = 2, 8, 4, 4
LENGTH = 37  # no block size divides it, and it is several blocks long
draw = sized(LENGTH, heads=HEADS, h=HEAD_DIM)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)

# What a fast path computes beyond the formula, because it is faster: the diagonal blocks of a causal mask whole (up to
# a fifth at this length), the scores of all keys instead of those of sampled ones.
MORE_WORK = {"informer": 5}

# What less precision costs: reformer-pytorch gives a position's own key the score -5e4, which float32 rounds by 2e-3.
ROUNDING = {("lucidrains_reformer", torch.float32): 5e-3}

# The decorator next to the function, so that the ids of its cases begin with the name: tests/mutation.py selects by it.
every_case = pytest.mark.parametrize(
    "name, causal", [pytest.param(*case, id=case[0] + "-causal" * case[1]) for case in CASES]
)
every_name = pytest.mark.parametrize("name", NAMES)


def make(name, **given):
    """A small instance: d of its family is SIZE and blocks, where it has them, are BLOCK long."""
    info, known = attention_zoo.info(name), attention_zoo.hyperparameters(name)
    small = {} if info.size is None else {info.size: SIZE}
    small |= {key: BLOCK for key in ("block_size", "bucket_size") if key in known}
    common = {"head_dim": HEAD_DIM, "num_heads": HEADS, "max_seq_len": LENGTH, "dtype": best_dtype(name)}
    return attention_zoo.create(name, causal=given.pop("causal", not info.bidirectional), **(common | small | given))


def best_dtype(name):
    return next(dtype for dtype in DTYPES if dtype in attention_zoo.info(name).dtypes)


def tolerance(name):
    return {torch.float64: 1e-11, torch.float32: 1e-4, torch.bfloat16: 5e-2}[best_dtype(name)]


def inputs(name, length=LENGTH, batch=3, head_dim=HEAD_DIM, **given):
    return draw(length, batch=batch, h=head_dim, dtype=best_dtype(name), **given)


def padding_mask(length=LENGTH):
    return padding_of_length(length)


def assert_close(name, actual, expected):
    scale = expected.abs().max().clamp_min(1)
    torch.testing.assert_close(actual / scale, expected / scale, rtol=0, atol=tolerance(name))


def changes(first, second):
    return not torch.allclose(first, second, rtol=1e-3, atol=1e-6)


def needs_padding(name):
    if not attention_zoo.info(name).padding:
        pytest.skip("refuses padding")


def matrix(attention, query, key, padding, value):
    try:
        return attention.attention_matrix(query, key, padding, value=value)
    except UnsupportedError as error:
        pytest.skip(str(error))


# --- What it is -----------------------------------------------------------------------------------


@every_name
def test_info_is_filled_and_frozen(name):
    info = attention_zoo.info(name)
    assert info.name == name
    assert info.paper and info.complexity.startswith("O(")
    assert info.approximates is None or info.approximates in NAMES
    assert info.size is None or info.size in attention_zoo.hyperparameters(name)
    assert {"reference", "fused"} >= set(info.implementations) != set()
    assert info.dtypes and set(info.dtypes) <= {*DTYPES, torch.float16}
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.causal = True


@every_name
def test_defaults_work_on_a_sequence_shorter_than_them(name):
    causal = not attention_zoo.info(name).bidirectional
    attention = attention_zoo.create(
        name, head_dim=HEAD_DIM, num_heads=HEADS, causal=causal, max_seq_len=LENGTH, dtype=best_dtype(name)
    )
    assert attention(*inputs(name)).isfinite().all()


@pytest.mark.parametrize("length", [512, 500])
@every_case
def test_flops_are_those_of_a_counted_run(name, causal, length):
    """At a size where products outweigh what no formula counts, and at a length that no block size divides."""
    info, known = attention_zoo.info(name), attention_zoo.hyperparameters(name)
    if info.package:
        pytest.skip("another package's reference works entry by entry, which is not counted")
    sizes = dict.fromkeys({info.size, "block_size", "bucket_size"} & known.keys(), 64)
    for impl in info.implementations:
        attention = make(name, causal=causal, impl=impl, head_dim=32, max_seq_len=length, **sizes)
        given = inputs(name, length, batch=1, head_dim=32)
        try:
            with torch.no_grad():
                counted = sum(count(lambda: attention(*given)).values())  # noqa: B023
        except UnsupportedError:
            assert impl == "fused"
            continue  # a kernel that needs a GPU
        flops = attention.flops(1, length)
        assert type(flops) is int and attention.flops(3, length) == 3 * flops
        if flops == 0:  # it copies
            assert counted == 0
            continue
        assert 0.95 < counted / flops < (1.05 if impl == "reference" else MORE_WORK.get(name, 1.2))


# --- What it computes -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_case
def test_dtypes_agree(name, causal, dtype):
    """The same inputs and state in less precision give the same output but for rounding."""
    if dtype not in attention_zoo.info(name).dtypes:
        pytest.skip(f"refuses {dtype}")
    exact, rounded = make(name, causal=causal), make(name, causal=causal, dtype=dtype)
    rounded.load_state_dict(exact.state_dict())
    given = [tensor.bfloat16() for tensor in inputs(name)]
    expected = exact(*(tensor.to(best_dtype(name)) for tensor in given))
    actual = rounded(*(tensor.to(dtype) for tensor in given))
    assert actual.dtype == dtype and actual.shape == given[0].shape
    error = (actual.double() - expected.double()).norm() / expected.double().norm()
    # Float32 rounds at 6e-8, bfloat16 at 4e-3 and float16 at 5e-4; fourth powers and ratios lose a digit or so.
    usual = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.01}
    assert error < ROUNDING.get((name, dtype), usual[dtype])


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@every_case
def test_rows_of_the_matrix_are_those_of_the_whole(name, causal, padded):
    """In any order, repeated or all of them, with their gradients; first, last and in between, hidden or not."""
    if padded:
        needs_padding(name)
    attention, given = make(name, causal=causal), [tensor.requires_grad_() for tensor in inputs(name)]
    query, key, value = given
    leaves = [*given, *attention.parameters()]
    mask = padding_mask() if padded else None
    whole = matrix(attention, query, key, mask, value)
    for rows in ([LENGTH - 1, 0, BLOCK, 17, 17], [*range(LENGTH)][::-1], []):
        rows = torch.tensor(rows, dtype=torch.int64)
        some, expected = attention.attention_matrix(query, key, mask, value=value, rows=rows), whole[:, :, rows]
        assert some.shape == expected.shape and some.dtype == expected.dtype
        torch.testing.assert_close(some, expected, rtol=0, atol=tolerance(name))
        if len(rows) and whole.requires_grad:
            for pair in zip(*(gradients(x, leaves, retain_graph=True) for x in (some, expected)), strict=True):
                assert_close(name, *pair)


@every_case
def test_rows_of_the_matrix_take_no_n_by_n_memory(name, causal):
    """Not even a mask of bytes."""
    if attention_zoo.info(name).package:
        pytest.skip("its matrix is what another package makes of the identity")
    n, blocks = 4096, dict.fromkeys({"block_size", "bucket_size"} & attention_zoo.hyperparameters(name).keys(), 64)
    attention = make(name, causal=causal, max_seq_len=n, num_heads=1, **blocks)
    query, key, value = inputs(name, n, batch=1, heads=1)
    with torch.no_grad(), LargestTensor() as largest:
        attention.attention_matrix(query, key, value=value, rows=torch.tensor([3, n // 2]))
    assert 0 < largest.bytes < n**2


@pytest.mark.parametrize("at_once", [1, 2**24], ids=["chunks", "whole"])
@every_case
def test_output_rows_are_those_of_forward_with_their_gradients_by_another_algorithm(name, causal, at_once, monkeypatch):
    """An oracle that ran what it judges would agree with every mistake."""
    monkeypatch.setattr(base, "MAX_ENTRIES", at_once)
    attention, given = make(name, causal=causal), [tensor.requires_grad_() for tensor in inputs(name)]
    leaves = [*given, *attention.parameters()]
    items, positions = torch.tensor([0, 2]), torch.tensor([0, LENGTH // 2, LENGTH - 1])
    some, expected = [tensor[items] for tensor in given], attention(*given)[items][:, :, positions]
    if not attention_zoo.info(name).package:  # whose matrix would take n times as long
        monkeypatch.setattr(type(attention), "_attend", None)
    rows = attention.output_rows(*some, positions=positions, items=items, batch_size=len(given[0]))
    assert rows.shape == expected.shape and rows.dtype == expected.dtype
    assert_close(name, rows, expected)
    for pair in zip(gradients(rows, leaves), gradients(expected, leaves), strict=True):
        assert_close(name, *pair)


@every_case
def test_strides_and_other_batch_items_do_not_matter(name, causal):
    attention, given = make(name, causal=causal), inputs(name)
    expected = attention(*given)
    strided = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in given]
    assert_close(name, attention(*strided), expected)
    others = [torch.cat([tensor[:1], 8 * tensor[1:].flip(2)]) for tensor in given]
    assert_close(name, attention(*others)[0], expected[0])


@every_name
def test_cross_attention_or_refusal(name):
    attention, (query, key, value) = make(name), inputs(name, LENGTH // 2, keys=LENGTH)
    if not attention_zoo.info(name).cross:
        with pytest.raises(UnsupportedError, match=name):
            attention(query, key, value)
        return
    output = attention(query, key, value, padding_mask() if attention_zoo.info(name).padding else None)
    assert output.shape == query.shape
    assert_close(name, attention(query, key, value), matrix(attention, query, key, None, value) @ value)


# --- What is claimed of it -------------------------------------------------------------------------


@every_case
def test_an_exact_mechanism_is_what_it_approximates_and_no_other_is(name, causal):
    """Where all its parts are at work: at its minimal test length."""
    info = attention_zoo.info(name)
    if info.approximates is None:
        assert info.exact, "a function of its own is exact"
        return
    attention = make(name, causal=causal, num_heads=1, max_seq_len=4096)
    given = inputs(name, attention.min_test_length, batch=1, heads=1)
    expected = make(info.approximates, causal=causal, num_heads=1, max_seq_len=4096)(*given)
    if info.exact:
        assert_close(name, attention(*given), expected)
    else:
        assert (attention(*given) - expected).norm() > 1e-2 * expected.norm()


@every_case
def test_the_min_test_length_is_odd_beyond_a_vector_several_blocks_and_a_part_of_one(name, causal):
    known = attention_zoo.hyperparameters(name)
    length = make(name, causal=causal, max_seq_len=4096).min_test_length
    # In a longer sequence the few exact rows of this Informer could all be wrong and yet be few.
    assert type(length) is int and (length > 64 or name == "informer") and length % 8, "a part of a vector is left"
    for key in {"block_size", "bucket_size"} & known.keys():
        for size in (2, 3, 5, 16, 65, 100):
            length = make(name, causal=causal, **{key: size}).min_test_length
            assert length > 3 * size and length % size
    size = attention_zoo.info(name).size
    if size is not None and name not in ("performer", "polysketch"):  # these do not become exact by size
        assert all(make(name, causal=causal, **{size: d}).min_test_length > 2 * d for d in (3, 40, 100))


@every_case
def test_only_what_depends_on_comparisons_jumps(name, causal):
    """Along a path from one input to another, into ever smaller halves, each time that in which the output moves more.

    What is continuous moves less and less; where rows or columns swap, the jump stays.
    """
    attention, start, end = make(name, causal=causal), inputs(name), inputs(name, seed=1)
    precision = 45 if best_dtype(name) == torch.float64 else 18

    def output(t):
        return attention(*(a + t * (b - a) for a, b in zip(start, end, strict=True)))

    with torch.no_grad():
        left, right = 0.0, 1.0
        first, last = output(left), output(right)
        for _ in range(precision):
            middle = (left + right) / 2
            between = output(middle)
            if (between - first).abs().max() > (last - between).abs().max():
                right, last = middle, between
            else:
                left, first = middle, between
    jumps = bool((last - first).abs().max() > 1e-2)
    assert jumps == attention_zoo.info(name).data_dependent


# --- What it must not see -------------------------------------------------------------------------


@every_case
def test_padding_is_not_seen(name, causal):
    needs_padding(name)
    attention, (query, key, value), mask = make(name, causal=causal), inputs(name), padding_mask()
    hidden = mask[:, None, :, None]
    expected = attention(query, key, value, mask)
    for factor in (8, -100):
        other = torch.where(hidden, factor * key, key), torch.where(hidden, factor * (value + 1), value)
        assert_close(name, attention(query, *other, mask), expected)
    plain = attention(query, key, value)
    assert changes(plain, expected)
    assert expected.isfinite().all() and (expected[0] != 0).any()
    assert (expected[2] == 0).all(), "padding only gives zeros"
    assert_close(name, attention(query, key, value, torch.zeros_like(mask)), plain)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("name", [name for name in NAMES if attention_zoo.info(name).causal])
def test_the_future_is_not_seen(name, padded):
    """Eightfold, because a leak through a maximum shows only when the future holds the maximum."""
    if padded:
        needs_padding(name)
    attention, given = make(name, causal=True), inputs(name)
    mask = padding_mask() if padded else None
    expected = attention(*given, mask)
    for cut in (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, LENGTH - 1):
        for sign in (8, -8):
            other = [torch.cat([tensor[:, :, :cut], sign * tensor[:, :, cut:]], dim=2) for tensor in given]
            output = attention(*other, mask)
            assert_close(name, output[:, :, :cut], expected[:, :, :cut])
            assert padded or changes(output[:, :, cut:], expected[:, :, cut:])


@every_name
def test_causality_that_it_cannot_have_is_refused(name):
    if takes_causal(name):
        with pytest.raises(UnsupportedError, match="causal"):
            make(name, causal=True)(*inputs(name, LENGTH // 2, keys=LENGTH))
    allowed = {True: takes_causal(name), False: attention_zoo.info(name).bidirectional}
    for causal in (causal for causal in (True, False) if not allowed[causal]):
        with pytest.raises(UnsupportedError, match=f"^causal={str(causal).lower()}: {name}"):
            make(name, causal=causal)


# --- Randomness and state -------------------------------------------------------------------------


@every_case
def test_the_seed_decides_everything(name, causal):
    given = inputs(name)
    attention = make(name, causal=causal, seed=1)
    expected = attention(*given)
    assert torch.equal(attention(*given), expected)
    assert torch.equal(make(name, causal=causal, seed=1)(*given), expected)
    attention(*inputs(name, LENGTH // 2, batch=1))
    assert torch.equal(attention(*given), expected), "an input of another shape left something behind"
    attention.resample(2)
    assert torch.equal(attention(*given), make(name, causal=causal, seed=2)(*given))
    assert changes(attention(*given), expected) == attention_zoo.info(name).random
    attention.resample(1)
    assert torch.equal(attention.eval()(*given), expected), "training mode computes the same"


@every_case
def test_global_random_state_is_neither_read_nor_changed(name, causal):
    given = inputs(name)

    def use():
        attention = make(name, causal=causal)
        outputs = [attention(*given)]
        attention.resample(5)
        return torch.stack([*outputs, attention(*given)])

    torch.manual_seed(0)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    first = use()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()
    torch.manual_seed(1)
    assert torch.equal(use(), first)


@every_case
def test_a_state_dict_defines_the_function(name, causal, tmp_path):
    saved, loaded, given = make(name, causal=causal, seed=1), make(name, causal=causal, seed=2), inputs(name)
    saved(*given), loaded(*given)
    torch.save(saved.state_dict(), tmp_path / "state.pt")
    loaded.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    expected = saved(*given)
    assert torch.equal(loaded(*given), expected)
    copied = copy.deepcopy(saved)
    assert torch.equal(copied(*given), expected)
    copied.resample(9)
    assert torch.equal(saved(*given), expected), "a copy is independent"


# --- Gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@every_case
def test_gradients_are_finite_and_reach_what_the_output_depends_on(name, causal, padded):
    if padded:
        needs_padding(name)
    attention, mask = make(name, causal=causal), padding_mask() if padded else None
    given = [tensor.requires_grad_() for tensor in inputs(name)]
    with torch.inference_mode():
        attention(*given, mask)  # what it caches must not spoil a training step
    output = attention(*given, mask)
    leaves = [*given, *attention.parameters()]
    found = gradients(output.square(), leaves)
    assert all(gradient.isfinite().all() for gradient in found)
    for index, gradient in enumerate(found[:3]):
        moved = [tensor.flip(-1) if i == index else tensor for i, tensor in enumerate(given)]
        assert changes(attention(*moved, mask), output) == (gradient.abs().max().item() > 1e-6)
    assert all((gradient != 0).any() for gradient in found[3:])


@pytest.mark.parametrize("length", [1, 2, BLOCK, BLOCK + 1, LENGTH])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@every_case
def test_outputs_and_gradients_are_those_of_attention_matrix_times_value(name, causal, padded, length):
    """Over several blocks: what a backward pass of its own recomputes, autograd derives from the dense matrix.

    Padding has none, nor has the query of a batch item that is padding only.
    """
    if padded:
        needs_padding(name)
    attention, mask = make(name, causal=causal), padding_mask(length) if padded else None
    given = [tensor.requires_grad_() for tensor in inputs(name, length)]
    leaves = [*given, *attention.parameters()]
    query, key, value = given
    weights = matrix(attention, query, key, mask, value)
    assert weights.shape == (*query.shape[:3], key.shape[2]) and weights.dtype == query.dtype
    dense = weights @ value
    outputs = attention(query, key, value, mask), dense
    assert_close(name, *outputs)
    found, expected = (gradients(output, leaves) for output in outputs)
    for pair in zip(found, expected, strict=True):
        assert_close(name, *pair)
    if padded:
        assert all((gradient.masked_select(mask[:, None, :, None]) == 0).all() for gradient in found[1:3])
        assert all((gradient[2] == 0).all() for gradient in found[:3])
        assert found[2].abs().sum() > 0 or length == 1


@every_case
def test_gradients_equal_finite_differences(name, causal):
    """Of a fixed draw: the steps are far too small to change which rows or columns are selected."""
    if torch.float64 not in attention_zoo.info(name).dtypes:
        pytest.skip("refuses float64")
    if name == "lucidrains_performer":
        pytest.skip("performer-pytorch differentiates as if its largest exponents were constants")
    attention = make(name, causal=causal, head_dim=3, num_heads=1, max_seq_len=6)
    given = [t.requires_grad_() for t in inputs(name, 6, batch=1, heads=1, head_dim=3)]
    mask = torch.tensor([[False, False, True, False, False, True]]) if attention.info.padding else None
    scale = attention(*given, mask).detach().abs().max()
    assert torch.autograd.gradcheck(lambda *qkv: attention(*qkv, mask) / scale, given, atol=1e-5)


# --- Extreme inputs -------------------------------------------------------------------------------


def extreme_queries_and_keys(length=LENGTH):
    """Float64 pairs; the largest |q| |k| of those whose rows are not constant is 1000."""
    directions = torch.randn(2, 3, HEADS, length, HEAD_DIM, generator=torch.Generator().manual_seed(4)).double()
    query, key = directions / directions.norm(dim=-1, keepdim=True)
    row = query[:, :, :1].expand_as(query)
    one_hot = torch.eye(HEAD_DIM, dtype=torch.float64)[torch.arange(length) % HEAD_DIM].expand_as(query)
    norms = 10 ** torch.linspace(-3, 3, length, dtype=torch.float64)[:, None]
    root = 1000**0.5
    return {
        "large": (root * query, root * key),
        "the same everywhere": (root * row, root * row),
        "opposite": (root * row, -root * row),
        "one-hot": (root * one_hot, root * one_hot),
        "ever larger keys": (query, norms * key),
        "ever smaller keys": (query, norms.flip(0) * key),
        "zero": (torch.zeros_like(query), torch.zeros_like(key)),
    }


EXTREMES = [(torch.float32, kind) for kind in extreme_queries_and_keys()]
EXTREMES += [(torch.bfloat16, kind) for kind in ("large", "ever larger keys", "zero")]


@pytest.mark.parametrize("dtype, kind", EXTREMES, ids=str)
@every_case
def test_extreme_inputs_give_finite_outputs_and_gradients(name, causal, dtype, kind):
    if dtype not in attention_zoo.info(name).dtypes:
        pytest.skip(f"refuses {dtype}")
    attention = make(name, causal=causal, dtype=dtype)
    for length in (1, LENGTH):
        for mask in (None, padding_mask(length)) if attention.info.padding else (None,):
            extreme = *extreme_queries_and_keys(length)[kind], inputs(name, length)[2]
            given = [tensor.to(dtype).requires_grad_() for tensor in extreme]
            output = attention(*given, mask)
            assert output.isfinite().all()
            leaves = [*given, *attention.parameters()]
            assert all(gradient.isfinite().all() for gradient in gradients(output.float().square(), leaves))


# --- What it refuses ------------------------------------------------------------------------------


@every_name
def test_bad_inputs_are_refused(name):
    attention, (query, key, value) = make(name), inputs(name)
    for bad in (query[0], query[:, :1], query[..., :-1], query[:, :, :0]):
        with pytest.raises(ValueError, match=r"^(query|seq_len)\b.*: must be"):
            attention(bad, bad, bad)
    with pytest.raises(ValueError, match=r"^value\.shape="):
        attention(query, key, value[:, :, 1:])
    with pytest.raises(ValueError, match=r"^key\.shape="):
        attention(query, key[:1], value[:1])
    with pytest.raises(ValueError, match=r"^key\.dtype="):
        attention(query, key.half(), value)
    with pytest.raises(UnsupportedError, match="int64"):
        attention(query.long(), key.long(), value.long())
    with pytest.raises(ValueError, match=rf"^seq_len={LENGTH + 1}: must be between 1 and max_seq_len={LENGTH}"):
        attention(*inputs(name, LENGTH + 1))


def test_rows_and_items_that_are_not_there_are_refused():
    attention, (query, key, value) = make("softmax"), inputs("softmax")
    for given, said in (
        ({"items": torch.tensor([0, 3, 5])}, r"items=\[5\]: must be between 0 and 4"),
        ({"items": torch.tensor([0, 1])}, r"items=\[0, 1\]: must be 3 of them"),
        ({"positions": torch.tensor([LENGTH])}, rf"positions=\[{LENGTH}\]: must be between 0 and {LENGTH - 1}"),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            attention.output_rows(query, key, value, **({"positions": torch.tensor([0]), "batch_size": 5} | given))
    for rows, said in (
        ([-1], rf"rows=\[-1\]: must be between 0 and {LENGTH - 1}"),
        ([0, LENGTH], rf"rows=\[{LENGTH}\]: must be between 0"),
        ([True] * LENGTH, r"rows\.dtype="),
        (1, r"rows\.shape="),
    ):
        with pytest.raises(ValueError, match=f"^{said}"):
            attention.attention_matrix(query, key, rows=torch.tensor(rows))
    with pytest.raises(ValueError, match=r"^key\.shape="):
        attention.attention_matrix(query, key[:1])


@every_name
def test_bad_masks_are_refused(name):
    attention, given = make(name), inputs(name)
    if not attention_zoo.info(name).padding:
        with pytest.raises(UnsupportedError, match="key_padding_mask"):
            attention(*given, padding_mask())
        return
    with pytest.raises(ValueError, match=r"^key_padding_mask\.shape="):
        attention(*given, padding_mask()[:, 1:])
    with pytest.raises(ValueError, match=r"^key_padding_mask\.dtype="):
        attention(*given, padding_mask().float())


@every_name
def test_bad_arguments_are_refused_by_name(name):
    for key, bad in [("head_dim", 0), ("num_heads", 1.5), ("seed", -1), ("causal", 1), ("impl", "fast")]:
        with pytest.raises(ValueError, match=f"^{key}={bad!r}: must be"):
            make(name, **{key: bad})
    for impl in {"reference", "fused"} - set(attention_zoo.info(name).implementations):
        with pytest.raises(UnsupportedError, match=f"impl={impl}"):
            make(name, impl=impl)
    with pytest.raises(ValueError, match=r"^colour='red': unknown"):
        make(name, colour="red")
    of_kind = {bool: (1, None), int: (-1, 2.5, True, "4"), float: (math.nan, "0"), str: ("other",)}
    for key, default in attention_zoo.hyperparameters(name).items():
        with pytest.raises(ValueError, match=f"^{key}_=1: unknown; did you mean {key}"):
            make(name, **{f"{key}_": 1})
        for bad in of_kind.get(type(default), ()):
            with pytest.raises(ValueError, match=f"^{key}={bad!r}: must be"):
                make(name, **{key: bad})


@pytest.mark.parametrize("name", [name for name in attention_zoo.list_attentions() if attention_zoo.info(name).package])
def test_without_its_package_it_is_listed_and_refused(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    package = attention_zoo.info(name).package
    reason = rf"^{name}: needs the package {package}: pip install {package} \(no module \w+\)$"
    with pytest.raises(UnsupportedError, match=reason):
        attention_zoo.create(name, head_dim=HEAD_DIM, num_heads=HEADS, causal=takes_causal(name), max_seq_len=LENGTH)


@pytest.mark.parametrize(
    "name", [name for name in attention_zoo.list_attentions() if not attention_zoo.info(name).package]
)
def test_a_printed_mechanism_says_its_settings(name):
    own, size = attention_zoo.hyperparameters(name), attention_zoo.info(name).size
    printed = repr(make(name, seed=3, block_size=2) if "block_size" in own else make(name, seed=3)).splitlines()
    said = printed[0] if len(printed) == 1 else printed[1]
    assert f"head_dim={HEAD_DIM}, num_heads={HEADS}" in said and "seed=3" in said
    expected = own | ({} if size is None else {size: SIZE}) | {key: 2 for key in ("block_size",) if key in own}
    assert all(f"{key}={value!r}" in said for key, value in expected.items() if key != "bucket_size")


@every_case
def test_what_ran_is_noted_and_what_was_asked_for_stays(name, causal):
    info, given = attention_zoo.info(name), inputs(name)
    for impl in ("auto", *info.implementations):
        attention = make(name, causal=causal, impl=impl)
        assert attention.impl == impl and attention.executed is None
        try:
            attention(*given)
        except UnsupportedError as error:
            assert impl == "fused" and str(error).startswith("impl=fused: ")
            assert attention.executed is None
            continue
        assert attention.impl == impl
        assert attention.executed.impl == impl or impl == "auto"
        assert (attention.executed.backend is None) == (attention.executed.impl == "reference")


NUMBERS = "a list of 2 to 7 numbers"
OUT_OF_RANGE = [
    ("bigbird", "num_random_blocks", (-1, True), "an integer"),
    ("flash", "backend", ("math",), "one of auto, flash"),
    ("informer", "num_samples", (0,), "an integer"),
    ("linear", "eps", (-1e-9, "0"), "a finite number at least 0"),
    ("linear", "block_size", (0,), "an integer"),
    ("linformer", "init_std", (0, -1.0), "a finite number above 0"),
    ("linformer", "max_seq_len", (None,), "an integer"),
    ("lucidrains_linformer", "max_seq_len", (None,), "an integer"),
    ("nystromformer", "conv_kernel_size", (0, True), "an integer"),
    ("nystromformer", "conv_kernel_size", (34,), "odd, or None"),
    ("performer", "eps", (-1e-6,), "a finite number at least 0"),
    ("performer", "redraw_interval", (0,), "an integer"),
    ("polynomial", "degree", (3,), "even"),
    ("polynomial", "scale", (0, -1.0), "a finite number above 0"),
    ("polynomial", "bias", (-1,), "a finite number at least 0"),
    ("polynomial_square", "degree", (7,), "at most 6"),
    ("polynomial_square", "coefficients", ((), [1.0], [1.0] * 8, 3, "123", {0: 1.0, 1: 1.0}), NUMBERS),
    ("polynomial_square", "coefficients", ([1.0, "2"], [1.0, None], [1.0, True], [1.0, math.nan]), "a finite number"),
    ("polynomial_square", "coefficients", ([0, 0.0, 0],), "not all zero"),
    ("polysketch", "degree", (6, 1), "a power of two"),
    ("polysketch", "scale", (0,), "a finite number above 0"),
    ("softmax", "scale", (0, math.nan), "a finite number above 0"),
]


@pytest.mark.parametrize("name, key, values, allowed", OUT_OF_RANGE)
def test_hyperparameters_out_of_range_are_refused(name, key, values, allowed):
    for bad in values:
        with pytest.raises(ValueError, match=rf"^{key}=.*: must be {allowed}"):
            make(name, **{key: bad})


def test_hyperparameters_that_do_not_go_together_are_refused():
    for key in ("sketch_size", "head_dim"):
        with pytest.raises(ValueError, match=f"^{key}=6: must be a power of two"):
            make("polysketch", sketch="srht", **{key: 6})
    with pytest.raises(ValueError, match=r"^coefficients=.*: must be a list of 3 numbers"):
        make("polynomial_square", coefficients=[1.0, 2.0], degree=2)
    with pytest.raises(UnsupportedError, match=r"^local=true: .*causal=true"):
        make("polysketch", local=True)
