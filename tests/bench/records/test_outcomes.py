"""From messages and exit codes to statuses: what allocators, kernels and crashes really say."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attention_zoo import UnsupportedError
from bench.common.errors import IncorrectError, NonFiniteError
from bench.execution import child, runner
from bench.records.outcomes import classify, classify_exit, count_oom_kills


class OutOfResources(Exception):
    """As Triton's, told by its name."""


CUDA = "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 15.90 GiB total capacity)"
OUT_OF_MEMORY = [
    *(torch.OutOfMemoryError(CUDA), MemoryError(), OSError(12, "Cannot allocate memory")),
    MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"),
    RuntimeError(CUDA),
    RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    RuntimeError("HIP out of memory. Tried to allocate 3.00 GiB."),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("std::bad_alloc"),
    RuntimeError("Invalid buffer size: 64.00 GB"),
    RuntimeError("not enough memory: you tried to allocate 17179869184 bytes."),
]
ERRORS = [
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("CUDA error: device-side assert triggered"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
    *(ValueError("seq_len=5: must be"), KeyError("query"), AssertionError()),
    RuntimeError("No available kernel. Aborting execution."),
]
RAISED = [
    *((error, "oom") for error in OUT_OF_MEMORY),
    *((error, "error") for error in ERRORS),
    (OutOfResources("out of resource: shared memory, Required: 262144, Hardware limit: 232448"), "unsupported"),
    (UnsupportedError("causal=true: cannot"), "unsupported"),
    (NonFiniteError("output: 3 of 12 values are not finite"), "nonfinite"),
    (IncorrectError("relative error 1.0"), "incorrect"),
]


@pytest.mark.parametrize(("error", "status"), RAISED, ids=[repr(error)[:60] for error, _ in RAISED])
def test_exceptions(error, status):
    found, reason = classify(error)
    assert found == status
    assert reason and "\n" not in reason


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no message")


def test_an_error_that_cannot_be_printed_is_an_error_of_its_type():
    assert classify(Unprintable()) == ("error", "Unprintable: Unprintable")


def test_exits():
    assert classify_exit(-signal.SIGSEGV, 0) == ("crash", "killed by SIGSEGV")
    assert classify_exit(-signal.SIGKILL, 0) == ("crash", "killed by SIGKILL")
    assert classify_exit(-signal.SIGKILL, 1)[0] == "oom"
    assert classify_exit(-signal.SIGABRT, 1)[0] == "crash"
    assert classify_exit(3, 0)[0] == "crash" and "3" in classify_exit(3, 0)[1]
    assert classify_exit(0, 0)[0] == "crash"


@pytest.mark.parametrize(
    ("number", "said"), [("ENOSPC", "ENOSPC"), ("EDQUOT", "ENOSPC"), ("EROFS", "EROFS"), ("ESTALE", "EIO")]
)
def test_a_result_that_cannot_be_written_says_why(number, said, tmp_path):
    """Also where the system's number is larger than an exit code has room for."""
    code = child.unwritten(OSError(getattr(errno, number), "why"))
    why = f"its result could not be written: {os.strerror(getattr(errno, said))}"
    assert runner._result(None, code, tmp_path / "none", 0) == {"status": "error", "reason": why}


@pytest.mark.needs("memory_groups")
def test_a_process_that_the_kernel_kills_for_lack_of_memory_is_counted_and_oom():
    group, before = Path("/sys/fs/cgroup/memory/attention_zoo_test"), count_oom_kills()
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(2**26))
        code = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); bytearray(b'x') * 2**29"
        ended = subprocess.run([sys.executable, "-c", code])
    finally:
        group.rmdir()
    assert classify_exit(ended.returncode, count_oom_kills() - before)[0] == "oom"
