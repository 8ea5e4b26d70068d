"""Mechanisms that are wrong, each in a way that a measurement must notice. Their matrices are those of right ones."""

import dataclasses
import os
import random

import numpy as np
import torch

from attention_zoo import attention_class

WRONG = {}
"""By name: the class, the settings of a cell, and what its reason must say."""

FLOAT64 = r"output: relative error .* against float64"
LATER = "not what the first gave"
CAUSAL = {"causal": True}
BEYOND_LOCAL = {"seq_len": 2200, "causal": True}
SPARSE = {"seq_len": 1100}
BOTH = {"passes": ["forward_backward"]}


def wrong(parent, name, reason, change, settings=(), **hyperparameters):
    """Note a class of mechanisms like `parent` whose output is `change(right, q, k, v, self)`.

    The parent's is `right(q, k, v)`. `self.calls` counts the calls, this one included.
    """
    right = attention_class(parent)

    def _attend(self, query, key, value, padding):
        self.calls = getattr(self, "calls", 0) + 1
        return change(lambda q, k, v: right._attend(self, q, k, v, padding), query, key, value, self)

    info = dataclasses.replace(right.info, name=f"{parent}_{name}", implementations=("reference",))
    cls = type(info.name, (right,), {"info": info, "_attend": _attend, "__module__": __name__})
    WRONG[info.name] = cls, {"attention": {"name": info.name, **hyperparameters}, **dict(settings)}, reason


def changed(x, *index, to=0):
    x = x.clone()
    x[index] = to
    return x


class Backward(torch.autograd.Function):
    """The identity, whose gradient is changed."""

    @staticmethod
    def forward(ctx, x, change):
        ctx.change = change
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.change(gradient), None


def pulling(change):
    """The right output, whose gradient is changed."""
    return lambda right, q, k, v, self: Backward.apply(right(q, k, v), change)


def seeing(**attributes):
    """The right output of a mechanism whose attributes are changed."""

    def change(right, q, k, v, self):
        before = {name: getattr(self, name) for name in attributes}
        vars(self).update(attributes)
        out = right(q, k, v)
        vars(self).update(before)
        return out

    return change


EVERY_THIRD = ..., slice(None, None, 3), slice(None)

# --- Wrong output ---------------------------------------------------------------------------------

wrong("polysketch", "sees_the_future", FLOAT64, seeing(causal=False), CAUSAL)
wrong("v_mean", "none", "output is NoneType, must be a tensor", lambda right, q, k, v, self: None)
wrong("performer", "all_zeros", FLOAT64, lambda right, q, k, v, self: torch.zeros_like(v))
for parent, size in (("skeinformer", "num_features"), ("linformer", "projection_dim")):
    wrong(parent, "a_thousandth_too_large", FLOAT64, lambda right, *qkv: 1.001 * right(*qkv[:3]), **{size: 16})
off = torch.tensor([1, 1.0015])[:, None, None]
wrong("softmax", "one_head_off", "head 1", lambda right, q, k, v, self: right(q, k, v) * off)


def between(right, q, k, v, self):
    out = right(q, k, v)
    return changed(out, 0, 1, 77, 3, to=torch.nan) if len(out) > 1 else out


def forgets_all_but_the_local_block(right, q, k, v, self):
    blocks = zip(*(x.split(1024, 2) for x in (q, k, v)), strict=True)
    return torch.cat([right(*block) for block in blocks], 2)


def without_window_and_random_blocks(right, q, k, v, self):
    block = torch.arange(q.shape[2]) // self.block_size
    is_edge = (block == 0) | (block == block[-1])
    seen = is_edge | is_edge[:, None] | (block[:, None] == block)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v


nan_at = r"1 of \d+ values are not finite, the first at \(0, 1, 77, 3\)"
wrong("softmax", "one_nan_between_the_rows_that_are_compared", nan_at, between)
wrong("polysketch", "forgets", FLOAT64, forgets_all_but_the_local_block, BEYOND_LOCAL, local=True)
wrong("bigbird", "without_blocks", FLOAT64, without_window_and_random_blocks, SPARSE)
for parent, size in (("reformer", "bucket_size"), ("informer", "num_features")):
    third = {size: 16}
    wrong(parent, "a_third_zero", FLOAT64, lambda right, *qkv: changed(right(*qkv[:3]), *EVERY_THIRD), **third)


wrong("nystromformer", "one_step_towards_the_inverse", FLOAT64, seeing(iterations=1), num_landmarks=16)

# --- Where nobody looked --------------------------------------------------------------------------


def at_the_last_position(right, q, k, v, self):
    out = right(q, k, v)
    return changed(out, ..., 799, slice(None)) if q.shape[2] == 800 else out


def in_the_last_sequence(right, q, k, v, self):
    out = right(q, k, v)
    return changed(out, -1) if len(q) > 1 else out


def with_grad(enabled):
    return lambda right, q, k, v, self: right(q, k, v) * (1.1 if torch.is_grad_enabled() is enabled else 1)


wrong("softmax", "at_the_last_position", "position 799", at_the_last_position, {"seq_len": 800})
wrong("softmax", "in_the_last_sequence", "sequence 3", in_the_last_sequence, {"batch_size": 4})
wrong("softmax", "with_grad_enabled", "forward_backward.* output", with_grad(True), BOTH)
wrong("softmax", "with_grad_disabled", "forward of .* output", with_grad(False))
shapes = r"output is \(1, 2, 1, 16\) float32 on cpu, must be \(1, 2, 65, 16\) float32"
wrong("softmax", "of_one_row", shapes, lambda right, q, k, v, self: right(q, k, v)[:, :, -1:])
dtypes = r"float64 on cpu, must be .* float32 on cpu"
wrong("softmax", "of_another_dtype", dtypes, lambda right, q, k, v, self: right(q, k, v).double())

# --- Wrong gradients ------------------------------------------------------------------------------


def no_gradient_of_its_norm(right, q, k, v, self):
    for parameter in self.parameters():
        parameter.requires_grad_(False)
    out = right(q, k, v)
    for parameter in self.parameters():
        parameter.requires_grad_(True)
    return out + 0 * self.layernorm.weight.sum() + 0 * self.layernorm.bias.sum()


of_high_degree = {**BOTH, **CAUSAL, "dtype": "bfloat16"}
of_blocks = {**SPARSE, **BOTH, "dtype": "bfloat16"}
wrong("softmax", "zero_gradient", "gradient of query", pulling(torch.zeros_like), {"passes": ["backward"]})
wrong("polysketch", "zero_gradient", "gradient of query", pulling(torch.zeros_like), of_high_degree, degree=8)
no_block = pulling(lambda gradient: changed(gradient, ..., slice(64), slice(None)))
wrong("bigbird", "no_gradient_of_a_block", r"gradient of (query|key|value): relative error", no_block, of_blocks)
not_finite = r"gradient of \w+: \d+ of \d+ values are not finite"
wrong("softmax", "nan_gradient", not_finite, pulling(lambda gradient: torch.nan * gradient), BOTH)
wrong("softmax", "gradient_too_large", "gradient of query", pulling(lambda gradient: 1.01 * gradient), BOTH)
wrong("softmax", "no_gradient_of_keys", "gradient of key", lambda right, q, k, v, self: right(q, k.detach(), v), BOTH)
of_first = pulling(lambda gradient: changed(gradient, slice(1, None)))
wrong("softmax", "gradient_of_the_first_sequence_only", "gradient of query.* sequence 1", of_first, BOTH)
wrong("polynomial", "no_gradient_of_its_norm", r"gradient of layernorm\.weight", no_gradient_of_its_norm, BOTH)

# --- Right at first -------------------------------------------------------------------------------


def from_the_sixth_call(change):
    return lambda right, *qkv: change(right(*qkv[:3])) if qkv[3].calls >= 6 else right(*qkv[:3])


def remembered(right, q, k, v, self):
    """What it was for the first call with as many numbers at the same place."""
    memory, key = self.__dict__.setdefault("memory", {}), (q.data_ptr(), q.shape)
    if key not in memory:
        memory[key] = right(q, k, v)
    return memory[key]


wrong("softmax", "nan_from_the_sixth_call", LATER, from_the_sixth_call(lambda out: out * torch.nan))
wrong("softmax", "one_row_from_the_sixth_call", LATER, from_the_sixth_call(lambda out: changed(out, 1, 1, 33)))
later_gradient = from_the_sixth_call(lambda out: Backward.apply(out, torch.zeros_like))
wrong("softmax", "gradient_from_the_sixth_call", LATER, later_gradient, BOTH)
wrong("softmax", "remembered", "that of an earlier call", remembered)

# --- What is around it ----------------------------------------------------------------------------


def beside(change, only=lambda self: True):
    """The right output, and something else that it does."""

    def right_and_more(right, q, k, v, self):
        out = right(q, k, v)
        if only(self):
            change(q, k, v)
        return out

    return right_and_more


def in_place(change):
    return beside(torch.no_grad()(change), lambda self: self.calls > 1)


AROUND = {
    "its input query": in_place(lambda q, k, v: (q.zero_(), k.zero_())),
    "its input value": in_place(lambda q, k, v: v.mul_(2)),
    "torch's random state": beside(lambda *qkv: torch.manual_seed(123456789)),  # which no test sets
    "NumPy's random state": beside(lambda *qkv: np.random.rand()),
    "Python's random state": beside(lambda *qkv: random.random()),
    "the default dtype to torch.float64": beside(lambda *qkv: torch.set_default_dtype(torch.float64)),
    "the number of threads": beside(
        lambda *qkv: torch.set_num_threads(torch.get_num_threads() + 1), lambda self: self.calls == 1
    ),
    "the working directory to /": beside(lambda *qkv: os.chdir("/")),
    "the precision of float32 products to medium": beside(lambda *qkv: torch.set_float32_matmul_precision("medium")),
}
for what, change in AROUND.items():
    wrong("softmax", f"changes_{what.split()[-1]}" if "input" in what else what, f"changed {what}", change)
off_for_good = beside(lambda *qkv: torch.autograd.grad_mode.set_grad_enabled(False))
wrong("softmax", "turns_gradients_off", "changed the grad mode", off_for_good, BOTH)
