"""Small kernels that a compiler treats well and badly, each a call; as a script it says in JSON what became of them."""

import json
from dataclasses import replace

import torch
import triton
import triton.language as tl

from attention_zoo.ops import launching
from attention_zoo.ops.launching import Configuration, Entry
from tools.kernels.call import Call

LENGTH, R, H = 256, 64, 64


@triton.jit
def product(a, b, out, K, M: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, SQUARE: tl.constexpr):
    """A [M, K] times B [K, N], or A's squares, which pass through registers."""
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK)
    total = tl.zeros([M, N], tl.float32)
    for start in range(0, K, BLOCK):
        left = tl.load(a + m[:, None] * K + start + k[None, :])
        if SQUARE:
            left = left * left
        total = tl.dot(left, tl.load(b + (start + k)[:, None] * N + n[None, :]), total)
    tl.store(out + m[:, None] * N + n[None, :], total)


@triton.jit
def expansion(q, w, out, R: tl.constexpr, H: tl.constexpr, T: tl.constexpr, C: tl.constexpr):
    """All products of two of the R features of T rows, times W [R * R, H], C features at a time."""
    t, c, r, h = tl.arange(0, T), tl.arange(0, C), tl.arange(0, R), tl.arange(0, H)
    y = tl.load(q + t[:, None] * R + r[None, :])
    total = tl.zeros([T, H], tl.float32)
    for i in range(0, R, C):
        x = tl.load(q + t[:, None] * R + i + c[None, :])
        both = tl.reshape(x[:, :, None] * y[:, None, :], [T, C * R])
        total = tl.dot(both, tl.load(w + (i * R + tl.arange(0, C * R))[:, None] * H + h[None, :]), total)
    tl.store(out + t[:, None] * H + h[None, :], total)


PRODUCTS = (
    Entry("from shared memory", Configuration({"M": 128, "N": 64, "BLOCK": 64}, 4, 3)),
    Entry("squared", Configuration({"M": 128, "N": 64, "BLOCK": 64}, 4, 3)),
    Entry("without registers", Configuration({"M": 128, "N": 64, "BLOCK": 64}, 4, 3, registers=64)),
    Entry("impossible", Configuration({"M": 128, "N": 128, "BLOCK": 64}, 4, 3, registers=64)),
    Entry("too deep", Configuration({"M": 128, "N": 128, "BLOCK": 128}, 8, 5)),
    Entry("of half a warp group", Configuration({"M": 64, "N": 64, "BLOCK": 64}, 2, 3)),
)
EXPANSIONS = (
    Entry("streaming", Configuration({"T": 128, "C": 2}, 4, 3)),
    Entry("one feature at a time", Configuration({"T": 128, "C": 1}, 4, 3)),
)
# By target; None is all.
WANTED = {80: ("from shared memory",), 90: None, 100: ("from shared memory",)}
CANDIDATES = {
    "from shared memory": (
        Configuration({"M": 128, "N": 64, "BLOCK": 64}, 4, 3),
        Configuration({"M": 128, "N": 64, "BLOCK": 128}, 4, 2, registers=128),
        Configuration({"M": 64, "N": 64, "BLOCK": 64}, 4, 3),  # leaves half of the result as it was
        Configuration({"M": 128, "N": 64, "BLOCK": 100}, 4, 3),  # no power of two
    )
}


def multiply(a, b, name):
    """A B in float32, by the product kernel as it is used under this name."""
    configuration = launching.configuration(PRODUCTS, name, a)
    out = a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32)
    product[(1,)](a, b, out, a.shape[1], SQUARE=name == "squared", **configuration.options)
    return out


def expand(q, w, name):
    """The expanded features of q times W in float32."""
    configuration = launching.configuration(EXPANSIONS, name, q)
    out = q.new_empty(q.shape[0], w.shape[1], dtype=torch.float32)
    expansion[(1,)](q, w, out, q.shape[1], w.shape[1], **configuration.options)
    return out


def calls(dtype=torch.bfloat16):
    """One of each row, and those that say of the products that they stream."""
    made = [_product(row, dtype) for row in PRODUCTS] + [_expansion(row, dtype) for row in EXPANSIONS]
    plain, squared = made[:2]
    made.append(replace(plain, name="expected to stream", streaming=("product",)))
    made.append(replace(squared, name="expected to stream, squared", streaming=("product",)))
    return [*made, Call("three launches", dtype, lambda device: _in_turn(made, device), streaming=("expansion",))]


def _in_turn(made, device):
    """One version of a kernel twice, then another."""
    launches = {call.name: call.make(device) for call in made}
    return lambda: [launches[name]() for name in ("streaming", "streaming", "one feature at a time")]


def _product(row, dtype):
    m, n = row.configuration.tiles["M"], row.configuration.tiles["N"]

    def make(device):
        a, b = torch.randn(m, LENGTH, device=device, dtype=dtype), torch.randn(LENGTH, n, device=device, dtype=dtype)
        return lambda: multiply(a, b, row.kernel)

    return Call(row.kernel, dtype, make)


def _expansion(row, dtype):
    t = row.configuration.tiles["T"]

    def make(device):
        q, w = torch.randn(t, R, device=device, dtype=dtype), torch.randn(R * R, H, device=device, dtype=dtype)
        return lambda: expand(q, w, row.kernel)

    return Call(row.kernel, dtype, make, streaming=("expansion",))


def main():
    """By target and call: what the table would say of the last kernel, or why it was not compiled."""
    from tools.kernels import ahead_of_time, recorded

    found = {}
    for target, names in WANTED.items():
        for call in calls():
            if names is None or call.name in names:
                try:
                    *_, last = ahead_of_time.compile_call(call, target)
                    said = recorded.row(last)._asdict()
                except RuntimeError as error:
                    said = str(error)
                found.setdefault(target, {})[call.name] = said
    print(json.dumps(found))


if __name__ == "__main__":
    main()
