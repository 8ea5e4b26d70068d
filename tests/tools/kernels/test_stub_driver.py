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
    own = {"TRITON_CACHE_DIR": str(folder / "cache"), "STUB_DRIVER_FD": "1"}
    return os.environ | own | {"TRITON_LIBCUDA_PATH": str(folder), "LD_LIBRARY_PATH": str(folder)}


def launched(stub, match, then=""):
    """The process that launches the calls that match and runs some code, the calls, and what the driver said."""
    code = f"import runpy, sys; sys.argv = ['launch', {match!r}]; runpy.run_module('tools.stub_driver.launch'); {then}"
    ran = subprocess.run([sys.executable, "-c", code], env=stub, cwd=ROOT, capture_output=True, text=True)
    lines = ran.stdout.splitlines()
    return ran, [line for line in lines if line.startswith("call ")], [line for line in lines if line[:5] != "call "]


def test_a_launch_of_each_operation_and_one_that_a_driver_refuses(stub):
    wrong = (
        "import torch; from attention_zoo.ops.feature_product.gradient_kernels import divide_kernel;"
        "from attention_zoo.ops.launching import Strided, launcher;"
        "x = torch.ones(1, 1, 16, 16); row = x[0, 0, 0];"
        "launcher(divide_kernel, x, 1, 65536)(Strided.of(x), x, row, x, row, 1, 16, BLOCK_T=64)"
    )
    match = "forward r32 h64 8x2048|forward p4 h32|decoding linear h32|networks forward r16|sketch forward r32 h32$"
    ran, calls, said = launched(stub, f"{match}|exponential features forward m256 h32", wrong)
    assert ran.returncode == 1 and "invalid argument" in ran.stderr, ran.stderr[-2000:]
    (refused,) = [line for line in said if not line.startswith("ok ")]
    assert "grid launch divide_kernel grid 1 65536 1" in refused
    assert len(calls) == 6 and sum(" launch " in line for line in said) - 1 >= len(calls)


@pytest.mark.slow
def test_every_launch_of_the_catalogue(stub):
    ran, calls, said = launched(stub, "")
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert [line for line in said if not line.startswith("ok ")] == []
    assert len(calls) > 100 and sum(" launch " in line for line in said) > 2 * len(calls)
