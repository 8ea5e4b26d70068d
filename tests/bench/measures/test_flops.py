"""Counted FLOPs against products whose size is known, and every variant's formula against a counted run."""

import math

import pytest
import torch
import torch.nn.functional as F
from no_gate import NoGate
from zoo_cases import VARIANTS, variant

import attention_zoo
from attention_zoo import UnsupportedError
from bench.common.mechanism import build_attention
from bench.measures.flops import Flops, count
from bench.measures.workbench import Workbench


def config(name, causal=False, seq_len=512, **changes):
    return {
        "label": name,
        "attention": variant(name),
        "bench": {"name": "flops", "num_features": None},
        "inputs": {"name": "gaussian", "score_scale": 1.0},
        "seq_len": seq_len,
        "batch_size": 1,
        "num_heads": 2,
        "head_dim": 64,
        "dtype": "float32",
        "causal": causal,
        "device": "cpu",
        "impl": "auto",
        "seed": 0,
        "repeats": 1,
        **changes,
    }


a, b, c = torch.ones(3, 4, 5), torch.ones(3, 5, 7), torch.zeros(3, 4, 7)
query, key = torch.ones(2, 3, 8, 4), torch.ones(2, 3, 10, 4)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: a @ b, {"bmm": 2 * 3 * 4 * 5 * 7}),
        (lambda: a[0] @ b[0], {"mm": 2 * 4 * 5 * 7}),
        (lambda: torch.einsum("bij,bjk->bik", a, b), {"bmm": 2 * 3 * 4 * 5 * 7}),
        (lambda: c.clone().baddbmm_(a, b), {"baddbmm_": 2 * 3 * 4 * 5 * 7}),
        (lambda: torch.baddbmm(c, a, b), {"baddbmm": 2 * 3 * 4 * 5 * 7}),
        (lambda: a.sum(1), {"sum": 60}),
        (lambda: a.mean(-1), {"mean": 60}),
        (lambda: a.cumsum(0), {"cumsum": 60}),
        (lambda: F.conv1d(torch.ones(1, 4, 9), torch.ones(4, 1, 3), groups=4), {"convolution": 2 * 4 * 3 * 7}),
        (lambda: (a * a).exp() + a.amax(), {}),
    ],
)
def test_known_operations(call, expected):
    assert count(call) == expected


@pytest.mark.parametrize("causal", [False, True])
def test_a_fused_kernel_counts_as_the_products_that_it_computes(causal):
    keys = query if causal else key
    counted = count(lambda: F.scaled_dot_product_attention(query, keys, keys, is_causal=causal))
    pairs = sum(range(1, 9)) if causal else 8 * 10
    assert sum(counted.values()) == 2 * 3 * pairs * (2 * 4 + 2 * 4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_kernels_of_gpus_skip_the_future_too(kernel, causal):
    """Their formulas, on tensors without data; the count of each needs no GPU."""
    inputs = [x.to("meta") for x in (query, query, query)]
    operation = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")
    extra = [0.0, causal, False] if kernel == "flash" else [None, False, 0.0, causal]
    pairs = sum(range(1, 9)) if causal else 8 * 8
    assert sum(count(lambda: operation(*inputs, *extra)).values()) == 2 * 3 * pairs * (2 * 4 + 2 * 4)


def test_analytic_and_counted_flops_of_the_whole_batch():
    measured = Flops().measure(Workbench(config("softmax", batch_size=3, seq_len=32), None))
    flops = 3 * 2 * 4 * 32**2 * 64
    assert measured == {"analytic": flops, "counted": flops, "operations": {"bmm": flops}, "features": None}
    assert Flops().measure(Workbench(config("linformer", seq_len=32), None))["features"] == 256


def test_what_cannot_be_counted_is_not_zero(monkeypatch):
    bench = Workbench(config("softmax", seq_len=8), None)
    attention = bench.attention()
    monkeypatch.setattr(attention, "forward", lambda query, key, value: value * 2)
    monkeypatch.setattr(bench, "attention", lambda: attention)
    monkeypatch.setattr(bench, "gate", lambda inputs: NoGate())
    with pytest.raises(UnsupportedError, match="softmax runs in kernels"):
        Flops().measure(bench)


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variants_formula_agrees_with_a_counted_run(name, causal):
    info = attention_zoo.info(variant(name)["name"])
    if info.package:
        pytest.skip("the formula is the algorithm's, what runs is the package's")
    length = 500  # no block size divides it
    try:
        impl = "auto" if info.name == "flash" else "reference"  # fast paths: test_contract
        attention = build_attention(config(name, causal, length, impl=impl)).eval()
        given = [torch.randn(1, 2, length, 64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
        with torch.no_grad():
            counted = sum(count(lambda: attention(*given)).values())
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    assert math.isclose(attention.flops(1, length), counted, rel_tol=0.05)
