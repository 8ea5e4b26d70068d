"""The work of exact polynomial attention, and of the softmax kernel that the model is held against."""

from __future__ import annotations

from tools.kernels.clocks import Code, Kernel, Loop
from tools.kernels.work import Codes, Compiled, H, Operations, Work


def polynomial(heads: int, n: int, p: int, code: Codes, *, backward: bool) -> Work:
    """A causal forward pass, and the backward pass with it; its speed is given as that of softmax is, 2 h n FLOPs."""
    rows, call = heads * n, f"p{p} h64 causal bfloat16"
    how = {name: code[f"polynomial forward {call}", name] for name in ("prepare_keys", "prepare_queries", "forward")}
    kernels = [
        # A tensor in and one out, norms, units.
        _by_rows(how["prepare_keys"], "prepare_keys", rows, 4 * H + 4),
        _by_rows(how["prepare_queries"], "prepare_queries", rows, 4 * H + 8),
        _exact(how["forward"], "forward", rows, n, flops=2 * H, outputs=H, order=(0, 1)),
    ]
    flops = 2.0 * rows * n * H
    if not backward:
        return Work(kernels, Operations(0, 0.0), flops)
    names = "prepare_gradients", "backward_keys", "backward_queries", "pull_norm"
    how = {name: code[f"polynomial backward {call}", name] for name in names}
    kernels += [
        _by_rows(how["prepare_gradients"], "prepare_gradients", rows, 10 * H + 8, descriptors=5),
        _exact(how["backward_keys"], "backward_keys", rows, n, flops=4 * H, outputs=2 * H, order=(1, 0)),
        _exact(how["backward_queries"], "backward_queries", rows, n, flops=3 * H, outputs=H, order=(0, 1)),
        *(_by_rows(how["pull_norm"], f"pull_norm of {x}", rows, 6 * H) for x in ("queries", "keys")),
    ]
    # Sums of the norm's gradients, and autograd's own.
    return Work(kernels, Operations(6, 0.0), 3.5 * flops)


def _by_rows(how: Compiled, name: str, rows: int, moved: int, descriptors: int = 0) -> Kernel:
    """A kernel that reads and writes so many bytes of each row once."""
    blocks = rows // how.tiles["block_m"]
    return Kernel(name, blocks, how.warps, how.resident, float(rows * moved), edges=how.edges, descriptors=descriptors)


def _exact(how: Compiled, name: str, rows: int, n: int, *, flops: int, outputs: int, order: tuple[int, int]) -> Kernel:
    """A kernel over tiles of the lower triangle; `order` is where the loops without and with a mask stand."""
    block_m, block_n = how.tiles["block_m"], how.tiles["block_n"]
    own, other = (block_n, block_m) if name == "backward_keys" else (block_m, block_n)
    before, diagonal = (n / own - 1) / 2 * own / other, max(1.0, own / other)
    per_tile, loaded = 2.0 * block_m * block_n * flops, 2.0 * other * 2 * H
    whole, masked = (how.loops[index] for index in order)
    return Kernel(
        name,
        blocks=rows // own,
        warps=how.warps,
        resident=how.resident,
        hbm_bytes=rows * 2.0 * (4 * H + outputs),
        loops=[Loop(whole, before, per_tile, loaded), Loop(masked, diagonal, per_tile, loaded)],
        edges=how.edges,
        longest=2.0,
        # Queries, keys, values and gradients, and what comes out.
        descriptors={"backward_keys": 6, "backward_queries": 5}.get(name, 4),
    )


def tutorial(heads: int, n: int) -> Work:
    """Triton's tutorial of softmax attention, causal, h = 64: what `ISSUE_ALONE` is set by.

    About nine instructions and one exponential a score (read in its machine code), 128 x 64 scores of four warps.
    """
    loop = Code(instructions=9 * 64, products=16, in_registers=8, drains=1, specials=64)
    how = Compiled({"block_m": 128, "block_n": 64}, 4, 2, 3 * 9 * 64, (loop, loop))
    kernel = _exact(how, "softmax", heads * n, n, flops=2 * H, outputs=H, order=(0, 1))
    return Work([kernel], Operations(0, 0.0), 2.0 * heads * n * n * H)
