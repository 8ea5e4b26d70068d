"""The small instances of every mechanism that the tests of its promises look at."""

import pytest
import torch
from small import assert_close as close
from small import padding_mask as padding_of_length
from small import sized
from zoo_cases import CASES, NAMES

import attention_zoo
from attention_zoo import UnsupportedError

HEADS, HEAD_DIM, SIZE, BLOCK = 2, 8, 4, 4
LENGTH = 37  # no block size divides it, and it is several blocks long
draw = sized(LENGTH, heads=HEADS, h=HEAD_DIM)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)

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
    close(actual, expected, tolerance(name))


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
