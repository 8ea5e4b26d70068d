"""Synthetic records of trained models with losses by unit of replication: planted gains, never measured."""

import dataclasses
from itertools import product

import numpy as np
from synthetic_records import compare_train_step, record, train

UNITS = 32
SHARES = {"other": 0.7, "recalled_below_64": 0.2, "recalled_64_127": 0.1, "recalled_128_255": 0.0}
HYBRID = "polysketch_learned_local_r64"
SKETCH = {"bias": 1.0, "block_size": 64, "degree": 4, "local": True, "per_head": False, "qk_layernorm": True}
SKETCH |= {"scale": 1.0, "sketch": "learned", "sketch_size": 64}
WINDOW = {"bias": 1.0, "block_size": 64, "degree": 4, "qk_layernorm": None, "scale": None, "separate_norms": True}
ATTENTIONS = {
    HYBRID: {"name": "polysketch", **SKETCH},
    "polysketch_learned_r64": {"name": "polysketch", **SKETCH, "local": False},
    "local_polynomial_norms": {"name": "local", **WINDOW, "sliding": False, "weights": "polynomial"},
}
LOSSES = {"softmax": 1.9, "local": 2.0, "identity": 2.4, "performer": 1.95, "polysketch_random_r32": 2.0}


def by_unit(label, seed, loss, noise=0.003):
    """A loss for each unit: the text's and the seed's part are shared by all mechanisms."""
    rng = np.random.default_rng([seed, *label.encode()])
    units = np.random.default_rng(0).normal(0, 0.2, UNITS) + np.random.default_rng(seed).normal(0, 0.05)
    return loss + units + noise * rng.normal() + noise * rng.normal(size=UNITS)


def tested(losses):
    """What a test of a split says of so much loss by unit."""
    return {"loss": float(np.mean(losses)), "loss_by_unit": list(losses)}


def run(label, seed, loss, noise=0.003, seq_len=64, text="kjv", without=(), longer=(), kinds=(), **changes):
    """A run of training.

    Args:
        label: of synthetic_records, or of `ATTENTIONS`.
        without: the loss without each branch of a hybrid.
        longer: the loss at each other length.
        kinds: how much more the loss of each of `SHARES` is than that of all.
    """
    rng = np.random.default_rng([seed, *label.encode()])
    attention = ATTENTIONS.get(label)
    known = label if attention is None else HYBRID
    settings = {"text": text} if changes.get("task", "language_modelling") == "language_modelling" else {}
    changes = {"task": "language_modelling", "settings": settings, "evaluations": 4, "final": loss, **changes}
    one = train(known, seq_len, seed, rng, **({"attention": attention} if attention else {}), **changes)
    losses = by_unit(label, seed, loss, noise)
    test = {**one.measurements["test"], **tested(losses)}
    if kinds:
        more = dict(kinds)
        more["other"] = -sum(SHARES[kind] * extra for kind, extra in more.items()) / SHARES["other"]
        counts = {kind: round(10_000 * share) for kind, share in SHARES.items()}
        parts = {kind: count * (test["loss"] + more.get(kind, 0.0)) for kind, count in counts.items()}
        test["parts"] = {kind: {"answers": counts[kind], "loss": parts[kind]} for kind in counts}
    branches = {name: tested(by_unit(name, seed, of, noise)) for name, of in dict(without).items()}
    others = {str(n): tested(by_unit(f"{label}{n}", seed, of, noise)) for n, of in dict(longer).items()}
    measured = {**one.measurements, "test": test, "branches": branches, "longer": others, "unit": "documents"}
    return record({**one.config, "label": label}, measured)


def runs(losses=LOSSES, seeds=5, **changes):
    return [run(label, seed, loss, **changes) for label, loss in losses.items() for seed in range(seeds)]


def hybrid(window, sketch, seeds=5, base=2.4, **changes):
    """Runs of a hybrid whose branches earn so much over no other token, of both alone, and of three more."""
    whole = base - window - sketch
    alone = {"local_polynomial_norms": base - window, "polysketch_learned_r64": base - sketch}
    without = {"sketch": base - window, "sketch_numerator": base - window + 0.02}
    without |= {"window": base - sketch, "window_numerator": base - sketch + 0.01}
    others = runs({"softmax": base - 0.6, "identity": base, **alone}, seeds, **changes)
    return others + [run(HYBRID, seed, whole, without=without, **changes) for seed in range(seeds)]


def quality(seeds=2, lengths=(64, 128)):
    """Records that every figure and table of controls can be made from."""
    records = []
    for n in lengths:
        longer = {2 * n: 2.1, 4 * n: 2.5}
        kinds = {"recalled_below_64": -0.3, "recalled_64_127": -0.5}
        records += hybrid(0.4, 0.0, seeds, seq_len=n, text="sympy", longer=longer, kinds=kinds)
        records += [timed(("softmax", "flash", "performer"), n)]
    performers = product(lengths, range(seeds))
    return records + [run("performer", seed, 1.9, seq_len=n, text="sympy") for n, seed in performers]


def timed(labels, n, factors=(), seed=0, **changes):
    """Steps of training in interleaved rounds; each takes so many times what the others' model says, if named."""
    one = compare_train_step(labels, n, np.random.default_rng(seed), **{"settings": {"text": "sympy"}, **changes})
    samples = one.measurements["samples"]
    slower = {label: [dict(factors).get(label, 1.0) * each for each in own] for label, own in samples.items()}
    return dataclasses.replace(one, measurements={**one.measurements, "samples": slower})
