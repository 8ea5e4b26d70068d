"""Counted FLOPs against products whose size is known, and every variant's formula against a counted run."""

import math

import cells
import pytest
import torch
import torch.nn.functional as F
from zoo_cases import VARIANTS, marks_of, variant

import attention_zoo
from attention_zoo import UnsupportedError
from attention_zoo.info import Executed
from bench.common.mechanism import build_attention
from bench.measures.flops import count


def config(name, **changes):
    sizes = {"attention": variant(name), "seq_len": 32, "batch_size": 1, "head_dim": 64}
    return cells.config(name, {"name": "flops"}, **{**sizes, **changes})


a, b, c = torch.ones(3, 4, 5), torch.ones(3, 5, 7), torch.zeros(3, 4, 7)
query, key = torch.ones(2, 3, 8, 4), torch.ones(2, 3, 10, 4)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: a @ b, {"bmm": 2 * 3 * 4 * 5 * 7}),
        (lambda: c.clone().baddbmm_(a, b), {"baddbmm_": 2 * 3 * 4 * 5 * 7}),
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
def test_a_fused_kernel_counts_as_the_products_that_it_computes_without_the_future(causal):
    """Those of GPUs on tensors without data: the count needs none."""
    keys = query if causal else key
    counted = [count(lambda: F.scaled_dot_product_attention(query, keys, keys, is_causal=causal))]
    inputs = [x.to("meta") for x in (query, keys, keys)]
    for kernel in ("flash", "efficient", "cudnn"):
        operation = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention")
        extra = [0.0, causal, False] if kernel == "flash" else [None, False, 0.0, causal]
        counted.append(count(lambda operation=operation, extra=extra: operation(*inputs, *extra)))
    pairs = sum(range(1, 9)) if causal else 8 * 10
    assert [sum(one.values()) for one in counted] == [2 * 3 * pairs * (2 * 4 + 2 * 4)] * 4


def test_analytic_and_counted_flops_of_the_whole_batch():
    flops = 3 * 2 * 4 * 32**2 * 64
    found = cells.measure(cells.CellContext(config("softmax", batch_size=3), None))
    assert found == {"analytic": flops, "counted": flops, "operations": {"bmm": flops}, "features": None}
    assert cells.measure(cells.CellContext(config("linformer"), None))["features"] == 256


@pytest.mark.parametrize("backend", [None, "triton_blocks", "triton", "flex_attention", "fla.ops.gla.chunk_gla"])
def test_what_cannot_be_counted_is_not_zero_nor_what_is_counted_beside_a_kernel(backend):
    """A sum over its features, say."""
    attention = build_attention(config("softmax"))

    def forward(query, key, value):
        attention.executed = backend and Executed("fused", backend)
        return value + query.sum() if backend else value * 2

    attention.forward = forward
    with pytest.raises(UnsupportedError, match="softmax runs in kernels"):
        cells.measure(cells.SleepingBench(config("softmax"), attention))


def test_what_has_no_operations_says_so():
    with pytest.raises(UnsupportedError, match=r"^identity has no operations to count: its formula gives 0 FLOPs$"):
        cells.measure(cells.CellContext(config("identity"), None))


@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
@pytest.mark.parametrize("name", [pytest.param(label, marks=marks_of(label)) for label in VARIANTS])
def test_every_variants_formula_agrees_with_a_counted_run(name, causal):
    info = attention_zoo.info(variant(name)["name"])
    if info.package:
        pytest.skip("the formula is the algorithm's, what runs is the package's")
    length = 260  # no block size divides it
    impl = "auto" if info.name == "flash" else "reference"  # fast paths: test_contract
    try:
        attention = build_attention(config(name, causal=causal, seq_len=length, impl=impl)).eval()
        given = [torch.randn(1, 2, length, 64, generator=torch.Generator().manual_seed(i)) for i in range(3)]
        with torch.no_grad():
            counted = sum(count(lambda: attention(*given)).values())
    except UnsupportedError as reason:
        pytest.skip(str(reason))
    assert math.isclose(attention.flops(1, length), counted, rel_tol=0.05)
