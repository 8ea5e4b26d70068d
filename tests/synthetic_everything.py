"""Synthetic records of which every figure and table can be made, with runs that failed among them."""

from itertools import product

import numpy as np
import synthetic_records as synthetic
from synthetic_arena import arena
from synthetic_quality import quality


def trained(rng):
    """Records of training, with runs that failed among them."""
    labels = ("softmax", "polynomial_p4", "polysketch_learned_local_r64", "performer")
    records = []
    for label, n, of_seed in product(("softmax", "polynomial_p4", "performer"), (16, 64), (0, 1, 2)):
        status = "nonfinite" if (label, n, of_seed) == ("performer", 64, 2) else "ok"
        records.append(synthetic.train(label, n, of_seed, rng, status, final=1e-3 * 2**of_seed))
    for worse, label in enumerate(labels):
        for n, of_seed, rate in product((256, 512, 1024), (0, 1), (1e-3, 3e-3)):
            status = "oom" if (label, n) == ("softmax", 1024) else "ok"
            final = (1.3 + 0.1 * worse + 20 / n + (rate > 1e-3) / 10) * rng.lognormal(0, 0.01)
            changes = {"task": "language_modelling", "batch_size": 8192 // n, "learning_rate": rate, "final": final}
            records.append(synthetic.train(label, n, of_seed, rng, status, **changes))
        for n in (256, 512, 1024, 2048):
            records.append(synthetic.train_step(label, n, rng, "oom" if label == "softmax" and n > 512 else "ok"))
        for task, of_seed in product(("induction_heads", "selective_copying"), (0, 1, 2)):
            solved = 1e-3 if (label, task) != ("performer", "selective_copying") else 2.0
            status = "nonfinite" if (label, of_seed) == ("polynomial_p4", 1) else "ok"
            records.append(synthetic.train(label, 127, of_seed, rng, status, final=solved, task=task, evaluations=20))
        for n, pairs, of_seed in product((64, 128), (4, 16), (0, 1)):
            changes = {"task": "associative_recall", "settings": {"num_pairs": pairs}}
            final = 1e-3 * pairs * 4**worse * n / 64 * rng.lognormal(0, 0.3)
            records.append(synthetic.train(label, n, of_seed, rng, final=final, **changes))
    return records


def of_every_figure():
    """Records that every figure and table can be made from."""
    return [*everything(), *quality(), *arena()]


def everything():
    """Records of every benchmark, with cells of every kind of outcome among them."""
    rng = np.random.default_rng(0)
    records = []
    causal = ("softmax", "flash", "polynomial_p4", "polysketch_random_r32", "polysketch_learned_local_r64", "performer")
    for label, n in product((*causal, "linformer"), synthetic.LENGTHS):
        status = "unsupported" if label == "linformer" else "ok"
        if label == "softmax" and n > 8192:
            status = "oom"
        records += [synthetic.latency(label, n, rng, status), synthetic.memory(label, n, status)]
        records.append(synthetic.decode(label, n, rng, status))
    approximations = ("skeinformer", "informer", "linformer")
    sizes, both = (16, 32, 64, 128, 256), ("initialised", "pretrained")
    for label, n, d, weights in product(approximations, (1024, 4096), sizes, both):
        status = "timeout" if (label, n, d) == ("informer", 4096, 256) else "ok"
        records.append(synthetic.spectral(label, n, d, rng, weights, status))
    for n, weights in product((1024, 4096), both):
        records.append(synthetic.spectral("v_mean", n, None, rng, weights))
    for label in (*approximations, "v_mean", "flash"):
        for size in (64, 256) if label not in ("v_mean", "flash") else (None,):
            attention = dict(synthetic.ATTENTIONS[label][0]) | ({synthetic.SIZES[label]: size} if size else {})
            records.append(synthetic.latency(label, 4096, rng, causal=False, attention=attention))
    records.append(synthetic.spectral("polysketch_random_r32", 4096, 32, rng, reference="polynomial", causal=True))
    for sketch, degree, weights in product(("gaussian", "srht"), (4, 8), (None, "pretrained")):
        records += [synthetic.sketch_error(sketch, degree, r, rng, weights) for r in (8, 32, 128)]
    records += [synthetic.flops("softmax", n, 2 * n * n * 32) for n in (1024, 2048)]
    records += [synthetic.flops("skeinformer", n, 4 * n * 256 * 32, 256) for n in (1024, 2048)]
    for label, n, causal in product(("flash", "linformer", "performer", "v_mean"), (1024, 4096), (False, True)):
        status = "oom" if (label, n) == ("linformer", 4096) else "ok"
        records.append(synthetic.roofline(label, n, rng, status, batch_size=1, causal=causal))
    records += trained(rng)
    known = {"softmax": 9e9, "polynomial_p4": 900, "polysketch_learned_local_r64": 90, "performer": 12, "identity": 0}
    for (label, pairs), head_dim in product(known.items(), (32, 64)):
        records += [synthetic.capacity(label, head_dim, pairs, rng, keys=keys) for keys in ("gaussian", "orthonormal")]
    records.append(synthetic.capacity("flash", 64, 1, rng, "timeout"))
    records += [synthetic.largest_batch("flash", n) for n in (1024, 8192)]
    records.append(synthetic.largest_batch("softmax", 8192, "oom"))
    for n in synthetic.LENGTHS:
        status = "oom" if n == 32768 else "ok"
        records.append(synthetic.compare_train_step(("flash", "polysketch_random_r32"), n, rng, status))
        records.append(synthetic.compare(("flash", "polysketch_random_r32", "performer"), n, rng, status))
        records.append(synthetic.compare(("performer", "lucidrains_performer"), n, rng, status))
    return records
