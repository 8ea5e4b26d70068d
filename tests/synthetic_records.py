"""Synthetic records for tests of `analysis`: simple cost models with noise, never measured."""

import dataclasses
import hashlib
import json

import numpy as np

from bench.records.record import Record
from bench.records.store import Store

MACHINE = {"cpu_model": "Synthetic CPU 9000", "cpu_count": 8, "memory_bytes": 2**36, "os": "Linux 6.1"}
MACHINE |= {"python": "3.11.9", "torch": "2.13.0", "gpu_name": None}
LENGTHS = tuple(2**k for k in range(9, 16))

# label -> attention config and synthetic cost model: µs per token, and how many more with each 1k of length.
ATTENTIONS = {
    "softmax": ({"name": "softmax"}, 0.5, 9.0),
    "flash": ({"name": "flash", "backend": "auto"}, 0.5, 3.0),
    "polynomial_p4": ({"name": "polynomial", "degree": 4}, 0.8, 5.0),
    "polysketch_random_r32": ({"name": "polysketch", "sketch_size": 32, "degree": 4}, 14.0, 0),
    "polysketch_learned_local_r64": (
        {"name": "polysketch", "sketch": "learned", "sketch_size": 64, "degree": 4, "local": True}, 31.0, 0,
    ),
    "performer": ({"name": "performer", "num_features": 256}, 9.0, 0),
    "lucidrains_performer": ({"name": "lucidrains_performer", "num_features": 256}, 18.0, 0),
    "linformer": ({"name": "linformer", "projection_dim": 256}, 5.0, 0),
    "skeinformer": ({"name": "skeinformer", "num_features": 256}, 7.0, 0),
    "informer": ({"name": "informer", "num_features": 256, "num_samples": None}, 6.0, 0),
    "v_mean": ({"name": "v_mean"}, 0.3, 0),
    "local": ({"name": "local"}, 1.0, 0),
    "identity": ({"name": "identity"}, 0.1, 0),
    "xformers_memory_efficient": ({"name": "xformers_memory_efficient"}, 0.5, 4.0),
}  # fmt: skip

TIMING = {"unit": "ns", "calls_per_sample": 3, "warmup_calls": 5, "method": "perf_counter", "cache": "warm"}
GAUSSIAN = {"name": "gaussian", "score_scale": 1.0}
SIZES = {"polysketch": "sketch_size", "linformer": "projection_dim"}
SIZES |= dict.fromkeys(("performer", "skeinformer", "informer"), "num_features")


def record(config, measurements=None, status="ok", ended="2026-01-01T00:00:00+00:00", machine=MACHINE):
    """A record of the shape that `bench` writes; ids are hashes of the config."""
    digest = hashlib.sha256(json.dumps([config, machine], sort_keys=True).encode()).hexdigest()
    return Record(
        record_id=hashlib.sha256(f"{digest}{ended}".encode()).hexdigest()[:32],
        cell_id=digest,
        sweep_id="5" * 64,
        attempt=1,
        status=status,
        config=config,
        started=ended,
        ended=ended,
        duration_s=1.0,
        reason=None if status == "ok" else f"synthetic {status}",
        machine=machine,
        numerics={"threads": 8} if status == "ok" else {},
        mechanisms={each["label"]: _facts(each) for each in (config, *config["bench"].get("against", ()))},
        measurements=(measurements or {}) if status == "ok" else {},
        seconds={"check": 0.05, "measure": 0.5} if status == "ok" else {},
        host_state=host_state() if status == "ok" else {},
    )


def written(folder, records):
    """The folder, with these records in it."""
    for record in records:
        Store(folder).write(record)
    return folder


def host_state(disturbed=()):
    """What a machine of two cores said of itself."""
    now = {"load": [0.5, 0.5, 0.5], "governors": ["performance"], "mhz": [3000.0, 3000.0, 3000.0]}
    limits = {"cores": "0-7", "control_group": {"cpus": None, "memory_bytes": None, "cores": None}}
    during = {"seconds": 1.0, "own_s": 0.9, "others_s": 0.01, "packages_j": 60.0}
    return {"before": now, "after": now, "limits": limits, "during": during, "disturbed": list(disturbed)}


def under(record, *disturbed):
    """The record as it would be if that had disturbed it."""
    return dataclasses.replace(record, host_state=host_state(disturbed))


def _facts(cell):
    name = cell["attention"]["name"]
    exact = name in ("softmax", "flash", "polynomial", "xformers_memory_efficient")
    function = "polynomial" if "poly" in name else "softmax"
    control = name in ("identity", "local", "v_mean")
    return {"approximates": function, "exact": exact, "size": SIZES.get(name), "control": control}


def config(label, bench, seq_len, attention=None, **changes):
    """A resolved cell config."""
    return {
        "label": label,
        "attention": attention or dict(ATTENTIONS[label][0]),
        "bench": bench,
        "inputs": dict(GAUSSIAN),
        **{"seq_len": seq_len, "batch_size": max(1, 32768 // seq_len), "num_heads": 12, "head_dim": 64},
        **{"dtype": "float32", "causal": True, "device": "cpu", "impl": "auto", "seed": 0, "repeats": 20},
        **changes,
    }


def noisy(rng, value, n=20, spread=0.02):
    """n positive samples around a value, skewed as times are."""
    return (value * rng.lognormal(0, spread, n)).tolist()


def ns_per_call(label, cell, factor=1.0):
    """The synthetic cost model."""
    _, constant, linear = ATTENTIONS[label]
    tokens = cell["seq_len"] * cell["batch_size"]
    return 1e3 * tokens * (constant + linear * cell["seq_len"] / 1024) * factor


def latency(label, seq_len, rng, status="ok", **changes):
    """A synthetic latency record."""
    cell = config(label, {"name": "latency", "passes": ["forward", "forward_backward"]}, seq_len, **changes)
    passes = {
        name: {**TIMING, "samples": noisy(rng, ns_per_call(label, cell, factor))}
        for name, factor in (("forward", 1.0), ("forward_backward", 3.2))
    }
    tokens = cell["seq_len"] * cell["batch_size"]
    return record(cell, {"passes": passes, "tokens": tokens, "flops": 4 * 64 * 12 * tokens * seq_len}, status)


def memory(label, seq_len, status="ok", **changes):
    """A synthetic memory record."""
    cell = config(label, {"name": "memory", "passes": ["forward", "forward_backward"], "largest": None}, seq_len)
    quadratic = label in ("softmax", "polynomial_p4")
    tokens = cell["seq_len"] * cell["batch_size"]
    size = 12 * tokens * 4 * (64 + (seq_len if quadratic else ATTENTIONS[label][1] * 20))
    passes = {
        name: {"peak_bytes": int(size * factor), "baseline_bytes": 12 * tokens * 4 * 64 * 3}
        for name, factor in (("forward", 1), ("forward_backward", 3))
    }
    return record({**cell, **changes}, {"passes": passes, "method": "synthetic", "largest": None}, status)


def of_weights(weights):
    """Gaussian inputs, or those of a model with such weights."""
    model = {"name": "pretrained", "weights": weights, "model": "minilm", "layer": 0, "text": "kjv"}
    return model if weights else dict(GAUSSIAN)


def spectral(label, seq_len, size, rng, weights=None, status="ok", reference="softmax", trials=8, **changes):
    """A synthetic spectral_norm record: errors that fall with the size like 1/sqrt(d)."""
    attention = dict(ATTENTIONS[label][0])
    if size:
        attention[SIZES[attention["name"]]] = size
    scale = {"linformer": 30, "informer": 3, "v_mean": 2, "skeinformer": 2.5}.get(label, 4)
    value = scale * (seq_len / 1024) ** 0.5 * (0.3 + (0 if size is None else 2 / size**0.5))
    absolute = rng.lognormal(np.log(value), 0.3, (trials, 12))
    bench = {"name": "spectral_norm", "num_features": size, "memory_limit": None}
    changes = {"batch_size": 4, "causal": False, "inputs": of_weights(weights), **changes}
    cell = config(label, bench, seq_len, attention, **changes)
    errors = {"absolute": absolute, "relative": absolute / 8, "exact_norm": np.full((trials, 12), 8.0)}
    lists = {name: values.tolist() for name, values in errors.items()}
    return record(cell, {"features": size, "reference": reference, **lists}, status)


def sketch_error(sketch, degree, size, rng, weights=None, status="ok", trials=8, exponent=-0.5, **changes):
    """A synthetic sketch_error record: errors that fall with r as a power of it, those of a head's trial alike."""
    attention = {"name": "polysketch", "sketch": sketch, "sketch_size": size, "degree": degree}
    error = degree * size**exponent * rng.lognormal(0, 0.1, (trials, 1)).repeat(12, axis=1)
    known = sketch == "gaussian" and degree == 4
    measured = {
        "features": size,
        "kernel_error": error.tolist(),
        "sketch_error": (error / 2).tolist(),
        "kernel_expected": [[degree * size**exponent] * 12] * 2 if known else None,
        "sketch_expected": [[degree / 2 * size**exponent] * 12] * 2 if known else None,
        "smallest_weight": np.full((trials, 12), 1e-9).tolist(),
        "negative_share": None if sketch == "learned" else np.full((trials, 12), 0.4).tolist(),
    }
    bench, label = {"name": "sketch_error", "num_features": size, "memory_limit": None}, f"polysketch sketch={sketch}"
    changes = {"batch_size": 2, "causal": False, "inputs": of_weights(weights), **changes}
    return record(config(f"{label} degree={degree}", bench, 512, attention, **changes), measured, status)


def flops(label, seq_len, multiplications, size=None, **changes):
    """A synthetic flops record of so many multiplications for each of two heads of one sequence."""
    bench = {"name": "flops", "num_features": size, "memory_limit": None}
    changes = {"batch_size": 1, "num_heads": 2, "head_dim": 32, "causal": False, **changes}
    analytic = 4 * multiplications
    measured = {"analytic": analytic, "counted": analytic + 4, "operations": {"bmm": analytic, "sum": 4}}
    return record(config(label, bench, seq_len, **changes), {**measured, "features": size})


def compare(labels, seq_len, rng, status="ok", rounds=20, **changes):
    """A synthetic compare record: all labels share the drift of each round."""
    against = [{"label": label, "attention": dict(ATTENTIONS[label][0])} for label in labels[1:]]
    bench = {"name": "compare", "measured_pass": "forward", "min_sample_ms": 20.0, "against": against}
    cell = config(labels[0], bench, seq_len, **changes)
    drift = np.linspace(1, 1.2, rounds)
    samples = {label: (drift * noisy(rng, ns_per_call(label, cell), rounds, 0.05)).tolist() for label in labels}
    measured = {"pass": "forward", "labels": list(labels), "samples": samples}
    return record(cell, {**measured, "calls_per_sample": dict.fromkeys(labels, 3)}, status)


def decode(label, seq_len, rng, status="ok", **changes):
    """A synthetic decode record: a cache grows with the context, sums do not."""
    bench = {"name": "decode", "steps": 16, "min_sample_ms": 20.0, "memory_limit": None}
    cell = config(label, bench, seq_len, batch_size=1, **changes)
    cached = label in ("softmax", "flash", "polynomial_p4")
    measured = {**TIMING, "samples": noisy(rng, 1e5 + (20 * seq_len if cached else 2e5))}
    measured |= {"steps": 16, "context": seq_len, "batch_size": 1, "error": 1e-6}
    measured |= {"state_bytes": 12 * 65 * 4 * (2 * seq_len if cached else 1024)}
    return record(cell, measured, status)


def roofline(label, seq_len, rng, status="ok", rounds=20, **changes):
    """A synthetic roofline record: 100 GFLOP/s, 20 GB/s and 10^9 exponentials per second, in rounds that drift."""
    bench = {"name": "roofline", "num_features": None, "min_sample_ms": 20.0, "memory_limit": None}
    cell = config(label, bench, seq_len, **changes)
    tokens, drift = cell["seq_len"] * cell["batch_size"], np.linspace(1, 1.2, rounds)
    works = {"gemm": (10**9, 1e7), "copy": (10**8, 5e6), "exponentials": (10**6, 1e6)}
    ceilings = {
        name: {"work": work, "samples": (drift * noisy(rng, ns, rounds)).tolist(), "calls_per_sample": 1}
        for name, (work, ns) in works.items()
    }
    _, constant, linear = ATTENTIONS[label]
    measured = {
        **TIMING,
        "samples": (drift * noisy(rng, ns_per_call(label, cell), rounds)).tolist(),
        "ceilings": ceilings,
        "flops": int(tokens * (constant * 3e4 + linear * seq_len * 60)),
        "bytes": 4 * 4 * 64 * 12 * tokens,
        "features": None,
    }
    return record(cell, measured, status)


def train(
    label, seq_len, seed, rng, status="ok", learning_rate=1e-3, final=1e-3, evaluations=8, task="reversal", **changes
):
    """A synthetic train record: a loss that falls exponentially, or at once, from ln 10 to `final`."""
    cell = training_cell(label, {"name": "train"}, seq_len, task, seed=seed, **changes)
    training = cell["training"]
    training |= {"steps": 100 * evaluations, "learning_rate": learning_rate}
    share = np.arange(1, evaluations + 1) / evaluations
    if task in ("induction_heads", "selective_copying"):
        share = 1 / (1 + np.exp(-30 * (share - rng.uniform(0.3, 0.8))))
    losses = np.log(10) * (final / np.log(10)) ** share
    text, start = cell["task"].get("text"), np.log(10)
    found = [
        {
            **{"step": 100 * number, "examples": 256, "loss": float(loss)},
            **{"token_accuracy": float(np.exp(-loss)), "example_accuracy": float(np.exp(-loss) ** 4)},
            "loss_by_position": [None, *(loss * (1 + 1 / np.arange(1, seq_len))).tolist()],
        }
        for number, loss in enumerate(losses, 1)
    ]
    train_loss = np.interp(range(100 * evaluations), 100 * np.arange(evaluations + 1), [start, *losses]).tolist()
    other_curves = {name: noisy(rng, 1.0, training["steps"]) for name in ("gradient_norm", "learning_rate")}
    measured = {
        "curve": {"train_loss": train_loss, **other_curves},
        "seconds": noisy(rng, 2e-9 * ns_per_call(label, cell), training["steps"]),
        "validation": found,
        "test": found[-1],
        **{"parameters": 12345, "vocabulary": 10, "source": text or "generated", "resumed_from": 0, "processes": 1},
        "state_bytes": state_bytes(label, seq_len),
        "baselines": {"unigram": 2.9, "bigram": 2.2 + 1 / seq_len} if text else {},
    }
    return record(cell, measured, status)


def state_bytes(label, seq_len):
    """Of two layers: a cache that grows with the context, or so many features."""
    exact = label in ("softmax", "flash", "polynomial_p4")
    return int(2 * 4 * 12 * 64 * (2 * seq_len if exact else 65 * ATTENTIONS[label][1]))


TASKS = {
    "reversal": {"alphabet": 10},
    "induction_heads": {"alphabet": 16, "examples": 65536},
    "selective_copying": {"alphabet": 16, "num_tokens": 16, "examples": 65536},
    "associative_recall": {"num_pairs": 4, "vocabulary": 8192},
    "compression": {"vocabulary": 16, "examples": None},
    "language_modelling": {"text": "kjv", "tokenizer": "bytes"},
}


def training_cell(label, bench, seq_len, task, layers=2, batch_size=64, settings=None, **changes):
    """The config of a cell whose model learns a task, as the suite resolves it."""
    cell = config(label, bench, seq_len, batch_size=batch_size, causal=task != "reversal", **changes)
    model = {"name": "encoder" if task == "reversal" else "transformer", "layers": layers}
    cell |= {"inputs": {"name": task}, "model": model, "task": {"name": task, **TASKS[task], **(settings or {})}}
    return cell | {"training": {"steps": 1000, "learning_rate": 1e-3, "schedule": "linear", "accumulate": 1}}


def train_step(label, seq_len, rng, status="ok", task="language_modelling", tokens=8192, **changes):
    """A synthetic train_step record: the attention's time and as much again for all else."""
    bench = {"name": "train_step", "min_sample_ms": 20.0}
    cell = training_cell(label, bench, seq_len, task, batch_size=tokens // seq_len, **changes)
    step = 2 * ns_per_call(label, cell)
    shares = {"forward": 0.3, "backward": 0.6, "optimizer": 0.1, "step": 1.0}
    measured = {
        "parts": {name: {**TIMING, "samples": noisy(rng, share * step)} for name, share in shares.items()},
        **{"pieces": 1, "tokens": tokens, "parameters": 10**8, "model_bytes": 4 * 10**8, "optimizer_bytes": 8 * 10**8},
        **{"peak_bytes": 10**5 * tokens, "memory_method": "cpu allocator events"},
    }
    return record(cell, measured, status)


def capacity(label, head_dim, pairs, rng, status="ok", keys="gaussian", draws=5, state_bytes=None, **changes):
    """A synthetic capacity record: so many pairs in the mean, of a cache in as many bytes, of sums in a square of h."""
    most = 2048  # pairs that are tried
    bench = {"name": "capacity", "keys": keys, "key_scale": 1.0, "share": 0.9, "reads": 128, "memory_limit": None}
    shape = {"batch_size": 1, "num_heads": 4, "head_dim": head_dim, "repeats": draws}
    cell = config(label, bench, most, **{**shape, **changes})
    found = np.minimum(most, np.round(pairs * rng.lognormal(0, 0.1, draws))).tolist()
    grows = ATTENTIONS[label][2] > 0
    size = state_bytes or [8.0 * head_dim * max(1, each) if grows else 4.0 * head_dim**2 for each in found]
    right = {str(n): [float(n <= each) for each in found] for n in (1, 2, 4, 8, 16, 32, 64)}
    measured = {"right": right, "capacity": found, "state_bytes": size, "most": most, "features": None}
    return record(cell, measured, status)


def compare_train_step(labels, seq_len, rng, status="ok", rounds=20, **changes):
    """A synthetic compare_train_step record: all labels share the drift of each round."""
    source = compare(labels, seq_len, rng, rounds=rounds)
    bench = {"name": "compare_train_step", "min_sample_ms": 20.0, "against": source.config["bench"]["against"]}
    measured = {key: source.measurements[key] for key in ("labels", "samples", "calls_per_sample")}
    measured |= {"method": "perf_counter", "cache": "warm"}
    return record(training_cell(labels[0], bench, seq_len, "language_modelling", **changes), measured, status)


def largest_batch(label, seq_len, status="ok", **changes):
    """A synthetic largest_batch record: so much per sequence over what the model takes."""
    bench = {"name": "largest_batch", "largest_limit": 65536}
    cell = training_cell(label, bench, seq_len, "language_modelling", **changes)
    sizes = {number: 10**9 + 10**8 * number for number in (1, 2, 3, 4)}
    measured = {
        **{"largest": 3, "tried": {str(number): size for number, size in sizes.items()}, "limit_bytes": sizes[3] + 1},
        **{"pieces": 1, "wanted": cell["batch_size"], "accumulation": cell["batch_size"] // 2},
        "method": "cpu allocator events",
    }
    return record(cell, measured, status)
