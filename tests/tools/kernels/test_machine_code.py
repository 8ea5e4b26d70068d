"""The reader of machine code, on small kernels compiled for GPUs that are not there and on a listing."""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from tools.kernels import machine_code

SMALL = Path(__file__).with_name("small_kernels.py")
LISTING = """
        /*0000*/                   LDC R1, c[0x0][0x28] ;            /* 0x00000a00ff017b82 */
                                                                     /* 0x000fe20000000800 */
        /*0010*/                   LDG.E R2, desc[UR4][R2.64] ;
        /*0020*/                   STS [R1], R2 ;
        /*0030*/               @P1 STSM.16.M88.4 [R1], R4 ;
        /*0040*/                   HGMMA.64x64x16.F32.BF16 R24, R4, gdesc[UR4].tnspB, R24, gsb0 ;
        /*0050*/                   WARPGROUP.DEPBAR.LE gsb0, 0x1 ;
        /*0060*/              @!P0 BRA 0x40 ;
        /*0070*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8].tnspB, R24 ;
        /*0080*/                   WARPGROUP.DEPBAR.LE gsb0, 0x0 ;
        /*0090*/                   BRA.U !UP0, 0x20 ;
        /*00a0*/                   HMMA.16816.F32.BF16 R4, R4, R8, R12 ;
        /*00b0*/              @!P0 BRA 0xa0 ;
        /*00c0*/                   EXIT ;
        /*00d0*/              @!P0 BRA 0xd0 ;
        /*00e0*/                   BRA 0x70 ;
"""

HAS_TRITON = importlib.util.find_spec("triton") is not None
OLDER = HAS_TRITON and Version(importlib.metadata.version("triton")) < Version("3.7")
SCHEDULED = pytest.mark.skipif(OLDER, reason="needs Triton 3.7, older ones schedule products otherwise")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The rows of the small kernels by target and call, or the error."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "PYTHONPATH": path}
    done = subprocess.run([sys.executable, SMALL], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_hot_loop_is_an_innermost_one_over_products_and_ends_before_the_exit():
    first, second = machine_code.hot_loops(machine_code.parsed(LISTING))
    assert [hex(i.address) for i in first.body] == ["0x40", "0x50", "0x60"]
    assert [hex(i.address) for i in second.body] == ["0xa0", "0xb0"]
    assert str(first) == "3 instructions: 1 HGMMA (1 RS); waits 1"
    assert str(second) == "2 instructions: 1 HMMA"
    assert first.streams and not second.streams


@pytest.mark.parametrize(
    ("target", "call", "problems"),
    [
        (80, "from shared memory", ""),
        (90, "from shared memory", ""),
        (90, "squared", "is serialised"),
        (90, "without registers", "spills registers; is serialised"),
        pytest.param(90, "too deep", "does not fit on a multiprocessor", marks=SCHEDULED),
        (90, "of half a warp group", "has products that are not wgmma (HMMA)"),
        (90, "streaming", ""),
        (90, "one feature at a time", "stores to shared memory in a loop (STS); waits for loads in a loop (LDG)"),
        (90, "expected to stream", "has no loop with all left operands in registers"),
        (90, "expected to stream, squared", "is serialised; waits for all products in a loop"),
        (100, "from shared memory", ""),
    ],
)
def test_the_gate_finds_what_is_wrong(small, target, call, problems):
    assert small[str(target)][call]["problems"] == problems


def test_registers_memory_and_loops_of_a_kernel_are_those_of_its_configuration(small):
    row = small["90"]["from shared memory"]
    assert row["kernel"] == "product" and row["dtype"] == "bfloat16"
    assert row["configuration"] == "m128_n64_block64_w4_s3"
    # Three stages of both operands: 128 x 64 and 64 x 64 numbers of 16 bits.
    assert row["shared_bytes"] == 3 * (128 * 64 + 64 * 64) * 2
    assert row["spill_bytes"] == 0 and 64 < row["registers"] <= 128 and row["blocks"] == 3
    assert "8 HGMMA (0 RS)" in row["loops"] and "8 HGMMA (8 RS)" in small["90"]["squared"]["loops"]
    assert "16 HGMMA (16 RS)" in small["90"]["streaming"]["loops"]
    assert "64 HMMA" in small["80"]["from shared memory"]["loops"]
    assert "UTCHMMA" in small["100"]["from shared memory"]["loops"]


def test_versions_of_a_kernel_have_numbers_and_one_gate(small):
    second = small["90"]["three launches"]
    assert second["kernel"] == "expansion 2" and second["configuration"] == "t128_c1_w4_s3"
    assert second["problems"] == small["90"]["one feature at a time"]["problems"]


def test_what_does_not_compile_is_said_with_the_compilers_reason(small):
    said = small["90"]["impossible"]
    assert said.startswith("product does not compile for sm_90: ") and "Insufficient registers" in said
