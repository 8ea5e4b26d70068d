"""Synthetic records of models trained on Long Range Arena: planted accuracies, never measured."""

import zlib

import numpy as np
from synthetic_records import config, record

UNITS = 32
SKEINFORMER = "skeinformer num_features=32"
LABELS = {
    "flash": {"name": "flash"},
    SKEINFORMER: {"name": "skeinformer", "num_features": 32},
    "local": {"name": "local", "block_size": 32},
    "bag_of_tokens": {"name": "identity"},
    "convolution": {"name": "identity"},
}
LAYERS = {"bag_of_tokens": 0, "convolution": 3}
ACCURACIES = {"flash": 0.8, SKEINFORMER: 0.78, "local": 0.7, "bag_of_tokens": 0.6, "convolution": 0.65}


def cell(label, seed, accuracy, task="text", n=256, given=None, training=(), model=(), mask=None, busy=0.01, **sizes):
    """A run of training whose test accuracy is `accuracy`, but for what seed, group of examples and both add to it.

    Args:
        given: the attention, where it is not that of the label in `LABELS`.
        training: settings that differ from the usual ones; so are `model` and `mask`.
        busy: the share of the time in which something else used the cores.
        sizes: of the cell.
    """
    rng = np.random.default_rng([seed, *label.encode(), zlib.crc32(str((training, model, mask)).encode())])
    units = np.random.default_rng(0).normal(0, 0.03, UNITS) + np.random.default_rng(seed).normal(0, 0.01)
    right = np.clip(accuracy + units - units.mean() + 0.005 * rng.normal(size=UNITS), 0, 1)
    shape = {"batch_size": 16, "num_heads": 2, "head_dim": 32, "causal": False, "seed": seed, **sizes}
    base = config(label, {"name": "train"}, n, attention=given or LABELS[label], **shape)
    name = label if label in LAYERS else "classifier"
    usual = {"steps": 40, "learning_rate": 0.003, "schedule": "one_cycle", "accumulate": 1, "compile": False}
    usual |= {"checkpoint": "best", "order": "shuffled", "pretrain_steps": 0, "epsilon": 1e-6, "patience": None}
    own = {"dimensions": 1} if name == "convolution" else {}
    settings = {
        "inputs": {"name": task},
        "model": {"name": name, "layers": LAYERS.get(label, 2), "dropout": 0.1, "pooling": "all", **own, **dict(model)},
        "task": {"name": task, "data": "stand-in", **({} if mask is None else {"mask": mask})},
        "training": usual | dict(training),
    }
    losses = 0.7 - 0.1 * accuracy * np.arange(1, 5)
    rest = {"examples": 256, "token_accuracy": 0.5, "example_accuracy": 0.5}
    found = [{"step": 10 * (i + 1), "loss": float(loss), **rest} for i, loss in enumerate(losses)]
    accuracies = {"token_accuracy": float(right.mean()), "example_accuracy": float(right.mean())}
    test = {**found[-1], **accuracies, "accuracy_by_unit": right.tolist()}
    wrong = 1 - right
    test |= {"loss_by_position": [test["loss"]], "loss_by_unit": wrong.tolist(), "loss": float(wrong.mean())}
    seconds = [0.5 + 0.1 * len(label)] * 40
    curve = {key: [0.5] * 40 for key in ("train_loss", "gradient_norm", "learning_rate")}
    measured = {"curve": curve, "seconds": seconds, "validation": found, "test": test, "source": f"{task} (stand-in)"}
    made = record({**base, **settings}, measured)
    made.host_state["during"]["others_s"] = busy
    return made


def cells(accuracies=ACCURACIES, seeds=5, **changes):
    return [cell(label, seed, accuracy, **changes) for label, accuracy in accuracies.items() for seed in range(seeds)]


def arena(seeds=2):
    """Records that every figure and table of Long Range Arena can be made from."""
    both = {label: ACCURACIES[label] for label in ("flash", SKEINFORMER)}
    records = cells(seeds=seeds) + cells(both, seeds, training={"checkpoint": "last"})
    for rate in (0.001, 0.003):
        for batch in (8, 32):
            changes = {"training": {"learning_rate": rate}, "batch_size": batch}
            records += cells({SKEINFORMER: 0.7 + 10 * rate + batch / 1000}, seeds, **changes)
    for size in (8, 128):
        given = {"name": "skeinformer", "num_features": size}
        label = f"skeinformer num_features={size}"
        records += [cell(label, seed, 0.7 + size / 1e3, given=given) for seed in range(seeds)]
    return records
