"""Records as they should not be: what a full disk, an editor, another program or a mischievous one may leave."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import json
import lzma
import os

import numpy as np
import synthetic_arena
import synthetic_quality
import synthetic_records as made

from bench.records.disk import LARGEST

SKETCH, LABELS = "polysketch_random_r32", ("flash", "polysketch_random_r32", "performer")
DEEP = "[" * 10**5 + "]" * 10**5
TRIALS = [[0.0] * 12] * 8


def said(call, *arguments):
    """What a call returns, and the lines that it says on stderr."""
    stderr = io.StringIO()
    with contextlib.redirect_stderr(stderr):
        result = call(*arguments)
    return result, stderr.getvalue().split("\n")[:-1]


def assert_plain(lines):
    for text in lines:
        assert text.isprintable() and len(text) < 1200, text[:2000]


def one_of_each(seed, n=2048, mechanism="flash"):
    """A good record of each benchmark, by its name."""
    rng = np.random.default_rng(seed)
    return {
        "latency": made.latency("flash", n, rng),
        "memory": made.memory("flash", n),
        "decode": made.decode("flash", n, rng),
        "spectral_norm": made.spectral("skeinformer", 1024, n // 16, rng),
        "capacity": made.capacity("performer", n // 16, 12, rng),
        "sketch_error": made.sketch_error("gaussian", 4, n // 32, rng),
        "flops": made.flops("softmax", n, n * 10**6),
        "compare": made.compare(LABELS, n, rng),
        "roofline": made.roofline("flash", n, rng),
        "train": made.train(mechanism, n // 128, 0, rng, task="language_modelling"),
        "train_step": made.train_step(mechanism, n // 128, rng),
        "compare_train_step": made.compare_train_step(LABELS, n, rng),
        "largest_batch": made.largest_batch("flash", n),
    }


@functools.cache
def good():
    """A few records from which every figure and table can be made."""
    rng, attention = np.random.default_rng(0), {"name": "skeinformer", "num_features": 64}
    records = [record for n in (512, 1024) for record in one_of_each(n, n, "performer").values()]
    records += [made.compare(("performer", "lucidrains_performer"), 512, rng), made.compare(LABELS, 32768, rng)]
    records += [made.latency("skeinformer", 1024, rng, causal=False, attention=attention)]
    records += [made.train("polynomial_p4", 16, of_seed, rng) for of_seed in (0, 1)]
    tasks = ("induction_heads", "associative_recall")
    records += [made.train("performer", 16, 0, rng, task=task) for task in tasks]
    return [*records, *synthetic_quality.quality(), *synthetic_arena.arena()]


def renamed(record, kind):
    """The record under ids of its own."""
    digest = hashlib.sha256(kind.encode()).hexdigest()
    return dataclasses.replace(record, record_id=digest[:32], cell_id=digest)


def base(kind):
    """A record that would be fine, with samples in a file of their own."""
    record = renamed(made.latency("flash", 777, np.random.default_rng(1)), kind)
    return dataclasses.replace(record, measurements=record.measurements | {"curve": [0.5] * 100})


def put(fields, path, value):
    """Set the value at a dotted path, or remove it (`...`)."""
    *parents, name = path.split(".")
    for parent in parents:
        fields = fields[parent]
    fields.pop(name) if value is ... else fields.update({name: value})


def having(record, *changes):
    """The record with other values at some dotted paths."""
    fields = dataclasses.asdict(record)
    for path, value in changes:
        put(fields, path, value)
    return type(record)(**fields)


# --- files that are no records: what is done to the path of a good one -----------------------------------------


def link_to(target):
    return lambda path: (path.unlink(), path.symlink_to(target))


def replaced(old, new):
    def make(path):
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))

    return make


def instead(data):
    return lambda path: path.write_bytes(data)


def cut(size):
    """A file of so many bytes, or of a share of what there were."""
    return lambda path: os.truncate(path, int(size if size > 1 else path.stat().st_size * size))


def fifo(path):
    path.unlink()
    os.mkfifo(path)


def number(text):
    return replaced('"duration_s": 1.0', f'"duration_s": {text}')


def samples(change):
    return lambda path: change(path.parents[1] / "samples" / f"{path.name}.xz")


@functools.cache
def without_end():
    return lzma.compress(b" " * (LARGEST + 1), preset=0)


def other_samples(data):
    """Samples that are other ones, and that the record vouches for."""

    def make(path):
        with_value("samples_sha256", hashlib.sha256(data).hexdigest())(path)
        samples(instead(lzma.compress(data)))(path)

    return make


def called(name):
    return lambda path: path.rename(path.with_name(name))


def with_value(path, value):
    """What sets (or removes: `...`) one value of a record's file."""

    def make(file):
        fields = json.loads(file.read_text())
        put(fields, path, value)
        file.write_text(json.dumps(fields))

    return make


FILES = {
    "fifo": (fifo, "not a regular file"),
    "device without end": (link_to("/dev/zero"), "not a regular file"),
    "dangling link": (link_to("/nowhere/at/all.json"), "No such file"),
    "sparse 10 GB": (cut(10**10), "larger than 64 MiB"),
    "empty": (instead(b""), "not strict JSON"),
    "noise": (instead(bytes(range(256))), "not strict JSON"),
    "cut in the middle": (cut(0.5), "not strict JSON"),
    "list": (instead(b"[1, 2]"), "not a JSON object"),
    "NaN": (number("NaN"), "NaN is not JSON"),
    "1e200": (number("-1e200"), "too large a number"),
    "a number of 10^5 digits": (number("7" * 10**5), "not strict JSON"),
    "10^5 lists": (number(DEEP), "nested too deeply"),
    "an unknown key of 10^5 characters": (replaced('"attempt"', '"' + "a" * 10**5 + '"'), "unknown fields"),
    "another schema of 10^5 characters": (replaced('"schema": 2', '"schema": "' + "2" * 10**5 + '"'), "schema="),
    "escapes in its name": (called("\x1b[31m\nno such\u202e name.json"), "a record that belongs into "),
    "samples are gone": (samples(os.unlink), "its samples: cannot be read"),
    "samples are not compressed": (samples(instead(b"{}")), "its samples: not compressed"),
    "samples are torn": (samples(cut(0.5)), "its samples: torn"),
    "samples are without end": (samples(lambda path: instead(without_end())(path)), "its samples: torn, or larger"),
    "samples are others": (samples(instead(lzma.compress(b"{}"))), "its samples are not those"),
    "samples are no object": (other_samples(b"[1]"), "not a JSON object"),
    "samples are of other measurements": (other_samples(b'{"tokens": {"a": [1]}}'), "its samples are of other"),
    "samples are nested": (other_samples(DEEP.encode()), "nested too deeply"),
}

# --- values that no reader can rely on: a path in a record, the values there (...: none) ------------------------------

FIELDS = {
    "record_id": ("../../etc/passwd", ""),
    "cell_id": ([], "' OR 1=1 --" + "0" * 16),
    "sweep_id": ("' OR '1'='1",),
    "attempt": (True, 2**63),
    "status": ("fine", ["ok"], "oom"),
    "started": ("0001-01-01T00:00:00+00:00", "2026-01-01T00:00:00"),
    "ended": (5, ..., "2026-01-01", "2026-01-01T00:00:00+14:00", "1969-12-31T23:59:59+00:00"),
    "duration_s": ("1", None),
    "overrides": ("a=1",),
    "machine": (None,),
    "machine.cpu_count": ("8", 10**30),
    "host_state.disturbed": ("other processes", [5]),
    "mechanisms": ([], {"flash": "softmax"}, {"flash": {"exact": "yes"}}),
    "seconds": ({"check": "long"},),
    "config": (None,),
    "config.label": (5, ...),
    "config.attention": ("flash", {}, {"name": ["flash"]}),
    "config.bench": ("latency", {}),
    "config.bench.against": (5, [{"label": "flash"}]),
    "config.inputs": ([], {"name": 5}),
    "config.seq_len": ("a", True, 512.0, 0, 2**63, 2**62),
    "config.batch_size": (None, -1),
    "config.causal": (1,),
}
VALUES = [(path, value) for path, values in FIELDS.items() for value in values]
UNREADABLE = FILES | {f"{path}={value!r:.50}": (with_value(path, value), path.split(".")[0]) for path, value in VALUES}


def spoil(store, kind):
    """Write a record that would be fine, and make it one of the kind."""
    make, message = UNREADABLE[kind]
    make(store.write(base(kind)))
    return message


# --- measurements that say nothing: a record that can be read, and what stands where its benchmark looks --------------

# Where the times of a benchmark are, and what they may be.
TIMES = {"latency": "passes.forward.samples", "train_step": "parts.step.samples", "compare": f"samples.{SKETCH}"}
TIMES |= dict.fromkeys(("decode", "roofline"), "samples")
NO_SAMPLES = {
    "no samples": [],
    "samples are text": ["1", "2"],
    "samples are null": [1.0, None],
    "a sample is zero": [1e6] * 19 + [0.0],
    "samples are negative": [-1.0] * 20,
    "samples are tiny": [1e-149, 1e-300, 5e-324],
}
# By benchmark: what else is nearly as it should be.
NEARLY = {
    "latency": {"an unknown pass": ("passes.sideways", {"samples": [1.0, 2.0]}), "no tokens": ("tokens", 0)},
    "memory": {
        "a peak of text": ("passes.forward.peak_bytes", "12"),
        "a negative peak": ("passes.forward.peak_bytes", -5),
        "no passes": ("passes", {}),
        "the largest is null": ("largest", {"axis": "seq_len", "value": None}),
    },
    "roofline": {
        "a ceiling is missing": ("ceilings.copy", ...),
        "other rounds": ("ceilings.copy", {"work": 1, "samples": [1.0]}),
        "an unknown ceiling": ("ceilings.sky", {"work": 1, "samples": [1.0]}),
        "no bytes": ("bytes", 0),
        "times of a nanosecond": ("samples", [1.0] * 20),
    },
    "capacity": {
        "a negative state": ("state_bytes", [-1.0] * 5),
        "other draws": ("capacity", [1.0]),
        "no pairs": ("right", {"1": []}),
    },
    "decode": {"a negative state": ("state_bytes", -1)},
    "train_step": {"a peak of text": ("peak_bytes", "12")},
    "largest_batch": {"no accumulation": ("accumulation", ...)},
    "compare": {"an unknown pass": ("pass", "sideways"), "one label is missing": (f"samples.{SKETCH}", ...)},
    "compare_train_step": {"other rounds": (f"samples.{SKETCH}", [1.0] * 19)},
    "train": {
        "never evaluated": ("validation", []),
        "no steps": ("curve.train_loss", []),
        "nothing asked": ("test.loss_by_position", [None, None]),
        "a baseline of text": ("baselines", {"unigram": "2"}),
        "negative times": ("seconds", [-1.0]),
        "more right than asked": ("test.token_accuracy", 1.5),
    },
    **{
        name: {"ragged": (errors, [[1.0], [1.0, 2.0]]), "negative errors": (errors, [[-1.0] * 12] * 8)}
        for name, errors in (("spectral_norm", "absolute"), ("sketch_error", "kernel_error"))
    },
    "flops": {"counted nothing": ("counted", 0)},
}


def unusable():
    """Readable records by their kind: their benchmarks cannot say what was measured."""
    records = {}
    for name, source in one_of_each(2).items():
        one_number_will_do = name in ("spectral_norm", "flops", "largest_batch")
        whole = {
            "nothing": {},
            "something else": {"loss": 1.0},
            "null": dict.fromkeys(source.measurements),
            "text": dict.fromkeys(source.measurements, "a"),
            "numbers": {} if one_number_will_do else dict.fromkeys(source.measurements, 5),
            "lists": {key: [] for key in source.measurements},
            "of another": {"passes": {"forward": {"samples": [[1.0], [2.0, 3.0]]}}, "samples": {"a": 1}},
        }
        parts = {kind: (TIMES[name], samples) for kind, samples in NO_SAMPLES.items() if name in TIMES} | NEARLY[name]
        changes = {kind: ("measurements", measured) for kind, measured in whole.items()}
        changes |= {kind: (f"measurements.{path}", value) for kind, (path, value) in parts.items()}
        records |= {f"{name}: {kind}": having(source, change) for kind, change in changes.items()}
    return {kind: renamed(record, kind) for kind, record in records.items()}


# --- what may look odd and is a record all the same --------------------------------------------------------------

TEXTS = {
    "mathtext": r"$\frac",
    "mathtext of a file": "v$_{$.yaml",
    "lone surrogate": "a\ud800b",
    "escapes": "\x1b[31mred\x1b[0m\x07",
    "new lines": "one\ntwo\r\nthree\u2028four",
    "HTML": "<script>alert(1)</script><!--",
    "underscore": "_hidden",
    "empty": "",
    "10^5 characters": "x" * 10**5,
    "Markdown": "**a** [b](c) | `d` || # e",
}


def strange(kind):
    """Records whose label, hyperparameters, machine or reason hold a text; one per benchmark, and one that failed."""
    text, rng, records = TEXTS[kind], np.random.default_rng(3), one_of_each(3)
    del records["compare_train_step"], records["largest_batch"]
    failed = made.latency("flash", 4096, rng, "oom")
    learned = {"task": "language_modelling", "settings": {"text": text}}
    trained = [made.train("flash", 64, seed, rng, status, **learned) for seed, status in enumerate(("ok", "nonfinite"))]
    records = [*records.values(), failed, *trained]
    return [renamed(_labelled(record, text), f"{kind}{number}") for number, record in enumerate(records)]


def _labelled(record, text):
    """The record with the text in place of its label, wherever that stands, and beside its hyperparameters."""
    label = json.dumps(record.config["label"])
    fields = json.loads(json.dumps(dataclasses.asdict(record)).replace(label, json.dumps(text)))
    fields["config"]["attention"]["note"] = text
    reason = None if record.status == "ok" else text * 100
    return type(record)(**fields | {"reason": reason, "stderr_tail": text, "overrides": (text,)})


ERRORS = ("measurements.absolute", "measurements.relative")
# By benchmark: changes that leave a record of values that nobody expects.
EXPECTED_BY_NOBODY = {
    "latency": {
        "immense times": [("measurements.passes.forward.samples", [1e149, 1e149, 1e148])],
        "no heads": [(f"config.{key}", ...) for key in ("num_heads", "head_dim", "dtype", "causal", "device", "impl")],
        "an unknown mechanism": [("config.attention", {"name": "who", "passes": [[]]}), ("config.inputs", {})],
        "no machine": [(key, {}) for key in ("machine", "numerics", "mechanisms", "seconds")],
        "ended before it started": [("started", "9999-12-31T23:59:59.999999+00:00"), ("duration_s", -1.0)],
        "text for a hyperparameter": [("config.attention", {"name": "skeinformer", "num_features": "64"})],
    },
    "decode": {
        "a benchmark of a path": [("config.bench", {"name": "../../os", "passes": 5, "measured_pass": {}})],
        "10^3 numbers": [("config.bench", {"name": "gate"}), ("measurements", {f"m{k}|": k for k in range(10**3)})],
    },
    "spectral_norm": {
        "no error": [(path, TRIALS) for path in ERRORS],
        "one trial of one head": [("measurements.sequences", 1), *((path, [1.0]) for path in ERRORS)],
        **{f"size {size!r}": [("measurements.features", size)] for size in (0, "64", 10**30)},
    },
    "sketch_error": {
        "a sketch without error": [(f"measurements.{name}_error", TRIALS) for name in ("kernel", "sketch")],
        "an unknown sketch": [("config.attention", {"name": "polysketch", "sketch": "x", "degree": "y"})],
    },
    "compare": {
        "one round": [("measurements.samples", {label: [1.0] for label in LABELS})],
        "immense ratios": [("measurements.samples", {label: [10.0 ** (70 * k)] * 9 for k, label in enumerate(LABELS)})],
        "against nobody": [("config.bench.against", [])],
    },
    "memory": {"no peak": [("measurements.passes", {"forward": {"peak_bytes": 0}})]},
    "flops": {"immense FLOPs": [("measurements.analytic", 10**100), ("measurements.counted", 5.5)]},
    "train": {
        "a model that learned of no settings": [(f"config.{part}", ...) for part in ("model", "task", "training")],
        "settings of text": [("config.model", "a"), ("config.task", 5), ("config.training", [])],
        "no seed": [("config.seed", None)],
        "a source of a list": [("measurements.source", ["kjv"])],
        "a loss of zero": [("measurements.test.loss", 0.0)],
        "one position": [("measurements.test.loss_by_position", [1.0])],
    },
}


def extreme():
    """Records of values that nobody expects, by their kind."""
    rng, sources = np.random.default_rng(4), one_of_each(4)
    records = {}
    for name, kinds in EXPECTED_BY_NOBODY.items():
        records |= {kind: having(sources[name], *changes) for kind, changes in kinds.items()}
    records |= {
        "longest": made.latency("flash", 2**40, rng, batch_size=1),
        "one token": made.latency("flash", 1, rng, batch_size=1),
        "disturbances without end": made.under(sources["latency"], *[f"|{k}: $x; <b>" for k in range(10**3)]),
        "immense losses": made.train("flash", 64, 0, rng, task="language_modelling", final=1e149),
        "pairs of text": made.train("flash", 64, 0, rng, settings={"num_pairs": "4"}, task="associative_recall"),
        "nothing learned": made.train("flash", 64, 0, rng, "timeout", task="language_modelling"),
        "out of memory": made.latency("flash", 2048, rng, "oom"),
    }
    return {kind: renamed(record, kind) for kind, record in records.items()}
