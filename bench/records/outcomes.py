"""The status and one-line reason of a cell that raised an exception, or whose child process ended without a result."""

import signal
from pathlib import Path

from bench.common.errors import IncorrectError, NonFiniteError, message, one_line, scrubbed

# Messages of allocators, in lower case, without those about the shared memory of a GPU kernel.
OUT_OF_MEMORY = (
    "can't allocate memory",
    "cannot allocate memory",
    "cuda out of memory",
    "hip out of memory",
    "cuda error: out of memory",
    "cuda driver error: out of memory",
    "triton error [cuda]: out of memory",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "bad_alloc",
    "unable to allocate",
    "array is too large",
    "not enough memory",
    "invalid buffer size",
    # Sizes beyond 64 bits, for which no memory suffices.
    "storage size calculation overflowed",
    "numel: integer multiplication overflow",
)


def classify(error: BaseException) -> tuple[str, str]:
    """The status and reason of an exception that ended a cell; an unknown exception is an `error`, never `oom`."""
    # Compared by name, since the class may belong to a library that is not installed.
    kind, text = type(error).__name__, scrubbed(one_line(error))
    if kind == "OutOfResources":
        return "unsupported", f"the kernel needs more shared memory or registers than the device has: {text}"
    if kind == "UnsupportedError":
        return "unsupported", text
    if isinstance(error, (NonFiniteError, IncorrectError)):
        return "nonfinite" if isinstance(error, NonFiniteError) else "incorrect", text
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError":
        return "oom", text or "out of memory"
    lower = message(error).lower()
    if any(phrase in lower for phrase in OUT_OF_MEMORY):
        return "oom", text.split("] err == 0. ")[-1]
    return "error", f"{kind}: {text}"


def classify_exit(code: int, oom_kills: int) -> tuple[str, str]:
    """The status and reason of a child that ended without a result; `oom_kills`: processes that the kernel killed."""
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        if -code == signal.SIGKILL and oom_kills > 0:
            return "oom", "killed by the kernel: the machine ran out of memory"
        return "crash", f"killed by {name}"
    return "crash", f"ended with exit code {code} and no result"


def count_oom_kills() -> int:
    """The number of processes of this machine that the kernel has killed for lack of memory since it started."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError):
        return 0
