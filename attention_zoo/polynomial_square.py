"""Attention by the square of a polynomial: Reizin 2024, Fast Algorithms for Attention Mechanism, section 4.3."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attention_zoo.checks import check_bool, check_float, check_int, require
from attention_zoo.dense import NormedDotProducts
from attention_zoo.info import AttentionInfo
from attention_zoo.ops.draws import uniform
from attention_zoo.ops.masking import denominator, largest_magnitude, zero_hidden_
from attention_zoo.registry import register

# The largest of the thesis; with it f fits into float32 up to scores of about a million.
MAX_DEGREE = 6
DEFAULT_DEGREE = 3
# Section 5.3: U(-1, 1) and U(-500, 500) trained worse.
LARGEST_INITIAL_COEFFICIENT = 50.0


@register
class PolynomialSquare(NormedDotProducts):
    """Weights `f(x)^2`, `f(x) = a_0 + a_1 x + ... + a_d x^d` (section 4.3).

    As in the thesis' kernel `((<q, k> + alpha) / beta)^p` of section 4.1, `x = (<q, k> + alpha) / beta`, with
    `beta = 1 / scale`. A monomial f is that kernel with p = 2 d. Section 4.3 divides by the sum of a row alone
    (`bias = 0`); section 4.1 adds 1 to it (`bias = 1`). With `bias = 0` all multiples of f are the same attention, and
    so are all values of `scale` if f is a monomial.

    A row whose denominator is zero becomes zeros. To freeze a learned polynomial, as in section 5.4, give its
    coefficients to an instance that does not train them: `coefficients=learned.coefficients.tolist()`.

    Args:
        degree: d, 1 to 6; None is the degree of `coefficients`, or 3 without them.
        coefficients: a_0 to a_d, any sequence of numbers. None is all ones, the polynomial `1 + x + ... + x^d` of
            section 5.2; if trained, initial values U(-50, 50) from the seed (section 5.3).
        trainable: learn the coefficients, one polynomial for all heads.
        qk_layernorm: one affine LayerNorm over head_dim, shared by queries, keys and heads.
        scale: c, the factor of `<q, k> + alpha`.
        alpha: added to `<q, k>`.
        bias: added to the sum of a row.
        dropout: probability of dropping a weight in training mode; the reference does it.
    """

    info = AttentionInfo(
        name="polynomial_square",
        paper="Reizin 2024 (Fast Algorithms for Attention Mechanism), section 4.3",
        causal=True,
        padding=True,
        cross=True,
        cancels=True,
        complexity="O(n^2 h)",
        decode=True,
        implementations=("reference", "fused"),
    )

    def __init__(
        self,
        *,
        degree: int | None = None,
        coefficients: Sequence[float] | None = None,
        trainable: bool = False,
        qk_layernorm: bool = True,
        scale: float = 1.0,
        alpha: float = 0.0,
        bias: float = 0.0,
        dropout: float = 0.0,
        **common: Any,
    ) -> None:
        super().__init__(dropout=dropout, qk_layernorm=qk_layernorm, scale=scale, bias=bias, **common)
        numbers = _check_coefficients(degree, coefficients)
        self.degree = len(numbers) - 1
        self._drawn = check_bool("trainable", trainable) and coefficients is None
        if trainable:
            self.coefficients = nn.Parameter(torch.tensor(numbers))
        else:
            # float64, so that decimals keep their value when the module is cast to float64.
            self.register_buffer("coefficients", torch.tensor(numbers, dtype=torch.float64))
        self.alpha = check_float("alpha", alpha)
        self._draw()

    @property
    def weight_degree(self) -> int:
        """The degree of f^2."""
        return 2 * self.degree

    def _draw(self) -> None:
        if self._drawn:
            unit = 2 * uniform([self.degree + 1], self._generator()) - 1
            with torch.no_grad():
                self.coefficients.copy_(LARGEST_INITIAL_COEFFICIENT * unit)

    def _weight_parameters(self) -> tuple[Tensor, ...]:
        return (self.coefficients,)

    def _weights_and_total(
        self, query: Tensor, key: Tensor, visible: Tensor | None, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        scores = query @ key.mT
        # The terms of f cancel: in 16 bits most of it would be rounding error.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        # Masked after f, because a hidden score of zero would have weight a_0^2.
        f = zero_hidden_(polynomial(parameters[0], scores + self.scale * self.alpha if self.alpha else scores), visible)
        # Squares may overflow; relative to the largest f of a row, or to the bias, they do not.
        root = math.sqrt(self.bias)
        unit = largest_magnitude(f).clamp_min(max(root, torch.finfo(f.dtype).tiny))
        weights = (f / unit).square()
        return weights, denominator(weights.sum(-1, keepdim=True), (root / unit) ** 2)


def polynomial(coefficients: Tensor, x: Tensor) -> Tensor:
    """f(x) with `coefficients` a_0 to a_d, by Horner's rule."""
    *lower, f = coefficients.to(x.dtype).unbind()
    for coefficient in reversed(lower):
        f = torch.addcmul(coefficient, f, x)
    return f


def _check_coefficients(degree: int | None, coefficients: Sequence[float] | None) -> tuple[float, ...]:
    """a_0 to a_d: `coefficients` after a check, or ones."""
    if degree is not None:
        check_int("degree", degree)
        require("degree", degree, degree <= MAX_DEGREE, f"at most {MAX_DEGREE}")
    if coefficients is None:
        return (1.0,) * ((degree or DEFAULT_DEGREE) + 1)
    is_list = isinstance(coefficients, Sequence) and not isinstance(coefficients, str)
    lengths = range(2, MAX_DEGREE + 2) if degree is None else (degree + 1,)
    allowed = f"a list of {' to '.join(str(n) for n in sorted({lengths[0], lengths[-1]}))} numbers"
    require("coefficients", coefficients, is_list and len(coefficients) in lengths, allowed)
    numbers = tuple(check_float("coefficients", a) for a in coefficients)
    require("coefficients", coefficients, any(numbers), "not all zero")
    return numbers
