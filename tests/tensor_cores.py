"""Products in Triton's interpreter as tensor cores make them: pytest's `--tensor-cores`.

float32 is split into two numbers of 11 bits, and three of the four products of these are added (`tf32x3`). Sums have
24 bits and drop what is below (Fasi, Higham, Mikaitis, Pranesh 2021, "Numerical behavior of NVIDIA tensor cores",
section 4), some products at a time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from closeness import use_tensor_cores

Numbers = npt.NDArray[np.float32]
# Products that are added before their sum is cut.
AT_ONCE_TF32, AT_ONCE_16_BITS = 8, 16


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tensor-cores", action="store_true", help="multiply as a GPU does where kernels are interpreted")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("tensor_cores"):
        from triton.runtime.interpreter import InterpreterBuilder

        use_tensor_cores()
        InterpreterBuilder.create_dot = create_dot


def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: int) -> Any:
    """`a @ b + d` of the interpreter's tensors."""
    from triton.runtime.interpreter import TensorHandle

    one, other = (np.asarray(x.data) for x in (a, b))
    if one.dtype == np.float32 and "TF32x3" in str(input_precision):
        sums = three_products(one, other)
    else:
        sums = multiplied(one, other, np.zeros(d.data.shape, np.float32), AT_ONCE_16_BITS)
    return TensorHandle((sums + d.data).astype(np.float32), d.dtype.scalar)


def three_products(one: Numbers, other: Numbers) -> Numbers:
    """The small ones first, as Triton adds them; where a part is infinite the rest of it is nothing."""
    (high, low), (other_high, other_low) = map(parts, (one, other))
    sums = np.zeros((*one.shape[:-1], other.shape[-1]), np.float32)
    sums = multiplied(low, other_high, sums, AT_ONCE_TF32)
    sums = multiplied(high, other_low, sums, AT_ONCE_TF32)
    sums = np.where(np.isnan(sums), np.float32(0), sums)
    return multiplied(high, other_high, sums, AT_ONCE_TF32)


def parts(x: Numbers) -> tuple[Numbers, Numbers]:
    """The 11 bits nearest to x, and the first 11 of what is left."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    kept = np.uint32(0xFFFFE000)
    high = ((bits + np.uint32(0x1000)) & kept).view(np.float32)
    with np.errstate(invalid="ignore"):
        rest = np.ascontiguousarray(x - high)
    return high, (rest.view(np.uint32) & kept).view(np.float32)


def multiplied(one: Numbers, other: Numbers, sums: Numbers, at_once: int) -> Numbers:
    """`sums + one @ other`, whose sums are cut after so many products."""
    with np.errstate(all="ignore"):
        for k in range(0, one.shape[-1], at_once):
            some = one[..., k : k + at_once].astype(np.float64) @ other[..., k : k + at_once, :].astype(np.float64)
            sums = cut(some + sums)
    return sums


def cut(x: npt.NDArray[np.float64]) -> Numbers:
    """The float32 next to x towards zero."""
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)
