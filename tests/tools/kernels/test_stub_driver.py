"""Every launch of the catalogue over a stub of NVIDIA's driver: grids, shared memory and tensor maps as on an H100."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.needs("cc"), pytest.mark.skipif(sys.platform != "linux", reason="a driver of Linux")]


@pytest.fixture(scope="module")
def stub(tmp_path_factory):
    """The environment in which Triton finds the stub, and kernels that were compiled for it."""
    triton = pytest.importorskip("triton")
    folder = tmp_path_factory.mktemp("stub")
    headers = Path(triton.__file__).parent / "backends" / "nvidia" / "include"
    command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", f"-I{headers}", "-o", folder / "libcuda.so.1"]
    subprocess.run([*command, ROOT / "tools" / "stub_driver" / "driver.c"], check=True)
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    own = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder / "cache"), "STUB_DRIVER_FD": "1"}
    return os.environ | own | {"TRITON_LIBCUDA_PATH": str(folder), "LD_LIBRARY_PATH": str(folder)}


def launched(stub, match):
    """The calls, and what the driver said of them."""
    command = [sys.executable, "-m", "tools.stub_driver.launch", match]
    ran = subprocess.run(command, env=stub, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = ran.stdout.splitlines()
    said = [line for line in lines if not line.startswith("call ")]
    assert not [line for line in said if not line.startswith("ok ")]
    return [line for line in lines if line.startswith("call ")], [line for line in said if " launch " in line]


def test_a_launch_of_each_operation(stub):
    calls, launches = launched(
        stub,
        "forward r32 h64 8x2048|forward p4 h32|decoding linear h32|networks forward r16|sketch forward r64 h128|"
        "exponential features forward m256 h32",
    )
    assert len(calls) == 6 and len(launches) >= len(calls)


@pytest.mark.slow
def test_every_launch_of_the_catalogue(stub):
    calls, launches = launched(stub, "")
    assert len(calls) > 100 and len(launches) > 2 * len(calls)


def test_the_stub_refuses_what_a_driver_refuses(stub):
    wrong = (
        "import runpy, sys; sys.argv = ['launch', 'nothing'];"
        "runpy.run_module('tools.stub_driver.launch'); import torch;"
        "from attention_zoo.ops.feature_product.gradient_kernels import divide_kernel;"
        "from attention_zoo.ops.launching import Strided, launcher;"
        "x = torch.ones(1, 1, 16, 16); row = x[0, 0, 0];"
        "launcher(divide_kernel, x, 1, 65536)(Strided.of(x), x, row, x, row, 1, 16, BLOCK_T=64)"
    )
    command = [sys.executable, "-c", wrong]
    ran = subprocess.run(command, env=stub, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1 and "invalid argument" in ran.stderr
    assert "grid launch divide_kernel grid 1 65536 1" in ran.stdout
