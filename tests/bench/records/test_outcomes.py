"""From messages and exit codes to statuses: what allocators, kernels and crashes really say."""

import signal

import pytest
import torch

from attention_zoo import UnsupportedError
from bench.common.errors import IncorrectError, NonFiniteError
from bench.records.outcomes import classify, classify_exit


class OutOfResources(Exception):
    """As Triton's, told by its name."""


RAISED = [
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), "oom"),
    (RuntimeError("CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 15.90 GiB total capacity)"), "oom"),
    (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), "oom"),
    (RuntimeError("HIP out of memory. Tried to allocate 3.00 GiB."), "oom"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "oom"),
    (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "oom"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"), "oom"),
    (RuntimeError("std::bad_alloc"), "oom"),
    (MemoryError(), "oom"),
    (MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,)"), "oom"),
    (OSError(12, "Cannot allocate memory"), "oom"),
    (RuntimeError("Invalid buffer size: 64.00 GB"), "oom"),
    (RuntimeError("not enough memory: you tried to allocate 17179869184 bytes."), "oom"),
    (OutOfResources("out of resource: shared memory, Required: 262144, Hardware limit: 232448"), "unsupported"),
    (UnsupportedError("causal=true: cannot"), "unsupported"),
    (NonFiniteError("output: 3 of 12 values are not finite"), "nonfinite"),
    (IncorrectError("relative error 1.0"), "incorrect"),
    (RuntimeError("CUDA error: an illegal memory access was encountered"), "error"),
    (RuntimeError("CUDA error: device-side assert triggered"), "error"),
    (RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"), "error"),
    (ValueError("seq_len=5: must be"), "error"),
    (KeyError("query"), "error"),
    (RuntimeError("No available kernel. Aborting execution."), "error"),
    (AssertionError(), "error"),
    (RuntimeError("0 active drivers ([]). There should only be one."), "error"),
    (ImportError("No module named 'triton'"), "error"),
]


@pytest.mark.parametrize(("error", "status"), RAISED, ids=[repr(error)[:60] for error, _ in RAISED])
def test_exceptions(error, status):
    found, reason = classify(error)
    assert found == status
    assert reason and "\n" not in reason


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no message")


HOSTILE = [
    (RuntimeError("x" * 10_000_000), f"RuntimeError: {'x' * 700} ..."),
    (RuntimeError("half a pair: \ud800"), "RuntimeError: half a pair: ?"),
    (RuntimeError("\n\n  the first\nthe second"), "RuntimeError: the first"),
    (RuntimeError(""), "RuntimeError: RuntimeError"),
    (Unprintable(), "Unprintable: Unprintable"),
]


@pytest.mark.parametrize(("error", "reason"), HOSTILE, ids=["long", "surrogate", "lines", "empty", "unprintable"])
def test_a_reason_is_one_bounded_line_that_can_be_written(error, reason):
    assert classify(error) == ("error", reason)
    reason.encode()


def test_exits():
    assert classify_exit(-signal.SIGSEGV, 0) == ("crash", "killed by SIGSEGV")
    assert classify_exit(-signal.SIGKILL, 0) == ("crash", "killed by SIGKILL")
    assert classify_exit(-signal.SIGKILL, 1)[0] == "oom"
    assert classify_exit(-signal.SIGABRT, 1)[0] == "crash"
    assert classify_exit(3, 0)[0] == "crash" and "3" in classify_exit(3, 0)[1]
    assert classify_exit(0, 0)[0] == "crash"
