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
CAUSAL = {"causal": True}
BEYOND_LOCAL = {"seq_len": 2200, "causal": True}
SPARSE = {"seq_len": 1100}
BOTH = {"passes": ["forward_backward"]}


def wrong(parent, reason, settings=(), **hyperparameters):
    """Decorator: a copy of `parent` whose output is `change(right, q, k, v, self)`; the parent's is `right(q, k, v)`.

    `self.calls` counts its calls, this one included.
    """

    def decorate(change):
        right = attention_class(parent)
        name = f"{parent}_{change.__name__}"

        def _attend(self, query, key, value, padding):
            self.calls = getattr(self, "calls", 0) + 1
            return change(lambda q, k, v: right._attend(self, q, k, v, padding), query, key, value, self)

        info = dataclasses.replace(right.info, name=name, implementations=("reference",))
        cls = type(name, (right,), {"info": info, "_attend": _attend, "__module__": __name__})
        WRONG[name] = cls, {"attention": {"name": name, **hyperparameters}, **dict(settings)}, reason
        return change

    return decorate


def with_zeros(x, *index):
    x = x.clone()
    x[index] = 0
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


# --- Wrong output ---------------------------------------------------------------------------------


@wrong("polynomial", FLOAT64, CAUSAL)
@wrong("softmax", FLOAT64, CAUSAL)
def off_by_one(right, q, k, v, self):
    return right(q, k.roll(-1, 2), v.roll(-1, 2))


@wrong("linear", FLOAT64, CAUSAL)
@wrong("performer", FLOAT64, CAUSAL)
@wrong("polysketch", FLOAT64, CAUSAL)
@wrong("softmax", FLOAT64, CAUSAL)
def sees_the_future(right, q, k, v, self):
    self.causal = False
    out = right(q, k, v)
    self.causal = True
    return out


@wrong("polynomial", FLOAT64)
@wrong("softmax", FLOAT64)
def sides_swapped(right, q, k, v, self):
    return right(k, q, v)


@wrong("performer", FLOAT64)
@wrong("softmax", FLOAT64)
def heads_swapped(right, q, k, v, self):
    return right(q, k.flip(1), v)


@wrong("softmax", FLOAT64)
def not_scaled(right, q, k, v, self):
    return right(q * q.shape[-1] ** 0.5, k, v)


@wrong("performer", FLOAT64)
@wrong("softmax", FLOAT64)
def all_zeros(right, q, k, v, self):
    return torch.zeros_like(v)


@wrong("softmax", FLOAT64)
def value_itself(right, q, k, v, self):
    return v.clone()


@wrong("skeinformer", FLOAT64, num_features=16)
@wrong("linformer", FLOAT64, projection_dim=16)
@wrong("softmax", FLOAT64)
def a_thousandth_too_large(right, q, k, v, self):
    return 1.001 * right(q, k, v)


@wrong("softmax", "head 1")
def one_head_off(right, q, k, v, self):
    return right(q, k, v) * torch.tensor([1, 1.0015])[:, None, None]


@wrong("softmax", r"1 of \d+ values are not finite, the first at \(0, 1, 7, 3\)")
def one_nan(right, q, k, v, self):
    out = right(q, k, v).clone()
    out[0, 1, 7, 3] = torch.nan
    return out


@wrong("softmax", r"1 of \d+ values are not finite")
def one_nan_between_the_rows_that_are_compared(right, q, k, v, self):
    out = right(q, k, v)
    if len(out) > 1:
        out[0, 1, 77, 3] = torch.nan
    return out


@wrong("polysketch", FLOAT64, BEYOND_LOCAL, local=True)
def local_with_a_sketch_of_noise(right, q, k, v, self):
    generator = torch.Generator().manual_seed(0)
    self.features = lambda x: 8 * torch.randn(*x.shape[:3], self.sketch_size, generator=generator)
    out = right(q, k, v)
    del self.features
    return out


@wrong("polysketch", FLOAT64, BEYOND_LOCAL, local=True)
def forgets_all_but_the_local_block(right, q, k, v, self):
    blocks = zip(*(x.split(1024, 2) for x in (q, k, v)), strict=True)
    return torch.cat([right(*block) for block in blocks], 2)


@wrong("bigbird", FLOAT64, SPARSE)
def without_window_and_random_blocks(right, q, k, v, self):
    block = torch.arange(q.shape[2]) // self.block_size
    is_edge = (block == 0) | (block == block[-1])
    seen = is_edge | is_edge[:, None] | (block[:, None] == block)
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf).softmax(-1) @ v


@wrong("bigbird", FLOAT64, SPARSE)
def half_of_the_rows_zero(right, q, k, v, self):
    return with_zeros(right(q, k, v), ..., slice(None, None, 2), slice(None))


@wrong("reformer", FLOAT64, bucket_size=16)
@wrong("skeinformer", FLOAT64, num_features=16)
@wrong("informer", FLOAT64, num_features=16)
def a_third_of_the_rows_zero(right, q, k, v, self):
    return with_zeros(right(q, k, v), ..., slice(None, None, 3), slice(None))


@wrong("nystromformer", FLOAT64, num_landmarks=16)
@wrong("linformer", FLOAT64, projection_dim=16)
def last_keys_left_out(right, q, k, v, self):
    return right(q, with_zeros(k, ..., slice(-20, None), slice(None)), v)


@wrong("nystromformer", FLOAT64, num_landmarks=16)
def one_step_towards_the_inverse(right, q, k, v, self):
    iterations, self.iterations = self.iterations, 1
    out = right(q, k, v)
    self.iterations = iterations
    return out


# --- Where nobody looked --------------------------------------------------------------------------


@wrong("softmax", r"position [67]\d\d", {"seq_len": 800})
def beyond_position_577(right, q, k, v, self):
    return with_zeros(right(q, k, v), ..., slice(577, None), slice(None))


@wrong("softmax", "position 799", {"seq_len": 800})
def at_the_last_position(right, q, k, v, self):
    out = right(q, k, v)
    return with_zeros(out, ..., 799, slice(None)) if q.shape[2] == 800 else out


@wrong("softmax", "sequence [12]", {"batch_size": 3})
def after_the_first_sequence(right, q, k, v, self):
    return with_zeros(right(q, k, v), slice(1, None))


@wrong("softmax", "sequence 3", {"batch_size": 4})
def in_the_last_sequence(right, q, k, v, self):
    out = right(q, k, v)
    return with_zeros(out, -1) if len(q) > 1 else out


@wrong("softmax", "forward_backward.* output", BOTH)
def with_grad_enabled(right, q, k, v, self):
    return right(q, k, v) * (1.1 if torch.is_grad_enabled() else 1)


@wrong("softmax", "forward of .* output")
def with_grad_disabled(right, q, k, v, self):
    return right(q, k, v) * (1 if torch.is_grad_enabled() else 1.1)


@wrong("softmax", r"output is \(1, 2, 1, 16\) float32 on cpu, must be \(1, 2, 65, 16\) float32")
def of_one_row(right, q, k, v, self):
    return right(q, k, v)[:, :, -1:]


@wrong("softmax", r"float64 on cpu, must be .* float32 on cpu")
def of_another_dtype(right, q, k, v, self):
    return right(q, k, v).double()


# --- Wrong gradients ------------------------------------------------------------------------------


@wrong("softmax", "gradient of query", {"passes": ["backward"]})
def zero_gradient(right, q, k, v, self):
    return Backward.apply(right(q, k, v), torch.zeros_like)


@wrong("performer", "gradient of query", BOTH)
@wrong("polynomial_square", "gradient of query", {**BOTH, **CAUSAL, "dtype": "bfloat16"}, degree=6)
@wrong("polysketch", "gradient of query", {**BOTH, **CAUSAL, "dtype": "bfloat16"}, degree=8)
def zero_gradient_too(right, q, k, v, self):
    return Backward.apply(right(q, k, v), torch.zeros_like)


@wrong("bigbird", r"gradient of (query|key|value): relative error", {**SPARSE, **BOTH, "dtype": "bfloat16"})
def no_gradient_of_the_first_block(right, q, k, v, self):
    return Backward.apply(right(q, k, v), lambda gradient: with_zeros(gradient, ..., slice(64), slice(None)))


@wrong("softmax", r"gradient of \w+: \d+ of \d+ values are not finite", BOTH)
def nan_gradient(right, q, k, v, self):
    return Backward.apply(right(q, k, v), lambda gradient: torch.nan * gradient)


@wrong("softmax", "gradient of query", BOTH)
def gradient_one_percent_too_large(right, q, k, v, self):
    return Backward.apply(right(q, k, v), lambda gradient: 1.01 * gradient)


@wrong("softmax", "gradient of key", BOTH)
def no_gradient_of_keys(right, q, k, v, self):
    return right(q, k.detach(), v)


@wrong("softmax", "gradient of query.* sequence 1", BOTH)
def gradient_of_the_first_sequence_only(right, q, k, v, self):
    return Backward.apply(right(q, k, v), lambda gradient: with_zeros(gradient, slice(1, None)))


@wrong("softmax", "gradient of .* head 1", {**BOTH, "seq_len": 800})
def gradient_up_to_position_577_only(right, q, k, v, self):
    return Backward.apply(right(q, k, v), lambda gradient: with_zeros(gradient, 0, 1, slice(577, None)))


@wrong("polynomial", r"gradient of layernorm\.weight", BOTH)
def no_gradient_of_its_norm(right, q, k, v, self):
    for parameter in self.parameters():
        parameter.requires_grad_(False)
    out = right(q, k, v)
    for parameter in self.parameters():
        parameter.requires_grad_(True)
    return out + 0 * self.layernorm.weight.sum() + 0 * self.layernorm.bias.sum()


# --- Right at first -------------------------------------------------------------------------------


@wrong("softmax", "not what the first gave")
def half_from_the_sixth_call(right, q, k, v, self):
    return right(q, k, v) * (0.5 if self.calls >= 6 else 1)


@wrong("softmax", "not what the first gave")
def nan_from_the_sixth_call(right, q, k, v, self):
    return right(q, k, v) * (torch.nan if self.calls >= 6 else 1)


@wrong("softmax", "not what the first gave")
def one_row_from_the_sixth_call(right, q, k, v, self):
    out = right(q, k, v)
    return with_zeros(out, 1, 1, 33) if self.calls >= 6 else out


@wrong("softmax", "not what the first gave", BOTH)
def gradient_from_the_sixth_call(right, q, k, v, self):
    out = right(q, k, v)
    return Backward.apply(out, torch.zeros_like) if self.calls >= 6 else out


def remembered(self, key, compute):
    memory = self.__dict__.setdefault("memory", {})
    if key not in memory:
        memory[key] = compute()
    return memory[key]


@wrong("softmax", "that of an earlier call")
def remembered_by_shape(right, q, k, v, self):
    return remembered(self, q.shape, lambda: right(q, k, v))


@wrong("softmax", "that of an earlier call")
def remembered_by_address(right, q, k, v, self):
    return remembered(self, (q.data_ptr(), q.shape), lambda: right(q, k, v))


@wrong("softmax", "not what the first gave")
def remembered_from_the_sixth_call(right, q, k, v, self):
    return right(q, k, v) if self.calls < 6 else remembered(self, q.shape, lambda: right(q, k, v))


# --- What is around it ----------------------------------------------------------------------------


@wrong("softmax", "changed its input query")
def zeroes_query_and_key(right, q, k, v, self):
    out = right(q, k, v)
    if self.calls > 1:
        q.zero_(), k.zero_()
    return out


@wrong("softmax", "changed its input value")
def doubles_the_value(right, q, k, v, self):
    out = right(q, k, v)
    if self.calls > 1:
        v.mul_(2)
    return out


@wrong("softmax", "changed torch's random state")
def seeds_torch(right, q, k, v, self):
    torch.manual_seed(0)
    return right(q, k, v)


@wrong("softmax", "changed NumPy's random state")
def draws_from_numpy(right, q, k, v, self):
    return right(q, k, v) + 0 * np.random.rand()


@wrong("softmax", "changed Python's random state")
def draws_from_python(right, q, k, v, self):
    return right(q, k, v) + 0 * random.random()


@wrong("softmax", "changed the default dtype to torch.float64")
def sets_the_default_dtype(right, q, k, v, self):
    torch.set_default_dtype(torch.float64)
    return right(q, k, v)


@wrong("softmax", "changed the number of threads")
def sets_the_threads(right, q, k, v, self):
    if self.calls == 1:
        torch.set_num_threads(torch.get_num_threads() + 1)
    return right(q, k, v)


@wrong("softmax", "changed the working directory to /")
def changes_the_folder(right, q, k, v, self):
    os.chdir("/")
    return right(q, k, v)


@wrong("softmax", "changed the grad mode", BOTH)
def turns_gradients_off(right, q, k, v, self):
    out = right(q, k, v)
    torch.autograd.grad_mode.set_grad_enabled(False)
    return out


@wrong("softmax", "changed the precision of float32 products to medium")
def allows_less_precision(right, q, k, v, self):
    torch.set_float32_matmul_precision("medium")
    return right(q, k, v)


IN_BFLOAT16 = {}
"""By name: classes that are right in other dtypes."""


def in_bfloat16(change):
    """Decorator: a copy of softmax with a forward pass that is `change(right, self, q, k, v)` in bfloat16 only."""
    right = attention_class("softmax")

    def _attend(self, query, key, value, padding):
        if query.dtype != torch.bfloat16:
            return right._attend(self, query, key, value, padding)
        return change(lambda q, k, v: right._attend(self, q, k, v, padding), self, query, key, value)

    info = dataclasses.replace(right.info, name=f"softmax_{change.__name__}", implementations=("reference",))
    IN_BFLOAT16[info.name] = type(info.name, (right,), {"info": info, "_attend": _attend, "__module__": __name__})
    return change


@in_bfloat16
def wrong_in_bfloat16(right, self, query, key, value):
    return right(query, key, value) * 1.5


@in_bfloat16
def remembers_in_bfloat16(right, self, query, key, value):
    """From the first call with the cell's own inputs on."""
    if len(query) > 1:
        self.out = getattr(self, "out", None)
        self.out = right(query, key, value) if self.out is None else self.out
        return self.out
    return right(query, key, value)


@in_bfloat16
def spoils_in_bfloat16(right, self, query, key, value):
    """As soon as it sees the cell's own."""
    out = right(query, key, value)
    if len(query) > 1:
        with torch.no_grad():
            query.zero_()
    return out
