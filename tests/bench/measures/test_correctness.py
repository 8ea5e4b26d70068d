"""The gate before a measurement: planted mistakes do not get through, rounding does."""

import pytest
import torch
from zoo_cases import CASES

import attention_zoo
from bench.errors import IncorrectError, NonFiniteError
from bench.measures.correctness import check_output
from bench.measures.workbench import build_attention

N, H = 200, 8


def cell(name, dtype="float32", causal=True, **hyperparameters):
    return {
        "label": name,
        "attention": {"name": name, **hyperparameters},
        "bench": {"name": "latency"},
        "seq_len": N,
        "num_heads": 2,
        "head_dim": H,
        "causal": causal,
        "dtype": dtype,
        "impl": "auto",
        "seed": 0,
    }


def check(config, break_it=lambda attention: None):
    dtype = getattr(torch, config["dtype"])
    attention = build_attention(config).to(dtype).eval()
    break_it(attention)
    generator = torch.Generator().manual_seed(1)
    inputs = tuple(torch.randn(2, 2, N, H, generator=generator).to(dtype) for _ in range(3))
    return check_output(attention, config, inputs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("name, causal", CASES)
def test_the_zoo_gets_through(name, causal, dtype):
    if getattr(torch, dtype) not in attention_zoo.info(name).dtypes:
        pytest.skip(f"refuses {dtype}")
    size = attention_zoo.info(name).size
    result = check(cell(name, dtype, causal, **({size: 16} if size else {})))
    assert result["error"] <= result["tolerance"]


def attend(change):
    """A mistake in what the mechanism is given or gives."""

    def apply(attention):
        right = attention.forward
        attention.forward = lambda q, k, v, padding=None: change(right, q, k, v, padding)

    return apply


def no_mask(attention):
    attention.causal = False


MISTAKES = {
    "no causal mask": no_mask,
    "mask off by one": attend(lambda f, q, k, v, p: f(q, k.roll(-1, 2), v.roll(-1, 2), p)),
    "no scale": attend(lambda f, q, k, v, p: f(q * H**0.5, k, v, p)),
    "query and key swapped": attend(lambda f, q, k, v, p: f(k, q, v, p)),
    "heads in the wrong order": attend(lambda f, q, k, v, p: f(q, k.flip(1), v, p)),
    "zeros": attend(lambda f, q, k, v, p: torch.zeros_like(v)),
    "the value itself": attend(lambda f, q, k, v, p: v.clone()),
    "last block missing": attend(lambda f, q, k, v, p: f(q, k, v, p).index_fill(2, torch.arange(150, q.shape[2]), 0)),
    "no normaliser": attend(lambda f, q, k, v, p: f(q, k, v, p) * torch.arange(1, q.shape[2] + 1)[:, None]),
    "half a percent too large": attend(lambda f, q, k, v, p: f(q, k, v, p) * 1.005),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", ["flash", "polysketch", "performer"])
def test_mistakes_do_not_get_through(name, mistake):
    if (name, mistake) == ("polysketch", "no scale"):
        pytest.skip("its layer norm undoes a scale")
    with pytest.raises(IncorrectError):
        check(cell(name), MISTAKES[mistake])


def test_one_nan_is_found():
    def plant(f, q, k, v, p):
        out = f(q, k, v, p).clone()
        out[0, 1, 7, 3] = torch.nan
        return out

    with pytest.raises(NonFiniteError, match=r"1 of \d+ values are not finite, the first at \(0, 1, 7, 3\)"):
        check(cell("flash"), attend(plant))
