"""Where kernels are launched, and how far their grids reach: on devices that are made up, on tensors without memory."""

import ast
from pathlib import Path

import pytest
import torch

from attention_zoo import ops
from attention_zoo.ops import launching
from attention_zoo.ops.feature_product import choice, triton

LARGEST_GRID = (2**31 - 1, 65535, 65535)


@pytest.fixture
def devices(monkeypatch):
    """Two GPUs, the first of them the current one; what PyTorch keeps of that."""
    current = [0]

    def exchange(device):
        before = current[0]
        if device >= 0:
            current[0] = device
        return before if device >= 0 else -1

    monkeypatch.setattr(torch.cuda, "_exchange_device", exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", exchange)
    return current


class OnTheSecond:
    """A tensor, as far as anybody asks where it is, and what it holds."""

    is_cuda = True
    device = torch.device("cuda", 1)

    def __init__(self, dtype=torch.bfloat16, head_dim=64):
        self.dtype, self.shape = dtype, (1, 1, 16, head_dim)

    def get_device(self):
        return 1

    def element_size(self):
        return self.dtype.itemsize


def test_a_kernel_is_launched_where_its_tensors_are(devices):
    kernel = {(3, 4): lambda x: (x, *devices), (1,): lambda: 1 // 0}
    assert launching.launcher(kernel, OnTheSecond(), 3, 4)("x") == ("x", 1) and devices == [0]
    with pytest.raises(ZeroDivisionError):
        launching.launcher(kernel, OnTheSecond(), 1)()
    assert devices == [0]


def test_no_kernel_is_launched_in_another_way():
    for file in Path(ops.__file__).parent.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        launched = [ast.unparse(of) for of in calls if isinstance(of, ast.Subscript)]
        assert launched == (["kernel[grid]"] if file.name == "launching.py" else []), file


@pytest.mark.parametrize("is_interpreted", [False, True])
def test_where_kernels_are_interpreted_none_is_for_a_gpu(is_interpreted, monkeypatch):
    monkeypatch.setattr(launching, "IS_INTERPRETED", is_interpreted)
    monkeypatch.setattr(launching, "architecture", lambda device: 90)
    reason = launching.why_unsupported(OnTheSecond())
    assert reason.startswith("TRITON_INTERPRET is set") if is_interpreted else reason is None
    assert launching.why_unsupported(torch.ones(1, 1, 16, 64)) is None


@pytest.mark.parametrize("degree", [1, 2])
def test_a_million_tokens_in_blocks_of_sixteen_fit_a_grid(degree, monkeypatch):
    grids = []
    monkeypatch.setattr(launching, "launcher", lambda kernel, x, *grid: lambda *_, **__: grids.append(grid))

    def rows(columns):
        return torch.empty(1, 1, 2**20 + 16, columns, device="meta", dtype=torch.bfloat16)

    settings = 1.0, True, 16, degree, degree - 1
    inputs = triton.Inputs(rows(32), rows(32), rows(64), None, None, None, *settings)
    out, *residuals = triton.forward(inputs)
    triton.backward(torch.empty_like(out), inputs, out, triton.Residuals(*residuals))
    assert len(grids) >= 10
    assert all(size <= most for grid in grids for size, most in zip(grid, LARGEST_GRID, strict=False))


def test_another_makers_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert launching.why_unsupported(torch.ones(1, 1, 16, 64)) == "the kernels are for NVIDIA's GPUs"


@pytest.mark.parametrize(
    ("arch", "dtype", "features", "head_dim", "degree", "reason"),
    [
        (75, torch.float16, 16, 64, 1, "the kernels are for GPUs of compute capability 8.0 and later"),
        (80, torch.float32, 32, 128, 2, None),
        (86, torch.float32, 64, 64, 2, None),
        (86, torch.float32, 128, 128, 1, None),
        (86, torch.bfloat16, 128, 128, 2, None),
        (86, torch.float32, 32, 128, 2, "this GPU's shared memory takes 64 columns of float32, not 128"),
        (89, torch.float32, 128, 64, 2, "this GPU's shared memory takes 64 columns of float32, not 128"),
        (120, torch.float32, 128, 128, 2, None),
    ],
)
def test_small_and_old_gpus_are_refused_what_they_cannot_run(
    arch, dtype, features, head_dim, degree, reason, monkeypatch
):
    monkeypatch.setattr(launching, "IS_INTERPRETED", False)
    monkeypatch.setattr(launching, "architecture", lambda device: arch)
    assert choice.why_unsupported(OnTheSecond(dtype, head_dim), features, block_size=64, degree=degree) == reason
