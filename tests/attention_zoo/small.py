"""Small inputs, mechanisms made for them, and how results are compared: what the tests of all mechanisms share."""

import numpy as np
import torch
from closeness import assert_near
from torch.utils._python_dispatch import TorchDispatchMode

import attention_zoo

H, HEADS = 4, 2


def sized(n, heads=HEADS, h=H, batch=2, seed=0, dtype=torch.float64, requires_grad=False):
    """A function that draws query, key and value, of these sizes unless it is told otherwise."""

    def qkv(n=n, keys=None, *, heads=heads, h=h, batch=batch, seed=seed, dtype=dtype, device="cpu"):
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            torch.randn(batch, heads, m, h, generator=generator, dtype=torch.float64) for m in (n, keys or n, keys or n)
        ]
        return [x.to(device, dtype).requires_grad_(requires_grad) for x in drawn]

    return qkv


def maker(name, **usual):
    """A function that makes the mechanism in float64, with these arguments unless it is told otherwise."""
    common = {"head_dim": H, "num_heads": HEADS, "dtype": torch.float64} | usual
    return lambda name=name, **given: attention_zoo.create(name, **(common | given))


@torch.no_grad()
def moved(module):
    """With parameters away from their initial values: a query's norm must not pass for a key's."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter += 0.3 * torch.randn(parameter.shape, generator=generator).to(parameter)
    return module


def softmax(*given, **settings):
    """Of query, key, value and mask."""
    query = given[0]
    return maker("softmax", head_dim=query.shape[3], num_heads=query.shape[1])(**settings)(*given)


def padding_mask(n, front=False):
    """Batch of three: padding scattered anywhere, at the end or in front, padding only."""
    mask = torch.zeros(3, n, dtype=torch.bool)
    mask[0] = torch.rand(n, generator=torch.Generator().manual_seed(7)) < 0.4
    mask[1, : 2 * n // 3] = front
    mask[1, 2 * n // 3 :] = not front
    mask[2] = True
    return mask


def masks(keys):
    """None; scattered, left and complete padding."""
    return {"full": None, "padded": padding_mask(keys, front=True)}


def padding_at(n, *positions):
    """Padding at these positions, `positions` for each item of a batch."""
    mask = torch.zeros(len(positions), n, dtype=torch.bool)
    for of_item, hidden in zip(mask, positions, strict=True):
        of_item[hidden] = True
    return mask


def assert_close(actual, expected, tolerance=1e-10):
    """But for so much of the largest number, or of 1; of one tensor, or of each of several."""
    pairs = [(actual, expected)] if isinstance(actual, torch.Tensor) else zip(actual, expected, strict=True)
    for one, other in pairs:
        scale = other.detach().abs().max().clamp_min(1)
        torch.testing.assert_close(one / scale, other / scale, rtol=0, atol=tolerance)


def unit_pair(cosine, h=8):
    """Two unit vectors with this inner product and no zero entries, `(2, h)`."""
    basis, _ = torch.linalg.qr(torch.randn(h, 2, generator=torch.Generator().manual_seed(4), dtype=torch.float64))
    first, other = basis.T
    return torch.stack([first, cosine * first + (1 - cosine**2) ** 0.5 * other])


def assert_moments(samples, *moments):
    """The means of the first, second, ... powers, to five of their standard errors."""
    for power, expected in enumerate(moments, start=1):
        powers = samples.detach().double().flatten() ** power
        assert abs(powers.mean() - expected) < 5 * powers.std() / len(powers) ** 0.5


def gradients(out, leaves, **options):
    """Of the output in some direction, zeros where it does not depend on a leaf."""
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return torch.autograd.grad(out, leaves, direction, allow_unused=True, materialize_grads=True, **options)


def outcomes(attention, tensors, mask=None):
    """The output, and the gradients of query, key, value and parameters."""
    leaves = [*(x.detach().clone().requires_grad_() for x in tensors), *attention.parameters()]
    out = attention(*leaves[:3], mask)
    return [out.detach(), *gradients(out, leaves)]


def assert_near_exact(attention, reference, given, mask, tolerance):
    """Output and gradients on a GPU are near those of the reference in double precision on the CPU."""
    exact = [x.detach().double().cpu().requires_grad_() for x in given]
    found, expected = attention(*given, None if mask is None else mask.cuda()), reference(*exact, mask)
    assert_near(found.cpu(), expected, tolerance)
    pairs = ((found, given), (expected, exact))
    slopes = [torch.autograd.grad(out.double().square().sum(), leaves) for out, leaves in pairs]
    assert_near([x.cpu() for x in slopes[0]], slopes[1], tolerance)


def hidden_state(*tensors):
    """Heads beside each other, queries beside keys beside values: a hidden state of which projections pick them."""
    return torch.cat([x.transpose(1, 2).flatten(2) for x in tensors], -1)


def heads_of(hidden, heads=HEADS):
    """`(batch, n, heads h)` as `(batch, heads, n, h)`."""
    return hidden.unflatten(2, (heads, -1)).transpose(1, 2)


def algorithm_2(x, state, r):
    """ICML version, Algorithm 2 for p = 4 in numpy: sqrt(r) tanh(f1(x) f2(x) / sqrt(r))."""

    def layernorm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def network(name):
        first, second, third, fourth = (state[f"{name}.weights.{i}"][0] for i in range(4))
        hidden = gelu(layernorm(x, f"{name}.layernorms.0") @ first) @ second
        return gelu(layernorm(hidden, f"{name}.layernorms.1") @ third) @ fourth

    return np.sqrt(r) * np.tanh(network("sketch.networks.0") * network("sketch.networks.1") / np.sqrt(r))


def decode(attention, inputs, state, start=0, padding=None):
    """The outputs of steps from position `start` on, side by side; a mask is given where a token is padding."""
    outs = []
    for position in range(start, inputs[0].shape[2]):
        mask = None if padding is None else padding[:, position, None]
        mask = mask if mask is not None and mask.any() else None
        outs.append(attention.step(*(x[:, :, position, None] for x in inputs), state, mask)[0])
    return torch.cat(outs, 2)


def steps_after(prompt, attention, given, mask):
    """Of the tokens one by one after a prompt with this mask: position, output and the row of softmax that it is."""
    padding = None if mask is None else torch.nn.functional.pad(mask, (0, given[0].shape[2] - prompt))
    expected = softmax(*given, padding, causal=True, dtype=given[0].dtype)
    _, state = attention.prefill(*(x[:, :, :prompt] for x in given), mask)
    for position in range(prompt, given[0].shape[2]):
        attention.executed = None
        out, _ = attention.step(*(x[:, :, position, None] for x in given), state)
        yield position, out, expected[:, :, position, None]


class LargestTensor(TorchDispatchMode):
    """The bytes and numbers of the largest tensor that any operation returns; what is only broadcast takes none.

    And how many operations there were.
    """

    bytes = entries = calls = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, torch.Tensor):
                size = tensor.untyped_storage().nbytes()
                self.bytes, self.entries = max(self.bytes, size), max(self.entries, size // tensor.element_size())
        return result
