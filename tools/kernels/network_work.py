"""The work of the learned sketch's networks, and of a decoding step of polysketch."""

from __future__ import annotations

from tools.kernels.clocks import Code, Kernel, Loop
from tools.kernels.work import Codes, Compiled, H, Operations, Work

# The loop of a decoding step, which multiplies nothing on tensor cores: so it is not in the table, but was read.
STEP = Code(instructions=330)


def networks(rows: int, r: int, code: Codes, *, backward: bool) -> Work:
    """Both networks of one level, of queries or keys: LayerNorm, Dense to 8 r hidden units, gelu, Dense, twice."""
    forward = 2 * 2.0 * 8 * r * (H + 3 * r) * rows
    kernels = [_networks(rows, r, code[f"sketch networks forward r{r} h64", "networks"], "networks", 2 * (H + r))]
    if not backward:
        return Work(kernels, Operations(8, 0.0), forward)
    of_pass = f"sketch networks backward r{r} h64"
    # Its inputs, their gradients, and what stands between the blocks.
    kernels.append(_networks(rows, r, code[of_pass, "networks"], "networks again", 2 * (H + r) + 2 * (H + 4 * r) + 12))
    for version, width in (("", r), (" 2", H)):
        how = code[of_pass, f"input_gradient{version}"]
        kernels.append(_of_units(rows, r, width, how, f"input_gradient{version}", over_rows=False))
    for version, width in (("", H), (" 2", r)):
        how = code[of_pass, f"weight_gradients{version}"]
        kernels.append(_of_units(rows, r, width, how, f"weight_gradients{version}", over_rows=True))
    return Work(kernels, Operations(30, 0.0), 3 * forward)


def _networks(rows: int, r: int, how: Compiled, name: str, bytes_of_row: float) -> Kernel:
    block_m, hidden = how.tiles["block_m"], how.tiles["block_hidden"]
    steps = 2 * 8 * r / hidden  # of both networks
    loops = [
        Loop(code, steps / 2, 2.0 * block_m * hidden * (width + r), 2.0 * hidden * (width + r), times=2)
        for code, width in zip(how.loops, (H, r), strict=True)
    ]
    edges = 2 * how.edges
    return Kernel(name, rows // block_m, how.warps, how.resident, rows * bytes_of_row, loops, edges)


def _of_units(rows: int, r: int, width: int, how: Compiled, name: str, *, over_rows: bool) -> Kernel:
    """A gradient: of inputs, by programs of rows that walk over hidden units; of weights, the other way round."""
    block_m, hidden, units = how.tiles["block_m"], how.tiles["block_hidden"], 8 * r
    distinct = 1 if width == H else 2
    per_tile = 2.0 * block_m * hidden * (2 * width + r + (r if over_rows else 0))
    if over_rows:
        blocks = 512  # of both networks, each with a share of the rows
        steps = rows / block_m * 2 * units / hidden / blocks
        loop = Loop(how.loops[0], steps, per_tile, 2.0 * block_m * (width + r))
    else:
        blocks = distinct * rows // block_m
        loop = Loop(how.loops[0], units / hidden, per_tile, 2.0 * hidden * (width + r), times=2 / distinct)
    moved = rows * 2.0 * (distinct * width * (1 if over_rows else 2) + 2 * r)
    return Kernel(name, blocks, how.warps, how.resident, moved, [loop], how.edges)


def decoding(heads: int, r: int, code: Codes) -> Work:
    """A step with a gaussian sketch of degree 4: the state is read and written once, in float32."""
    how = code[f"decoding polysketch r{r} h64", "sketched_step"]
    features, rows = r * (r + 1) // 2, 16
    parts = H // rows
    state = heads * parts * (rows + 1) * features * 4.0
    loop = Loop(STEP, features / how.tiles["block"], 0.0, 0.0)
    kernel = Kernel("sketched_step", heads * parts, how.warps, how.resident, 2 * state, [loop], how.edges)
    return Work([kernel], Operations(0, 0.0), 4.0 * heads * features * H)
