"""The work of exact polynomial attention, and of the softmax kernel that the model is held against."""

from __future__ import annotations

from bench.kernels.clocks import Code, Kernel, Loop
from bench.kernels.work import Codes, Compiled, H, Operations, Work


def polynomial(heads: int, n: int, p: int, code: Codes, *, backward: bool) -> Work:
    """A causal forward pass, and the backward pass with it; its speed is given as that of softmax is, 2 h n FLOPs."""
    rows = heads * n
    how = code[f"polynomial forward p{p} h64 causal bfloat16", "forward"]
    kernels = [_exact(how, "forward", rows, n, flops=2 * H, outputs=H, order=(0, 1))]
    # Units of the scores, layer norms, and queries in these units.
    operations, flops = Operations(24, rows * 1704.0), 2.0 * rows * n * H
    if backward:
        prepare, keys, queries = (
            code[f"polynomial backward p{p} h64 causal bfloat16", name]
            for name in ("prepare", "backward_keys", "backward_queries")
        )
        blocks = rows // prepare.tiles["block_m"]
        kernels += [
            Kernel(
                *("prepare", blocks, prepare.warps, prepare.resident, rows * (6 * H + 8)),
                edges=prepare.edges,
                descriptors=5,
            ),
            _exact(keys, "backward_keys", rows, n, flops=4 * H, outputs=2 * H, order=(1, 0)),
            _exact(queries, "backward_queries", rows, n, flops=3 * H, outputs=H, order=(0, 1)),
        ]
        operations = Operations(33, rows * (1704.0 + 2000.0))
        flops *= 3.5
    return Work(kernels, operations, flops)


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
