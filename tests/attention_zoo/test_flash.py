import importlib.util
import sys

import pytest
import torch

import attention_zoo
from attention_zoo import UnsupportedError
from attention_zoo.flash import AUTO_ORDER, BACKENDS

N, H, HEADS = 37, 8, 2


def qkv(n=N, keys=None, h=H, dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    lengths = (n, keys or n, keys or n)
    given = [torch.randn(3, HEADS, length, h, generator=generator, dtype=torch.float64) for length in lengths]
    return [x.to(device, dtype).requires_grad_() for x in given]


def make(name="flash", **given):
    return attention_zoo.create(name, **({"head_dim": H, "num_heads": HEADS} | given))


def masks(keys):
    """None; scattered, left and complete padding."""
    mask = torch.zeros(3, keys, dtype=torch.bool)
    mask[0] = torch.rand(keys, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[1, : keys // 3] = True
    mask[2] = True
    return {"full": None, "padded": mask}


def assert_same_function(attention, reference, given, mask, tolerance=1e-12):
    out, expected = attention(*given, mask), reference(*given, mask)
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    gradients = (torch.autograd.grad(o, given, direction) for o in (out, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("mask", ["full", "padded"])
@pytest.mark.parametrize("causal, keys", [(False, N), (True, N), (False, 20), (False, 1)])
def test_equals_softmax_with_gradients(causal, keys, mask, scale):
    attention = make(causal=causal, scale=scale, impl="fused")
    assert_same_function(attention, make("softmax", causal=causal, scale=scale), qkv(keys=keys), masks(keys)[mask])
    assert attention.backend_used == "flash"


@pytest.mark.parametrize("causal", [False, True])
def test_reference_is_softmax_itself_and_runs_no_kernel(causal, monkeypatch):
    given, mask = qkv(), masks(N)["padded"]
    expected = make("softmax", causal=causal)(*given, mask)
    fused = make(causal=causal, impl="fused")(*given, mask)
    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", None)
    reference = make(causal=causal, impl="reference")
    assert torch.equal(reference(*given, mask), expected) and reference.backend_used is None
    torch.testing.assert_close(fused, expected, rtol=0, atol=1e-12)


def test_the_fused_kernel_is_the_default():
    attention = make()
    attention(*qkv())
    assert attention.impl == "fused" and attention.backend_used == "flash"


@pytest.mark.parametrize("backend", ["cudnn", "efficient"])
def test_backends_that_a_cpu_lacks_are_refused_by_name(backend):
    attention = make(backend=backend)
    with pytest.raises(UnsupportedError, match=f"^backend={backend}: needs a GPU"):
        attention(*qkv())
    assert attention.backend_used is None


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match=r"^backend='math': must be one of auto, flash"):
        make(backend="math")


@pytest.mark.skipif(importlib.util.find_spec("flash_attn") is not None, reason="flash-attn is installed")
def test_flash_attn_without_the_package_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UnsupportedError, match=r"^backend=flash_attn: the package flash-attn is not installed"):
        make(backend="flash_attn")
    # What flash-attn-4 installs: a namespace package of the same name with another module.
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("flash_attn") is not None
    try:
        with pytest.raises(UnsupportedError, match="not installed"):
            make(backend="flash_attn")
    finally:
        sys.modules.pop("flash_attn", None)


def test_flops_halve_only_where_a_kernel_skips_the_future():
    dense = 3 * HEADS * 4 * 64**2 * H
    assert make().flops(3, 64) == make(causal=True, impl="reference").flops(3, 64) == dense
    assert make(causal=True).flops(3, 64) == dense // 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mask", ["full", "padded"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gpu_backend_equals_softmax_or_refuses(backend, dtype, causal, mask):
    h, mask = 64, masks(256)[mask]
    given = qkv(256, h=h, dtype=dtype, device="cuda")
    exact = [x.detach().double().cpu().requires_grad_() for x in given]
    try:
        attention = make(head_dim=h, backend=backend, causal=causal)
        out = attention(*given, None if mask is None else mask.cuda())
        gradients = torch.autograd.grad(out.double().square().sum(), given)
    except UnsupportedError as error:
        assert str(error).startswith(f"backend={backend}: ")
        return
    assert attention.backend_used in (AUTO_ORDER if backend == "auto" else (backend,))
    expected = make("softmax", head_dim=h, causal=causal)(*exact, mask)
    expected_gradients = torch.autograd.grad(expected.square().sum(), exact)
    # Relative error of the whole tensor: bfloat16 rounds at 2^-9; float32 kernels may use TF32, 2^-11.
    tolerance = {torch.bfloat16: 2e-2, torch.float32: 2e-3, torch.float64: 1e-10}[dtype]
    for one, other in zip((out, *gradients), (expected, *expected_gradients), strict=True):
        assert (one.double().cpu() - other).norm() / other.norm() < tolerance
