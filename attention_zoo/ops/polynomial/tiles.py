"""The tiles of the kernels of polynomial attention: in 16 bits no registers spill; not yet chosen by measured time."""

from typing import Any

from attention_zoo.ops.launching import Configuration, Entry

HEAD_DIMS = (32, 64, 128)


def _entry(kernel: str, m: int, n: int, warps: int, stages: int, h: int = 128, **where: Any) -> Entry:
    return Entry(kernel, Configuration({"BLOCK_M": m, "BLOCK_N": n}, warps, stages), at_most={"head_dim": h}, **where)


ROWS = (
    # One entry for `prepare_keys` and `prepare_queries`: the second reads the largest norm of each tile of the first.
    Entry("prepare_inputs", Configuration({"BLOCK_M": 64}, 4, 1)),
    Entry("prepare_gradients", Configuration({"BLOCK_M": 32}, 4, 1)),
    Entry("pull_norm", Configuration({"BLOCK_M": 64}, 4, 1), at_most={"head_dim": 64}),
    Entry("pull_norm", Configuration({"BLOCK_M": 32}, 4, 1)),
    # GPUs with warpgroups (wgmma), and tiles that the hardware loads (TMA).
    _entry("forward", 128, 64, 4, 3, h=64, arch=(90, 999), bits=16),
    _entry("backward_keys", 32, 64, 4, 3, h=64, arch=(90, 90), bits=16),
    _entry("backward_keys", 64, 128, 8, 2, h=64, arch=(90, 999), bits=16),
    _entry("backward_queries", 128, 64, 8, 3, h=64, arch=(90, 999), bits=16),
    _entry("forward", 128, 64, 8, 3, arch=(90, 999), bits=16),
    _entry("backward_keys", 32, 128, 8, 2, arch=(90, 999), bits=16),
    _entry("backward_queries", 128, 64, 8, 2, arch=(90, 999), bits=16),
    # GPUs with warps only (mma), and tiles that are loaded by pointers.
    _entry("forward", 128, 64, 8, 3, h=64, bits=16),
    _entry("backward_keys", 32, 128, 8, 3, h=64, bits=16),
    _entry("backward_queries", 128, 64, 8, 2, h=64, bits=16),
    _entry("forward", 128, 64, 8, 2, bits=16),
    _entry("backward_keys", 64, 64, 8, 2, bits=16),
    _entry("backward_queries", 64, 64, 8, 2, bits=16),
    _entry("forward", 64, 32, 4, 2, h=64, bits=32),
    _entry("backward_keys", 32, 64, 4, 2, h=32, bits=32),
    _entry("backward_keys", 32, 32, 8, 2, h=64, bits=32),
    _entry("backward_queries", 64, 32, 4, 2, h=32, bits=32),
    _entry("backward_queries", 32, 32, 4, 2, h=64, bits=32),
    _entry("forward", 32, 32, 8, 2, bits=32),
    _entry("backward_keys", 16, 16, 4, 2, bits=32),
    _entry("backward_queries", 16, 32, 4, 2, bits=32),
)
