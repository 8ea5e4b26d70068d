"""The sketch-error measure against explicit tensor powers, exact quadrature and the laws that Theorem 1.1 states."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from cells import Given

import attention_zoo
from attention_zoo import UnsupportedError
from bench.common.errors import NonFiniteError
from bench.measures import sketch_error
from bench.measures.sketch_error import SketchError, expected_squares


class CellContext(Given):
    """Polysketch, or another mechanism, on inputs given by hand."""

    def __init__(self, name="polysketch", shape=(2, 3, 12, 4), repeats=2, seed=0, inputs=None, dtype=None, **given):
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
        # Queries near their keys, so that exact weights matter beside the bias of the sketched ones.
        drawn[1] = drawn[0] + 0.5 * drawn[1]
        self.made = attention_zoo.create(name, head_dim=shape[3], num_heads=shape[1], dtype=dtype, **given)
        super().__init__(self.made, inputs or tuple(x.to(dtype or torch.float64) for x in drawn), None, seed, repeats)


def measure(context):
    return SketchError().measure(context)


def tensor_power(x, degree):
    """The rows of `x` `(n, h)` as explicit tensors `(n, h^degree)`."""
    power = np.ones((len(x), 1))
    for _ in range(degree):
        power = np.einsum("na,nb->nab", power, x).reshape(len(x), -1)
    return power


GIVEN = [("gaussian", 4, True), ("gaussian", 8, False), ("srht", 8, False), ("learned", 4, False), ("learned", 8, True)]


@pytest.mark.parametrize("sketch, degree, per_head", GIVEN)
def test_errors_are_those_of_explicit_tensor_powers(sketch, degree, per_head, monkeypatch):
    monkeypatch.setattr(sketch_error, "ROWS_AT_ONCE", 5)
    options = {"sketch": sketch, "degree": degree, "per_head": per_head, "sketch_size": 8, "scale": 0.7}
    bench = CellContext(repeats=1, seed=3, **options)
    result = measure(bench)
    for which in ("kernel", "sketch"):  # a closed form is known for the first alone
        assert (result[f"{which}_expected"] is None) == ((sketch, degree) != ("gaussian", 4))
    for sequence, head in itertools.product(range(2), range(3)):
        bench.made.resample(3 * 2 + sequence)
        q, k = (bench.made.layernorm(x) * 0.7**0.5 for x in bench.inputs()[:2])
        left, right = (bench.made.sketch(x)[sequence, head].detach().numpy() for x in (q, k))
        q, k = (x[sequence, head].detach().numpy() for x in (q, k))
        for name, power, features in (
            ("kernel_error", degree, [tensor_power(left, 2), tensor_power(right, 2)]),
            ("sketch_error", degree // 2, [left, right]),
        ):
            exact = [tensor_power(q, power), tensor_power(k, power)]
            error = np.linalg.norm(features[0] @ features[1].T - exact[0] @ exact[1].T)
            relative = error / np.linalg.norm(exact[0]) / np.linalg.norm(exact[1])
            assert result[name][sequence][head] == pytest.approx(relative, rel=1e-9)


def moment_by_quadrature(inner, norm_q, norm_k, power):
    """`E (<q, g> <k, g>)^power` for standard normal g: Gauss-Hermite quadrature, exact for polynomials."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    weights = weights / weights.sum()
    along, across = np.meshgrid(nodes, nodes, indexing="ij")
    cosine = inner / (norm_q * norm_k)
    products = norm_q * along * norm_k * (cosine * along + math.sqrt(1 - cosine**2) * across)
    return float((np.outer(weights, weights) * products**power).sum())


@pytest.mark.parametrize("r", [1, 2, 5])
@pytest.mark.parametrize("inner", [0.0, -1.1, 1.5])
def test_the_closed_form_is_the_sum_over_all_choices_of_columns(r, inner):
    """`E (mean_a X_a)^4` term by term, X_a a product of two independent `<q, g> <k, g>`."""
    norm_q, norm_k = 1.5, 1.0
    of_x = [moment_by_quadrature(inner, norm_q, norm_k, power) ** 2 for power in range(5)]

    def moment(power):
        terms = itertools.product(range(r), repeat=power)
        counts = (np.bincount(term, minlength=r) for term in terms)
        return sum(math.prod(of_x[count] for count in one) for one in counts) / r**power

    kernel, sketch = expected_squares(torch.tensor(inner), torch.tensor((norm_q * norm_k) ** 2), r)
    c2 = inner**2
    assert sketch.item() == pytest.approx(moment(2) - 2 * c2 * moment(1) + c2**2, rel=1e-5, abs=1e-6)
    assert kernel.item() == pytest.approx(moment(4) - 2 * c2**2 * moment(2) + c2**4, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("r", "per_head"), [(64, True), (128, False)])  # of fewer columns the tails are too long
def test_gaussian_errors_are_as_expected_and_fall_with_r(r, per_head):
    trials = 100  # a standard error of the mean square is 2 to 4 %
    shape = (1, 2, 16, 8)
    result = measure(CellContext(shape=shape, repeats=trials, sketch_size=r, per_head=per_head))
    assert len(result["kernel_error"]) == trials and len(result["kernel_expected"]) == 1
    for name in ("kernel", "sketch"):
        squares = np.square(result[f"{name}_error"]).mean(1)
        expected = np.square(result[f"{name}_expected"]).mean()
        assert abs(squares.mean() - expected) < 5 * squares.std(ddof=1) / trials**0.5
    # Theorem 2.2: the expected square of the un-tensored sketch's error is exactly proportional to 1/r.
    other = measure(CellContext(shape=shape, repeats=1, sketch_size=4 * r))
    assert other["sketch_expected"][0] == pytest.approx([x / 2 for x in result["sketch_expected"][0]], rel=1e-9)


@pytest.mark.parametrize(("sketch", "degree"), [("gaussian", 8), ("srht", 4), ("learned", 4)])
def test_weights_are_never_negative_and_without_the_square_they_are(sketch, degree):
    bench = CellContext(shape=(2, 3, 40, 8), sketch=sketch, degree=degree, sketch_size=16)
    result = measure(bench)
    assert np.min(result["smallest_weight"]) > -1e-12
    if sketch == "learned":
        assert result["negative_share"] is None
    else:
        assert 0.05 < np.mean(result["negative_share"]) < 0.7
    # The weight over the norms of its features is the squared cosine of L and R.
    bench.made.resample(0)
    first = [bench.made.features(x)[0, :, : sketch_error.EXPLICIT_ROWS].detach() for x in bench.inputs()[:2]]
    left, right = (x / x.norm(dim=-1, keepdim=True) for x in first)
    smallest = (left @ right.mT).square().amin((1, 2))
    assert result["smallest_weight"][0] == pytest.approx(smallest.tolist(), rel=1e-6, abs=1e-13)


def test_the_contrast_is_a_sketch_of_the_whole_degree():
    """What a mechanism of degree 8 squares is a sketch of degree 4."""
    measured = CellContext(shape=(1, 2, 8, 4), repeats=1, sketch="srht", degree=4, sketch_size=8, seed=5)
    twice = CellContext(shape=(1, 2, 8, 4), sketch="srht", degree=8, sketch_size=8)
    twice.made.double().resample(5)
    left, right = (twice.made.features(x) for x in twice.inputs()[:2])
    assert measure(measured)["negative_share"] == [(left @ right.mT < 0).double().mean((0, 2, 3)).tolist()]


def test_degree_2_is_its_own_sketch():
    result = measure(CellContext(degree=2, repeats=5))
    assert result["features"] is None and np.shape(result["kernel_error"]) == (2, 3)
    assert np.max(result["kernel_error"]) < 1e-14 and np.max(result["sketch_error"]) < 1e-14
    assert result["negative_share"] is None and result["kernel_expected"] is None


def test_computed_in_float64_whatever_the_cells_dtype_and_plain_json():
    bench = CellContext(dtype=torch.float32)
    result = measure(bench)
    assert result == measure(CellContext(inputs=tuple(x.double() for x in bench.inputs())))
    assert json.loads(json.dumps(result, allow_nan=False)) == result and result["features"] == 32


def test_what_is_no_error():
    with pytest.raises(UnsupportedError, match="performer has no sketch of a polynomial"):
        measure(CellContext("performer"))
    context = CellContext()
    context.inputs()[0][1, 2, 5, 0] = math.nan
    with pytest.raises(NonFiniteError, match="kernel_error"):
        measure(context)
