"""What every registered mechanism promises, whatever it computes. A new mechanism is tested by existing."""

import copy
import dataclasses
import random

import numpy as np
import pytest
import torch
from contract import (
    BLOCK,
    DTYPES,
    HEAD_DIM,
    HEADS,
    LENGTH,
    assert_close,
    best_dtype,
    changes,
    every_case,
    every_name,
    inputs,
    make,
    matrix,
    needs_padding,
    padding_mask,
    tolerance,
)
from small import LargestTensor, gradients
from zoo_cases import NAMES, takes_causal

import attention_zoo
from attention_zoo import UnsupportedError, base
from bench.measures.flops import count

# What a fast path computes beyond the formula, because it is faster: the diagonal blocks of a causal mask whole (up to
# a fifth at this length), the scores of all keys instead of those of sampled ones.
MORE_WORK = {"informer": 5}

# What less precision costs: reformer-pytorch gives a position's own key the score -5e4, which float32 rounds by 2e-3.
ROUNDING = {("lucidrains_reformer", torch.float32): 5e-3}

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


@every_case
def test_flops_are_those_of_a_counted_run(name, causal):
    """At a size where products outweigh what no formula counts, and at a length that no block size divides."""
    length, whole = 500, 512
    info, known = attention_zoo.info(name), attention_zoo.hyperparameters(name)
    sizes = dict.fromkeys({info.size, "block_size", "bucket_size"} & known.keys(), 64)
    given = inputs(name, length, batch=1, head_dim=32)
    for impl in info.implementations:
        if info.package and impl == "reference":
            continue  # it works entry by entry, which is not counted
        attention = make(name, causal=causal, impl=impl, head_dim=32, max_seq_len=whole, **sizes)
        try:
            with torch.no_grad():
                counted = sum(count(lambda: attention(*given)).values())  # noqa: B023
        except UnsupportedError:
            assert impl == "fused"
            continue  # a kernel that needs a GPU
        if causal and name == "lucidrains_performer":
            counted += HEADS * length * 64 * 32  # outer products entry by entry, of which only the sums are counted
        flops = attention.flops(1, length)
        assert type(flops) is int and attention.flops(3, length) == 3 * flops
        if flops == 0:  # it copies
            assert counted == 0
            continue
        assert flops <= attention.flops(1, whole) < 1.06 * flops, "of as many blocks, now whole"
        exactly = impl == "reference" or info.package
        assert 0.95 < counted / flops < (1.05 if exactly else MORE_WORK.get(name, 1.2))


# --- What it computes -----------------------------------------------------------------------------


@every_case
def test_dtypes_agree(name, causal):
    """The same inputs and state in less precision give the same output but for rounding."""
    exact, given = make(name, causal=causal), [tensor.bfloat16() for tensor in inputs(name)]
    expected = exact(*(tensor.to(best_dtype(name)) for tensor in given)).double()
    # Float32 rounds at 6e-8, bfloat16 at 4e-3 and float16 at 5e-4; fourth powers and ratios lose a digit or so.
    usual = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 0.01}
    for dtype in usual.keys() & set(attention_zoo.info(name).dtypes):
        rounded = make(name, causal=causal, dtype=dtype)
        rounded.load_state_dict(exact.state_dict())
        actual = rounded(*(tensor.to(dtype) for tensor in given))
        assert actual.dtype == dtype and actual.shape == given[0].shape
        assert (actual.double() - expected).norm() < ROUNDING.get((name, dtype), usual[dtype]) * expected.norm()


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
        if 0 < len(rows) < LENGTH and whole.requires_grad:
            assert_close(name, *(gradients(x, leaves, retain_graph=True) for x in (some, expected)))


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


@every_case
def test_output_rows_are_those_of_forward_with_their_gradients_by_another_algorithm(name, causal, monkeypatch):
    """An oracle that ran what it judges would agree with every mistake. Two rows at once, then the third."""
    monkeypatch.setattr(base, "MAX_ENTRIES", 2 * HEADS * LENGTH)
    attention, given = make(name, causal=causal), [tensor.requires_grad_() for tensor in inputs(name)]
    leaves = [*given, *attention.parameters()]
    items, positions = torch.tensor([0, 2]), torch.tensor([0, LENGTH // 2, LENGTH - 1])
    some, expected = [tensor[items] for tensor in given], attention(*given)[items][:, :, positions]
    if not attention_zoo.info(name).package:  # whose matrix would take n times as long
        monkeypatch.setattr(type(attention), "_attend", None)
    rows = attention.output_rows(*some, positions=positions, items=items, batch_size=len(given[0]))
    assert rows.shape == expected.shape and rows.dtype == expected.dtype
    assert_close(name, rows, expected)
    assert_close(name, gradients(rows, leaves), gradients(expected, leaves))


@every_case
def test_strides_and_other_batch_items_do_not_matter(name, causal):
    attention, given = make(name, causal=causal), inputs(name)
    expected = attention(*given)
    strided = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in given]
    assert_close(name, attention(*strided), expected)
    others = [torch.cat([tensor[:1], 8 * tensor[1:].flip(2)]) for tensor in given]
    assert_close(name, attention(*others)[0], expected[0])


@every_case
@pytest.mark.parametrize("batch, queries, keys", [(0, LENGTH, LENGTH), (2, LENGTH, 0), (2, 0, LENGTH)])
def test_nothing_to_attend_to_gives_zeros(name, causal, batch, queries, keys):
    if queries != keys and (causal or not attention_zoo.info(name).cross):
        pytest.skip("refuses other keys than queries")
    query, key, value = (inputs(name, n, batch=batch)[0].requires_grad_() for n in (queries, keys, keys))
    attention = make(name, causal=causal)
    out = attention(query, key, value)
    assert out.shape == query.shape and not out.any() and attention.executed.impl == "reference"
    for x, gradient in zip((query, key, value), gradients(out, (query, key, value)), strict=True):
        assert gradient.shape == x.shape and not gradient.any()


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

    def output(t):
        return attention(*(a + t * (b - a) for a, b in zip(start, end, strict=True)))

    with torch.no_grad():
        left, right = 0.0, 1.0
        first, last = output(left), output(right)
        for _ in range(18):
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
    for cut in (BLOCK, LENGTH - 1) if padded else (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK):
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


@every_name
def test_it_leaves_the_meta_device_empty(name):
    """As a model too large for one process is made: `to_empty`, then `load_state_dict`."""
    attention = make(name, device="meta").to_empty(device="cpu")
    assert {x.device.type for x in (*attention.parameters(), *attention.buffers())} | {attention.device.type} == {"cpu"}


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
