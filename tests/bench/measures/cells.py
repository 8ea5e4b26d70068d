"""Cells for tests of measures: their configuration, and contexts with mechanisms of the test's own."""

import time

import torch

from bench import measures
from bench.measures.context import CellContext


def config(name="v_mean", bench=None, **changes):
    return {
        "label": name,
        "attention": {"name": name},
        "bench": bench or {"name": "latency", "passes": ["forward"], "min_sample_ms": 0.0},
        "inputs": {"name": "gaussian", "score_scale": 1.0},
        "seq_len": 64,
        "batch_size": 2,
        "num_heads": 2,
        "head_dim": 8,
        "dtype": "float32",
        "causal": False,
        "device": "cpu",
        "impl": "auto",
        "seed": 0,
        "repeats": 5,
        **changes,
    }


def measure(context):
    """By the benchmark of the context's settings, the rest as by default."""
    bench = context.config["bench"]
    own = {key: value for key, value in bench.items() if key not in ("name", "against")}
    return measures.get(bench["name"])(**own).measure(context)


def measured(*cell, **changes):
    """Of a cell of a real mechanism, as `config`."""
    return measure(CellContext(config(*cell, **changes), None))


def said(name, measurements):
    """The numbers of a benchmark by their names."""
    return {one.metric: one for one in measures.get(name).quantities(measurements)}


class NoCheck:
    """A correctness check that finds everything right, for mechanisms that compute nothing."""

    gradient = None

    def find_nothing(self, *arguments):
        pass

    check_before = check_forward = set_sign = check_first = check_last = finish = find_nothing


class Given:
    """A context of tensors, a mechanism and the exact function that it approximates, all given by hand."""

    def __init__(self, attention, inputs, exact=None, seed=0, repeats=2):
        self.config = {"label": "fake", "seed": seed, "repeats": repeats}
        self.seen, self.trained = [], set()
        self.attention, self.inputs, self.exact = lambda: attention, lambda: inputs, lambda: exact

    def correctness_check(self, inputs):
        return NoCheck()

    def progress(self, done, total):
        self.seen.append((done, total))


class Sleeping(torch.nn.Module):
    """A mechanism whose forward and backward pass last as long as they are told."""

    def __init__(self, forward_s=0.0, backward_s=0.0, order=None):
        super().__init__()
        self.forward_s, self.backward_s, self.order = forward_s, backward_s, [] if order is None else order

    def forward(self, query, key, value, padding=None):
        self.order.append(self.forward_s)
        time.sleep(self.forward_s)
        out = query + key + value
        if out.requires_grad:
            out.register_hook(lambda gradient: time.sleep(self.backward_s))
        return out


class SleepingBench(CellContext):
    def __init__(self, config, *sleepers):
        super().__init__(config, None)
        self.sleepers = dict(zip((c["label"] for c in self.configs()), sleepers, strict=True))

    def attention(self, **changes):
        return next(iter(self.sleepers.values()))

    def attentions(self):
        return self.sleepers

    def correctness_check(self, inputs):
        return NoCheck()
