"""The work of a causal product of squares of features, forward and backward, in chunks of b rows.

Numbers are of 16 bits, the sums before chunks too.
"""

from collections.abc import Sequence
from typing import NamedTuple

from attention_zoo.ops.feature_product.chunks import MULTIPROCESSORS, WARPS, packed_products, steps_of_a_part
from tools.kernels.clocks import Code, Kernel, Loop
from tools.kernels.work import Codes, Compiled, H, Operations, Work

# A row of 16 bytes or less that is loaded by itself costs a sector of the L2 cache.
SECTOR = 32


class Product(NamedTuple):
    """Sizes of a causal product of squares of features: `heads` of all sequences together, n rows, r features."""

    heads: int
    n: int
    r: int
    code: Codes

    @property
    def b(self) -> int:
        """Rows of a chunk; all of them where that is fewer products (`default_block_size` of the kernels)."""
        return self.n if self.n <= {32: 2048, 64: 4096}[self.r] else {32: 512, 64: 1024}[self.r]

    @property
    def chunks(self) -> int:
        """Of a sequence."""
        return -(-self.n // self.b)

    @property
    def parts(self) -> int:
        """Of a sequence, walked along side by side where there are few heads."""
        how = self.compiled(False, "square_state_kernel")
        programs, at_once = self.heads * self.tiles(how), WARPS // how.warps * MULTIPROCESSORS
        return -(-self.chunks // steps_of_a_part(programs, self.chunks, at_once))

    @property
    def width(self) -> int:
        """Features of a square, whose blocks of 16 x 16 are packed."""
        return packed_products(self.r)

    def tiles(self, how: Compiled) -> int:
        """Tiles of them."""
        return self.width // (16 * how.tiles["block_i"])

    @property
    def rows(self) -> int:
        """Of all heads."""
        return self.heads * self.n

    def compiled(self, backward: bool, kernel: str) -> Compiled:
        """How a kernel of one of the passes was compiled; two launches may have one version."""
        call = f"polysketch {'backward' if backward else 'forward'} r{self.r} h64 1x32768 causal"
        only = kernel.rstrip(" 0123456789")
        return self.code[call, kernel if (call, kernel) in self.code else only]


def polysketch(heads: int, n: int, r: int, code: Codes, *, backward: bool) -> Work:
    """A forward pass with a gaussian sketch of degree 4 and a layer norm before it, and the backward pass with it."""
    p = Product(heads, n, r, code)
    kernels = [*_sketches(p), *_sums(p, backward=False), _output(p)]
    if not backward:
        return Work(kernels, Operations(0, 0.0), useful(p, backward))
    kernels += [*_backward(p), *_sketches(p, backward=True)]
    # Sums of the norm's gradients, and autograd's own.
    return Work(kernels, Operations(12, 0.0), useful(p, backward))


def _sketches(p: Product, *, backward: bool = False) -> list[Kernel]:
    """Those of queries and keys: a token in, r numbers out; in the backward pass both in, a token out."""
    moved = p.rows * 2.0 * (2 * H + p.r if backward else H + p.r)
    name = "random_sketch_backward" if backward else "random_sketch"
    # They are not in the table: bytes are all that they take.
    return [Kernel(f"{name} of {x}", p.rows // 128, 4, 4, moved) for x in ("queries", "keys")]


def useful(p: Product, backward: bool) -> float:
    """FLOPs of the packed product, with the causal half of each chunk: 2 D h for each side, once more for sums."""
    inter = p.rows * (1 - 1 / p.chunks)
    intra = p.rows * p.b
    forward = inter * 4 * p.width * H + intra * (p.r + H)
    return (
        forward
        + (inter * (4 * p.width * H + 4 * p.r**2 * H + 2 * p.width * H) + intra * (3 * p.r + 2 * H) * 1.0) * backward
    )


def _sums(p: Product, *, backward: bool, second: bool = False, stores: float = 0.0) -> list[Kernel]:
    """The scan of squares times values, what it begins with, and sums for denominators; none for a single chunk.

    The backward pass has those of keys from the forward pass, but for the columns and the scan itself.
    """
    if p.chunks == 1:
        return []
    is_kept = backward and not second
    before = [_columns(p, backward, second)]
    if not is_kept:
        before += [_prefixes(p, backward), *_parts(p, backward)]
    return [*before, _scan(p, backward, second, stores or p.width * H * 2)]


def _columns(p: Product, backward: bool, second: bool) -> Kernel:
    """Features with rows as columns, and each chunk's r x r sums, which the backward pass has of keys."""
    version = " 2" if second else ""
    how = p.compiled(backward, f"chunk_kernel{version}")
    sums = 0.0 if backward and not second else 1.0
    block_t = how.tiles["block_t"]
    step = how.loops[0] if how.loops else Code(how.instructions)
    wide = 2.0 * max(64, p.r) * p.r * block_t * sums
    return Kernel(
        f"chunk{version}",
        blocks=p.heads * p.chunks,
        warps=how.warps,
        resident=how.resident,
        hbm_bytes=p.rows * (4 * p.r + 4 * second) + sums * p.heads * p.chunks * 4 * p.r**2,
        loops=[Loop(step, p.b / block_t, wide, 2.0 * block_t * p.r)],
        edges=how.edges if how.loops else 0.0,
    )


def _prefixes(p: Product, backward: bool) -> Kernel:
    """The r x r sums of chunks added up."""
    how = p.compiled(backward, "prefix_kernel")
    block, block_c = how.tiles["block"], how.tiles["block_c"]
    loop = Loop(Code(how.instructions), p.chunks / block_c, 0.0, 4.0 * block * block_c)
    moved = p.heads * p.chunks * 8.0 * p.r**2
    return Kernel("prefix" + " 2" * backward, p.heads * p.r**2 // block, how.warps, how.resident, moved, [loop])


def _walk(p: Product, name: str, how: Compiled, parts: int, chunks: float, times: float, moved: float) -> Kernel:
    """A program for each of some parts of a sequence and tile of squares, that sums `chunks` chunks so many times."""
    block_i, block_t = how.tiles["block_i"], how.tiles["block_t"]
    loaded = (block_i + 16 + H) * block_t * 2
    loops = [Loop(how.loops[0], chunks * p.b / block_t, 2.0 * 16 * block_i * H * block_t, loaded, times=times)]
    edges = how.edges * (times + 1)
    if parts == p.parts > 1:  # what each begins with is added up of the parts before it: two additions a number
        numbers = 16 * block_i * H
        added = Code(4 * numbers // (32 * how.warps))
        loops.append(Loop(added, (parts - 1) / 2, 0.0, 4.0 * numbers))
        edges -= added.instructions * (times + 1)
    return Kernel(
        name,
        blocks=p.heads * p.tiles(how) * parts,
        warps=how.warps,
        resident=how.resident,
        hbm_bytes=p.rows * 2 * (p.r + H) * parts / p.parts + moved,
        loops=loops,
        edges=edges,
        descriptors=3,
    )


def _parts(p: Product, backward: bool) -> list[Kernel]:
    """The sums of parts of a sequence, which are what the parts after them begin with."""
    if p.parts == 1:
        return []
    how = p.compiled(backward, "square_state_kernel 2" if backward else "square_state_kernel")
    # Nobody begins with the sum of the last.
    of_parts = p.heads * (p.parts - 1) * p.width * H * 4.0
    return [_walk(p, "square_state of parts" + " 2" * backward, how, p.parts - 1, p.chunks / p.parts, 1, of_parts)]


def _scan(p: Product, backward: bool, second: bool, stored: float) -> Kernel:
    # The call that was compiled has few heads: where its sequences are in parts, theirs are versions too.
    in_parts = Product(12, 32768, p.r, p.code).parts > 1
    version = (1 + (1 + in_parts) * second) if backward else 1 + in_parts
    how = p.compiled(backward, f"square_state_kernel {version}" if version > 1 else "square_state_kernel")
    begun = p.heads * (p.parts - 1) * p.width * H * 4.0
    times = -(-p.chunks // p.parts) - 1
    return _walk(p, "square_state" + " 2" * second, how, p.parts, 1, times, p.heads * p.chunks * stored + begun)


def _output(p: Product, *, backward: bool = False) -> Kernel:
    """What rows read of the sums; forward also of their own chunk."""
    how = p.compiled(backward, "square_output_kernel")
    block_t = how.tiles["block_t"]
    reads = 1 - 1 / p.chunks
    loops = [Loop(how.loops[0], reads * p.width / 128, 2.0 * block_t * 128 * H, 128 * H * 2 + block_t * 2 * SECTOR)]
    own = 0.0 if p.chunks > 1 else 1.0
    if not backward:
        loops += _intra_chunk(p, how.loops[1:], block_t, how.tiles["block_n"], p.r + H, p.r + H)
    blocks = p.rows // block_t
    return Kernel(
        "square_output (values)" if backward else "square_output",
        blocks=blocks,
        warps=how.warps,
        resident=how.resident,
        hbm_bytes=p.rows * (2 * p.r + 4 * H + (4 if not backward else 0))
        + reads * p.heads * p.chunks * p.width * H * 2,
        loops=loops,
        edges=how.edges,
        # Without chunks the last rows see all keys.
        longest=1.0 + own,
        descriptors=(p.chunks > 1) + 3 * (not backward),
    )


def _intra_chunk(p: Product, codes: Sequence[Code], block_t: int, block_n: int, flops: int, loaded: int) -> list[Loop]:
    """The loops over the keys of a tile's own chunk: those before the tile, and those on the diagonal."""
    before = (p.b / block_t - 1) / 2 * max(1.0, block_t / block_n)
    diagonal = max(1.0, block_t / block_n)
    one = dict(flops=2.0 * block_t * block_n * flops, l2_bytes=2.0 * min(block_n, block_t) * loaded)
    if block_n > block_t:  # tiles of keys with loops over queries
        before, diagonal = (p.b / block_n - 1) / 2 * block_n / block_t, block_n / block_t
    return [Loop(codes[0], before, **one), Loop(codes[1], diagonal, **one)]


def _backward(p: Product) -> list[Kernel]:
    intra = [
        _intra_chunk_gradient(p, "intra_chunk_query_kernel", 2 * p.r + H),
        _intra_chunk_gradient(p, "intra_chunk_key_kernel", 2 * p.r + 2 * H),
    ]
    if p.chunks == 1:
        return [_divide(p), *intra]
    packed, permuted = p.width * H * 2, p.r * H * p.r * 2
    return [
        _divide(p),
        *intra,
        *_sums(p, backward=True, stores=permuted),
        _gradient(p, ""),
        *_sums(p, backward=True, second=True, stores=packed + permuted),
        _gradient(p, " 2"),
        _output(p, backward=True),
    ]


def _divide(p: Product) -> Kernel:
    how = p.compiled(True, "divide_kernel")
    moved = p.rows * (6 * H + 8)
    return Kernel("divide", p.rows // how.tiles["block_t"], how.warps, how.resident, moved, edges=how.edges)


def _intra_chunk_gradient(p: Product, kernel: str, flops: int) -> Kernel:
    how = p.compiled(True, kernel)
    block_t, block_n = how.tiles["block_t"], how.tiles["block_n"]
    loops = _intra_chunk(p, how.loops, block_t, block_n, flops, p.r + H)
    outputs = p.r if kernel == "intra_chunk_query_kernel" else p.r + H
    return Kernel(
        kernel.removesuffix("_kernel"),
        blocks=p.rows // max(block_t, block_n),
        warps=how.warps,
        resident=how.resident,
        hbm_bytes=p.rows * (2 * (2 * p.r + 2 * H + outputs) + 4),
        loops=loops,
        edges=how.edges,
        longest=2.0 if p.chunks == 1 else 1.0,
        descriptors=4,
    )


def _gradient(p: Product, version: str) -> Kernel:
    """The gradients of features: `features x values` of the permuted sums."""
    how = p.compiled(True, f"square_gradient_kernel{version}")
    block_t = how.tiles["block_t"]
    reads = 1 - 1 / p.chunks
    loop = Loop(how.loops[0], reads * p.r * H / 128, 2.0 * block_t * 128 * p.r, 128 * p.r * 2 + block_t * SECTOR / 8)
    return Kernel(
        f"square_gradient{version}",
        blocks=p.rows // block_t,
        warps=how.warps,
        resident=how.resident,
        hbm_bytes=p.rows * 2 * (3 * p.r + H) + reads * p.heads * p.chunks * p.r**2 * H * 2,
        loops=[loop],
        edges=how.edges,
        descriptors=2,
    )
